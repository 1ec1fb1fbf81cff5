"""The weights of a mixture of experts, one matrix an expert: as floats, packed integers or float8 in square blocks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import given, tensor
from hetero.kernels.derived import derived
from hetero.kernels.operands import fail, text_of
from hetero.kernels.packed import (
    FLOAT32,
    UINT8,
    Blocks,
    packed_bytes,
    require_block,
    require_width,
    unpack,
)  # fmt: skip
from hetero.kernels.widen import is_constant
from hetero.program.operation import Operation
from hetero.types import Array, Spec

FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
Matrix = Callable[[int], Array]
"""An expert's number -> its weights (outputs, inputs) in float32, valid until the next call."""


def _per_expert(
    xp: Any, recipe: Hashable, sources: Sequence[Array | None], make: Callable[[int], Array]
) -> Matrix:
    """`make` of an expert, kept where the sources are constant: of many experts few may ever be asked for."""
    if not all(a is None or is_constant(a) for a in sources):
        return make
    kept: dict[int, Array] = {}

    def matrix(expert: int) -> Array:
        found = kept.get(expert)
        if found is None:
            found = kept[expert] = derived((recipe, expert), sources, lambda: make(expert))
        return found

    return matrix


class FloatBank:
    """Weights (experts, outputs, inputs) of a float dtype."""

    def __init__(
        self, op: Operation, specs: Sequence[Spec], index: int, outputs: int | None, inputs: int
    ) -> None:
        w = tensor(op, specs, index)
        self.index = index
        if len(w.shape) != 3 or w.shape[2] != inputs or outputs not in (None, w.shape[1]):
            fail(op, f"of shape {list(w.shape)} for {inputs} inputs", f"input {index}")
        self.experts, self.outputs = w.shape[:2]

    def bind(self, operands: Sequence[Any], xp: Any) -> Matrix:
        """The experts' matrices over these operands."""
        w = operands[self.index]
        if w.dtype == FLOAT32:
            return lambda expert: w[expert]
        return _per_expert(xp, "MoE", (w,), lambda expert: w[expert].astype(FLOAT32))


class PackedBank:
    """Packed integers (experts, outputs, bytes), scales for each row or each block of one, optional zero points."""

    def __init__(
        self, op: Operation, specs: Sequence[Spec], at: tuple[int, int, int], inputs: int, name: str
    ) -> None:
        self.at = at
        w, scale, zero = tensor(op, specs, at[0]), tensor(op, specs, at[1]), given(specs, at[2])
        bits = int(op.attr(f"{name}_expert_weight_bits") or op.attr("expert_weight_bits", 4))
        require_width(op, bits, (2, 3, 4, 8))
        block = int(op.attr("block_size", 0) or 0)
        if w.dtype != UINT8 or len(w.shape) != 3 or w.shape[2] != packed_bytes(inputs, bits):
            fail(op, f"weights {w} for {inputs} inputs of {bits} bits", f"{name}_experts_weights")
        if block > 0 and inputs % require_block(op, block, least=16):
            fail(op, f"blocks of {block} do not divide {inputs} inputs", "block_size")
        self.experts, self.outputs = w.shape[:2]
        self.by_row = block <= 0
        self.blocks = Blocks(self.outputs, inputs, max(1, inputs) if self.by_row else block, bits)
        n, count = self.outputs, self.blocks.count
        if scale.size != self.experts * n * count:
            fail(op, f"of shape {list(scale.shape)}, expected {[self.experts, n, count]}", f"{name}_scales")
        width = packed_bytes(n, bits) if self.by_row else n * self.blocks.zero_bytes
        if zero is not None and (zero.dtype != UINT8 or zero.size != self.experts * width):
            fail(op, f"{zero} is not {self.experts} x {width} bytes", f"{name}_zero_points")

    def bind(self, operands: Sequence[Any], xp: Any) -> Matrix:
        """The experts' matrices over these operands."""
        w, scale, zero = ((*operands, *(None,) * 14)[i] for i in self.at)

        def make(expert: int) -> Array:
            out = xp.empty((self.blocks.rows, self.blocks.depth), FLOAT32)
            shift = None if zero is None else zero[expert]
            if shift is not None and self.by_row:  # one for each row, packed across the rows
                shift = unpack(xp, shift.reshape(-1), self.blocks.bits, self.outputs).astype(FLOAT32)
            self.blocks.dequantize(xp, w[expert], scale[expert], shift, out)
            return out

        return _per_expert(xp, ("QMoE", self.blocks), (w, scale, zero), make)


class Float8Bank:
    """float8e4m3fn (experts, outputs, inputs), with a scale for each square block or one for each expert."""

    def __init__(
        self, op: Operation, specs: Sequence[Spec], at: tuple[int, int, int], inputs: int, name: str
    ) -> None:
        w = tensor(op, specs, at[0])
        if w.dtype != FLOAT8 or len(w.shape) != 3 or w.shape[2] != inputs:
            fail(op, f"weights {w} for {inputs} inputs", f"{name}_experts_weights")
        self.experts, self.outputs = w.shape[:2]
        self.block = int(op.attr("block_size", 0) or 0)
        self.at = at[0], at[1] if self.block > 0 else at[2]
        scale = tensor(op, specs, self.at[1])
        expected: tuple[int, ...] = (self.experts,)
        if self.block > 0:
            expected = (self.experts, -(-self.outputs // self.block), -(-inputs // self.block))
        if scale.shape != expected:
            fail(op, f"of shape {list(scale.shape)}, expected {list(expected)}", f"{name}_scales")

    def bind(self, operands: Sequence[Any], xp: Any) -> Matrix:
        """The experts' matrices over these operands."""
        w, scale = (operands[i] for i in self.at)

        def make(expert: int) -> Array:
            out = w[expert].astype(FLOAT32)
            factor = scale[expert].astype(FLOAT32)
            if self.block > 0:
                rows, columns = (xp.arange(d) // self.block for d in out.shape)
                factor = factor.take(rows, 0).take(columns, 1)
            xp.multiply(out, factor, out=out)
            return out

        return _per_expert(xp, ("QMoE float8", self.block), (w, scale), make)


Bank = FloatBank | PackedBank | Float8Bank


def quantised_bank(
    op: Operation, specs: Sequence[Spec], at: tuple[int, int, int, int], inputs: int, name: str
) -> Bank:
    """The bank of QMoE's layer `name` ("fc1"…) whose weights, scales, zero points and global scale stand at `at`.

    Raises: UnsupportedError for other than integers and float8.
    """
    kind = text_of(op, "quant_type", "int")
    if kind == "int":
        return PackedBank(op, specs, at[:3], inputs, name)
    if kind == "fp8":
        return Float8Bank(op, specs, (at[0], at[1], at[3]), inputs, name)
    raise UnsupportedError(f"experts of {kind}", op=op.id, node=op.name, operand="quant_type")
