"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear: per tensor, per axis and per block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.convert import FLOAT8, conversion
from hetero.kernels.fused import in_turn, piece_elements
from hetero.kernels.operands import axis_of, dtype_attribute, fail
from hetero.kernels.quiet import Quiet, quiet
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec, TensorSpec

FLOAT32, INT32, UINT8 = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.uint8)
_BOUNDS = {
    np.dtype(t): (low, high)
    for t, low, high in (
        (np.int8, -128, 127), (np.uint8, 0, 255), (np.int16, -32768, 32767), (np.uint16, 0, 65535),
        (ml_dtypes.int4, -8, 7), (ml_dtypes.uint4, 0, 15), (ml_dtypes.int2, -2, 1), (ml_dtypes.uint2, 0, 3),
    )
}  # fmt: skip
NARROW_FLOATS = FLOAT8 | {
    np.dtype(t) for t in (ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn)
}
QUANTIZED = frozenset(_BOUNDS) | NARROW_FLOATS


@dataclass(frozen=True, slots=True)
class Grain:
    """Which elements share a scale: `axis` with one scale each, with blocks of `block` there, or None for all."""

    axis: int | None
    block: int

    def split(self, whole: Array, scale: Array | None) -> list[tuple[Array, Array | None]]:
        """Views of a tensor, each with the view of the scale (or zero point) that broadcasts to it."""
        if self.axis is None:
            return [(whole, None if scale is None else scale.reshape(()))]
        axis, ndim = self.axis, whole.ndim
        if not self.block:
            shape = (-1, *(1,) * (ndim - axis - 1))
            return [(whole, None if scale is None else scale.reshape(shape))]
        full = whole.shape[axis] // self.block
        ahead = (slice(None),) * axis
        pieces = []
        if full:
            part = whole[(*ahead, slice(0, full * self.block))]
            shape = (*part.shape[:axis], full, self.block, *part.shape[axis + 1 :])
            per = None if scale is None else _expanded(scale[(*ahead, slice(0, full))], axis + 1)
            pieces.append((part.reshape(shape), per))
        if full * self.block < whole.shape[axis]:
            rest = None if scale is None else scale[(*ahead, slice(full, full + 1))]
            pieces.append((whole[(*ahead, slice(full * self.block, None))], rest))
        return pieces


def _expanded(array: Array, axis: int) -> Array:
    """A view with an extent of 1 put in at `axis`."""
    return array[(*(slice(None),) * axis, None)]


