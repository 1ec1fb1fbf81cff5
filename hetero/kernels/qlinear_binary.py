"""QLinearAdd and QLinearMul of com.microsoft: elementwise arithmetic on bytes, rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import broadcast, one_dtype
from hetero.kernels.fused import piece_elements
from hetero.kernels.quantized import BYTES, one_number, one_scale
from hetero.kernels.quiet import Quiet
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

FLOAT64 = np.dtype(np.float64)
_A, _A_SCALE, _A_ZERO, _B, _B_SCALE, _B_ZERO, _C_SCALE, _C_ZERO = range(8)
Numbers = tuple[Any, ...]
"""What a step needs beside its operands, made from scales and zero points on each call."""


def merged(a: Sequence[int], b: Sequence[int]) -> tuple[list[int], list[int]]:
    """Two shapes of one rank that broadcast, with neighbouring axes joined where both operands run over them alike."""
    first: list[int] = []
    second: list[int] = []
    for m, n in zip(a, b, strict=True):
        if m == 1 and n == 1:
            continue
        if first and (m == 1) == (first[-1] == 1) and (n == 1) == (second[-1] == 1):
            first[-1] *= m
            second[-1] *= n
        else:
            first.append(m)
            second.append(n)
    return first or [1], second or [1]


def _scalars(inputs: Sequence[Any]) -> Numbers:
    """Scale of a, zero point of a, the same of b and c, as NumPy float32 scalars."""
    found = []
    for index in (_A_SCALE, _A_ZERO, _B_SCALE, _B_ZERO, _C_SCALE, _C_ZERO):
        value = inputs[index] if index < len(inputs) else None
        found.append(np.float32(0) if value is None else value.reshape(())[()].astype(np.float32))
    return tuple(found)


def _add_numbers(inputs: Sequence[Any]) -> Numbers:
    a_scale, a_zero, b_scale, b_zero, c_scale, c_zero = _scalars(inputs)
    a, b = a_scale / c_scale, b_scale / c_scale
    fixed = np.float32(np.float64(a) * a_zero + np.float64(b * b_zero))
    return np.float64(a), np.float64(b), np.float64(c_zero - fixed)


def _add(xp: Any, numbers: Numbers, a: Array, b: Array, wide: Array, other: Array, narrow: Array) -> None:
    """wide = a_scale / c_scale * a + (b_scale / c_scale * b + what the zero points come to), as float32.

    In two multiply-adds that each round once to float32, as processors make them and so onnxruntime: a product of
    two float32 is exact in float64.
    """
    a_ratio, b_ratio, fixed = numbers
    xp.multiply(b, b_ratio, out=other)
    xp.add(other, fixed, out=other)
    xp.copyto(narrow[: other.size].reshape(other.shape), other, casting="same_kind")
    xp.copyto(other, narrow[: other.size].reshape(other.shape))
    xp.multiply(a, a_ratio, out=wide)
    xp.add(wide, other, out=wide)


def _mul_numbers(inputs: Sequence[Any]) -> Numbers:
    a_scale, a_zero, b_scale, b_zero, c_scale, c_zero = _scalars(inputs)
    return a_scale * b_scale / c_scale, np.float64(a_zero), np.float64(b_zero), c_zero


def _mul(xp: Any, numbers: Numbers, a: Array, b: Array, wide: Array, other: Array, narrow: Array) -> None:
    """wide = (a - zero) (b - zero) a_scale b_scale / c_scale + c's zero point, rounding to float32 after each step."""
    ratio, a_zero, b_zero, c_zero = numbers
    xp.subtract(a, a_zero, out=wide)
    xp.subtract(b, b_zero, out=other)
    xp.multiply(wide, other, out=wide)
    single = narrow[: wide.size].reshape(wide.shape)
    xp.copyto(single, wide, casting="same_kind")
    xp.multiply(single, ratio, out=single)
    xp.add(single, c_zero, out=single)
    xp.copyto(wide, single)


def _compile(
    op: Operation,
    specs: Sequence[Spec],
    xp: Any,
    numbers: Callable[[Sequence[Any]], Numbers],
    step: Callable[..., None],
) -> Compiled:
    """A, its scale and zero point, B, its scale and zero point, scale and zero point of C (zero points optional) -> C
    in the bytes of A and B, which broadcast; rounded half to even and saturated."""
    a, b = tensor(op, specs, _A), tensor(op, specs, _B)
    zeros = [given(specs, i) for i in (_A_ZERO, _B_ZERO, _C_ZERO)]
    dtype = one_dtype(op, (a, b, *(z for z in zeros if z is not None)), BYTES)
    for index, name in ((_A_SCALE, "A_scale"), (_B_SCALE, "B_scale"), (_C_SCALE, "C_scale")):
        one_scale(op, specs, index, name)
    for zero, name in zip(zeros, ("A_zero_point", "B_zero_point", "C_zero_point"), strict=True):
        one_number(op, zero, name)
    output = TensorSpec(dtype, broadcast(op, a, b))
    rank = len(output.shape)
    first, second = merged(*((1,) * (rank - len(s.shape)) + s.shape for s in (a, b)))
    whole = [max(m, n) if m and n else 0 for m, n in zip(first, second, strict=True)]
    row = output.size // whole[0] if whole[0] else 1
    rows = max(1, piece_elements(xp, TensorSpec(FLOAT64, output.shape)) // max(1, row))
    length = min(output.size, rows * row)
    parts: tuple[Part, ...] = (((length,), FLOAT64), ((length,), FLOAT64), ((length,), np.float32))
    limits = np.iinfo(dtype)

    def piece(array: Array, shape: list[int], i: int) -> Array:
        array = array.reshape(shape)
        return array[i : i + rows] if shape[0] > 1 else array

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        scratch, extra, narrow = carve(workspace, *parts)
        out = outputs[0].reshape(whole)
        jobs = []
        for i in range(0, whole[0] if output.size else 0, rows):
            x, y = piece(inputs[_A], first, i), piece(inputs[_B], second, i)
            target = out[i : i + rows]
            wide = scratch[: target.size].reshape(target.shape)
            jobs.append((x, y, wide, extra[: y.size].reshape(y.shape), narrow, target))

        def call() -> None:
            values = numbers(inputs)
            for *operands, target in jobs:
                step(xp, values, *operands)
                wide = operands[2]
                single = narrow[: wide.size].reshape(wide.shape)
                xp.copyto(single, wide, casting="same_kind")
                xp.rint(single, out=single)
                xp.clip(single, limits.min, limits.max, out=single)
                xp.copyto(target, single, casting="unsafe")

        return Quiet(call)

    return computed((output,), bind, contiguous=(_A, _B), workspace_bytes=carved_bytes(*parts))


@kernel("QLinearAdd", domain="com.microsoft", versions=(1,))
def qlinear_add(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A + B of bytes; operands as `_compile` says."""
    return _compile(op, specs, xp, _add_numbers, _add)


@kernel("QLinearMul", domain="com.microsoft", versions=(1,))
def qlinear_mul(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A * B of bytes; operands as `_compile` says."""
    return _compile(op, specs, xp, _mul_numbers, _mul)
