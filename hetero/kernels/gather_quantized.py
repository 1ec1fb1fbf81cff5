"""GatherBlockQuantized: rows of a table quantised in blocks; only the rows that are asked for are dequantised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.convert import FLOAT8
from hetero.kernels.operands import axis_of, fail, host_reason
from hetero.kernels.packed import FLOAT32, UINT8, packed_bytes, require_block, require_width, unpack
from hetero.kernels.quantize import Grain
from hetero.kernels.quiet import Quiet
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec, TensorSpec

_HALVES = frozenset((np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)))
_SYMMETRIC = FLOAT8 | {np.dtype(ml_dtypes.float4_e2m1fn)}


class _Table:
    """The table's extents, how its elements are stored, and which of them share a scale."""

    def __init__(self, op: Operation, specs: Sequence[Spec]) -> None:
        data, scales, zero = tensor(op, specs, 0), tensor(op, specs, 2), given(specs, 3)
        rank = len(data.shape)
        if data.dtype not in _HALVES | _SYMMETRIC | {UINT8}:
            raise UnsupportedError(f"{op.op_type} of {data.dtype}", op=op.id, node=op.name)
        if scales.dtype not in FLOATS - {np.dtype(np.float64)}:
            raise UnsupportedError(f"scales of {scales.dtype}", op=op.id, node=op.name)
        self.gather = axis_of(op, int(op.attr("gather_axis", 0)), rank, "gather_axis")
        self.quantize = axis_of(op, int(op.attr("quantize_axis", 1)), rank, "quantize_axis")
        self.symmetric = data.dtype in _SYMMETRIC
        self.bits = 8
        if data.dtype == UINT8:
            self.bits = require_width(op, int(op.attr("bits", 4)), (2, 4, 8))
            if self.gather == rank - 1 and self.bits < 8:
                fail(op, "packed bytes are not gathered along the last axis", "gather_axis")
        self.shape = (*data.shape[:-1], data.shape[-1] * 8 // self.bits)
        self.default_zero = 1 << (self.bits - 1) if data.dtype == UINT8 else 0
        block = int(op.attr("block_size", 128))
        whole = self.symmetric and block == 0
        self.block = max(1, self.shape[self.quantize]) if whole else require_block(op, block, least=16)
        self.scales = scales.shape
        self._check_scales(op, zero, data.dtype)

    def _check_scales(self, op: Operation, zero: TensorSpec | None, dtype: np.dtype[Any]) -> None:
        expected = list(self.shape)
        expected[self.quantize] = -(-expected[self.quantize] // self.block)
        shared = [self.symmetric and i != self.quantize for i in range(len(expected))]
        fits = len(self.scales) == len(expected) and all(
            found == wanted or (found == 1 and may)
            for found, wanted, may in zip(self.scales, expected, shared, strict=True)
        )
        if not fits:
            fail(op, f"of shape {list(self.scales)}, blocks of {self.block} need {expected}", "scales")
        if zero is None:
            return
        if self.symmetric or zero.dtype != dtype:
            fail(op, f"of {zero.dtype} for data of {dtype}", "zero_points")
        needed = (*self.scales[:-1], packed_bytes(self.scales[-1], self.bits))
        if zero.shape != needed:
            fail(op, f"of shape {list(zero.shape)}, expected {list(needed)}", "zero_points")

    def along(self, array: Array, indices: Array, *, per_block: bool) -> Array:
        """Slices of `array` at `indices` along the gathered axis, which it may share (extent 1)."""
        if array.shape[self.gather] == 1 and self.shape[self.gather] != 1 and per_block:
            indices = indices * 0
        elif per_block and self.gather == self.quantize:
            indices = indices // self.block
        return array.take(indices, self.gather)


@kernel("GatherBlockQuantized", domain="com.microsoft", versions=(1,))
def gather_block_quantized(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """data (packed uint8, int4, uint4, float8 or float4), indices, scales (one for each block along `quantize_axis`),
    optional zero points -> the slices of (data - zero point) * scale at `indices` along `gather_axis`, in the scales'
    dtype. An index out of range gives zeros.
    """
    data, indices, scales, zero = (
        tensor(op, specs, 0), tensor(op, specs, 1), tensor(op, specs, 2), given(specs, 3)
    )  # fmt: skip
    table = _Table(op, specs)
    before, after = table.shape[: table.gather], table.shape[table.gather + 1 :]
    output = TensorSpec(scales.dtype, (*before, *indices.shape, *after))
    extent, q = table.shape[table.gather], table.quantize
    axis = q + (len(indices.shape) - 1 if q > table.gather else 0)
    grain = Grain(axis, table.block)
    parts: tuple[Part, ...] = ((output.shape if scales.dtype != FLOAT32 else (0,), FLOAT32),)

    def dequantize(source: Array, at: Array, scale: Array, zeros: Array | None, out: Array) -> None:
        inside = (at >= -extent) & (at < extent)
        at = xp.where(inside, xp.where(at < 0, at + extent, at), 0)
        taken = source.take(at, table.gather)
        out[...] = unpack(xp, taken, table.bits, table.shape[-1]) if source.dtype == UINT8 else taken
        if zeros is not None:
            zeros = unpack(xp, zeros, table.bits, table.scales[-1]) if zeros.dtype == UINT8 else zeros
            zeros = table.along(zeros, at, per_block=True).astype(FLOAT32)
        elif table.default_zero:
            xp.subtract(out, FLOAT32.type(table.default_zero), out=out)
        factors = table.along(scale, at, per_block=True).astype(FLOAT32)
        if table.gather == table.quantize:
            if zeros is not None:
                xp.subtract(out, zeros, out=out)
            xp.multiply(out, factors, out=out)
        else:
            shifts = grain.split(out, zeros)
            for (piece, factor), (_, shift) in zip(grain.split(out, factors), shifts, strict=True):
                if shift is not None:
                    xp.subtract(piece, shift, out=piece)
                xp.multiply(piece, factor, out=piece)
        if not inside.all():
            rows = out.reshape(math.prod(before), at.size, math.prod(after))
            rows[:, ~inside.reshape(-1)] = 0

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if output.size == 0:
            return bool
        (wide,) = carve(workspace, *parts)
        source, at, scale = inputs[:3]
        shift = inputs[3] if zero is not None else None
        if scales.dtype == FLOAT32:
            return Quiet(partial(dequantize, source, at, scale, shift, outputs[0]))

        def call() -> None:
            dequantize(source, at, scale, shift, wide)
            xp.copyto(outputs[0], wide, casting="unsafe")

        return Quiet(call)

    if extent == 0 and output.size:
        fail(op, f"has no slice along axis {table.gather}: shape {list(data.shape)}", "data")
    return computed(
        (output,),
        bind,
        workspace_bytes=carved_bytes(*parts),
        capture=host_reason(xp, "allocates what it gathers"),
    )