def grain_of(op: Operation, x: TensorSpec, scale: TensorSpec, zero: TensorSpec | None) -> Grain:
    """How the scale is shared. Raises: KernelError where scale or zero point do not fit the input."""
    if zero is not None and zero.shape != scale.shape and (zero.size, scale.size) != (1, 1):
        fail(op, f"of shape {list(zero.shape)}, the scale is of {list(scale.shape)}", "zero_point")
    if scale.size == 1 and len(scale.shape) <= 1:
        return Grain(None, 0)
    if op.version < 13 and not op.domain:
        fail(op, f"must be a scalar, has shape {list(scale.shape)}", "scale")
    axis = axis_of(op, int(op.attr("axis", 1)), len(x.shape))
    block = int(op.attr("block_size", 0))
    if block <= 0:
        if scale.shape != (x.shape[axis],):
            fail(op, f"of shape {list(scale.shape)} for axis {axis} of {list(x.shape)}", "scale")
        return Grain(axis, 0)
    expected = (*x.shape[:axis], -(-x.shape[axis] // block), *x.shape[axis + 1 :])
    if scale.shape != expected:
        fail(op, f"of shape {list(scale.shape)}, blocks of {block} need {list(expected)}", "scale")
    return Grain(axis, block)


def _cut(xp: Any, x: Array, *others: Array | None) -> list[list[Array | None]]:
    """The arrays in pieces along the first axis of `x`; what broadcasts along it stays whole."""
    arrays = [x, *others]
    if x.ndim == 0 or x.size == 0:
        return [arrays] if x.size else []
    rows = max(1, piece_elements(xp, TensorSpec(FLOAT32, x.shape)) * x.shape[0] // x.size)
    return [
        [
            a[i : i + rows] if a is not None and a.ndim == x.ndim and a.shape[0] == x.shape[0] else a
            for a in arrays
        ]
        for i in range(0, x.shape[0], rows)
    ]


def _largest_piece(xp: Any, x: TensorSpec) -> int:
    """Elements of scratch that hold any piece of `_cut`."""
    row = x.size // x.shape[0] if x.shape and x.shape[0] else 1
    return min(x.size, max(piece_elements(xp, TensorSpec(FLOAT32, x.shape)), row))


def _to_integers(
    xp: Any, low: int, high: int, x: Array, y: Array, scale: Array, zero: Array | None, t: Array, wide: Array
) -> None:
    """y = saturate(round(x / scale) + zero): the quotient rounds in t's dtype, the sum is made in float32."""
    _divide(xp, x, scale, t)
    xp.rint(t, t)
    if wide is not t:
        wide[...] = t
    if zero is not None:
        xp.add(wide, zero, wide)
    wide.clip(low, high, wide)
    y[...] = wide


def _to_floats(
    xp: Any,
    convert: Callable[..., None],
    n_scratch: int,
    x: Array,
    y: Array,
    scale: Array,
    zero: Array | None,
    t: Array,
    wide: Array,
) -> None:
    """y = x / scale + zero, cast."""
    _divide(xp, x, scale, t)
    if wide is not t:
        wide[...] = t
    if zero is not None:
        xp.add(wide, zero, wide)
    convert(wide, y, *(wide,) * n_scratch)


def _divide(xp: Any, x: Array, scale: Array, t: Array) -> None:
    if x.dtype == t.dtype:
        xp.divide(x, scale, t)
    else:
        t[...] = x
        xp.divide(t, scale, t)


@kernel("QuantizeLinear", versions=(10, 13, 19, 21, 23, 24, 25, 28))
@kernel("QuantizeLinear", versions=(1,), domain="com.microsoft")
def quantize_linear(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """x, scale, optional zero point -> x / scale, rounded half to even, plus zero point, saturated.

    The output has the zero point's dtype, or that of `output_dtype`, or uint8. The division is made in the scale's
    dtype, or in that of `precision`.
    """
    x, scale, zero = tensor(op, specs, 0), tensor(op, specs, 1), given(specs, 2)
    one_dtype(op, (x,), FLOATS | {INT32})
    target = dtype_attribute(op, "output_dtype") or (UINT8 if zero is None else zero.dtype)
    if target not in QUANTIZED or (zero is not None and zero.dtype != target):
        raise UnsupportedError(f"quantizing to {target}", op=op.id, node=op.name)
    quotient = (
        np.dtype(np.float64) if scale.dtype == INT32 else FLOAT32
    )  # two int32 have their quotient in float64
    precision = dtype_attribute(op, "precision") or (scale.dtype if scale.dtype in FLOATS else quotient)
    if precision not in FLOATS:
        raise UnsupportedError(f"scale of {scale.dtype}, division in {precision}", op=op.id, node=op.name)
    grain = grain_of(op, x, scale, zero)
    step: Callable[..., None]
    if target in _BOUNDS:
        step = partial(_to_integers, xp, *_BOUNDS[target])
    else:
        convert, scratch = conversion(xp, FLOAT32, target, saturate=bool(op.attr("saturate", 1)))
        step = partial(_to_floats, xp, convert, len(scratch))
    length = _largest_piece(xp, x)
    parts: list[Part] = [
        ((length,), precision),
        ((length if precision != FLOAT32 else 0,), FLOAT32),
        (scale.shape if scale.dtype != precision else (0,), precision),
        (zero.shape if zero is not None else (0,), FLOAT32),
    ]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        t, wide, own_scale, own_zero = carve(workspace, *parts)
        calls: list[Call] = []
        divisor, offset = _prepared(calls, inputs[1], own_scale), None
        if zero is not None:
            offset = _prepared(calls, inputs[2], own_zero)
        for piece in _pieces(xp, grain, inputs[0], outputs[0], divisor, offset):
            shaped = t[: piece[0].size].reshape(piece[0].shape)
            rounded = shaped if precision == FLOAT32 else wide[: piece[0].size].reshape(piece[0].shape)
            calls.append(partial(step, *piece, shaped, rounded))
        return Quiet(in_turn(calls))

    return computed((TensorSpec(target, x.shape),), bind, workspace_bytes=carved_bytes(*parts))


def _prepared(calls: list[Call], operand: Array, own: Array) -> Array:
    """The operand, or its copy in the dtype of the scratch `own` where that is its size."""
    if own.shape != operand.shape or own.dtype == operand.dtype:
        return operand
    calls.append(partial(own.__setitem__, ..., operand))
    return own


Piece = tuple[Array, Array, Array, Array | None]
"""x, y, scale and zero point, in views that broadcast together."""


def _pieces(xp: Any, grain: Grain, x: Array, y: Array, scale: Array, zero: Array | None) -> list[Piece]:
    """The whole in pieces small enough for the cache."""
    found: list[Piece] = []
    if grain.axis is None and x.flags.c_contiguous and y.flags.c_contiguous:
        x, y = x.reshape(-1), y.reshape(-1)  # or a batch of one image would be one piece
    zeros = grain.split(x, zero)
    for (a, s), (b, _), (_, z) in zip(grain.split(x, scale), grain.split(y, None), zeros, strict=True):
        found += [(p[0], p[1], p[2], p[3]) for p in _cut(xp, a, b, s, z)]
    return found


def _from_quantized(
    xp: Any, x: Array, y: Array, scale: Array, zero: Array | None, wide: Array | None
) -> None:
    """y = (x - zero) scale, made in float32."""
    result = y if wide is None else wide
    result[...] = x
    if zero is not None:
        xp.subtract(result, zero, result)
    xp.multiply(result, scale, result)
    if wide is not None:
        y[...] = wide


@kernel("DequantizeLinear", versions=(10, 13, 19, 21, 23, 24, 25, 28))
@kernel("DequantizeLinear", versions=(1,), domain="com.microsoft")
def dequantize_linear(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """x, scale, optional zero point -> (x - zero point) scale, in the scale's dtype or that of `output_dtype`."""
    x, scale, zero = tensor(op, specs, 0), tensor(op, specs, 1), given(specs, 2)
    if x.dtype not in QUANTIZED and x.dtype != INT32:
        raise UnsupportedError(f"dequantizing {x.dtype}", op=op.id, node=op.name)
    if zero is not None and zero.dtype != x.dtype:
        raise KernelError(f"zero point is {zero.dtype}, x is {x.dtype}", op=op.id, node=op.name)
    target = dtype_attribute(op, "output_dtype") or scale.dtype
    if target not in FLOATS:
        raise UnsupportedError(f"dequantizing to {target}", op=op.id, node=op.name)
    grain = grain_of(op, x, scale, zero)
    parts: list[Part] = [
        ((_largest_piece(xp, x) if target != FLOAT32 else 0,), FLOAT32),
        (scale.shape if scale.dtype != FLOAT32 else (0,), FLOAT32),
        (zero.shape if zero is not None else (0,), FLOAT32),
    ]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        wide, own_scale, own_zero = carve(workspace, *parts)
        calls: list[Call] = []
        factor, offset = _prepared(calls, inputs[1], own_scale), None
        if zero is not None:
            offset = _prepared(calls, inputs[2], own_zero)
        for piece in _pieces(xp, grain, inputs[0], outputs[0], factor, offset):
            shaped = None if target == FLOAT32 else wide[: piece[0].size].reshape(piece[0].shape)
            calls.append(partial(_from_quantized, xp, *piece, shaped))
        return Quiet(in_turn(calls))

    return computed((TensorSpec(target, x.shape),), bind, workspace_bytes=carved_bytes(*parts))


def find_range(xp: Any, x: Array, scale: Array, zero: Array, low: Array, high: Array, flat: Array) -> None:
    """Scale and zero point of the range of x with 0 in it, in 255 steps; a range of nothing has scale 1."""
    if x.size:
        x.min(None, low)
        x.max(None, high)
        xp.minimum(low, 0, out=low)
        xp.maximum(high, 0, out=high)
    else:
        low.fill(0)
        high.fill(0)
    xp.subtract(high, low, scale)
    xp.equal(scale, 0, flat)
    xp.divide(scale, 255, scale)
    xp.add(scale, flat, scale)
    xp.divide(low, scale, low)
    xp.negative(low, low)
    xp.rint(low, low)
    low.clip(0, 255, low)
    zero[...] = low


@kernel("DynamicQuantizeLinear", versions=(11,))
def dynamic_quantize_linear(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """x (float32) -> x in uint8, its scale (float32 scalar) and zero point (uint8 scalar)."""
    x = tensor(op, specs, 0)
    one_dtype(op, (x,), frozenset((FLOAT32,)))
    parts: list[Part] = [((), FLOAT32), ((), FLOAT32), ((), bool), ((_largest_piece(xp, x),), FLOAT32)]
    declared = (TensorSpec(UINT8, x.shape), TensorSpec(FLOAT32, ()), TensorSpec(UINT8, ()))
    whole = Grain(None, 0)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        low, high, flat, t = carve(workspace, *parts)
        y, scale, zero = outputs
        calls: list[Call] = [partial(find_range, xp, inputs[0], scale, zero, low, high, flat)]
        for piece in _pieces(xp, whole, inputs[0], y, scale, low):  # low holds the zero point as float32
            shaped = t[: piece[0].size].reshape(piece[0].shape)
            calls.append(partial(_to_integers, xp, 0, 255, *piece, shaped, shaped))
        return quiet(in_turn(calls))

    return computed(declared, bind, workspace_bytes=carved_bytes(*parts))
