"""Softmax over the rows of float32 matrices, compiled: exponentials in vectors, with multiply-adds that round once, and
their sum on the way. Every row has one order, so its bits hang on nothing beside it."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np

from hetero.kernels.jit import floats_at, jit, native, prange
from hetero.kernels.jit_lanes import LANES, Writer, max_at, rows_at
from hetero.types import Array

_ONE = np.float32(1)
_LOWEST = -87.33
"""Below it, exponentials are denormal numbers beside a sum of at least 1: they become 0."""
_LOG2E, _LN2_HIGH, _LN2_LOW, _ROUNDER = 1.44269504, 0.693359375, -2.12194440e-4, 12582912.0
_ROUNDER_BITS, _BIAS, _SHIFT = 0x4B400000, 127, 23
# exp(r) for |r| <= ln(2)/2: Cephes' expf
_CEPHES = (
    *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3),
    *(4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
)


def _compiled(numba: Any) -> Any:
    return _exponentials(numba)


@native(_compiled)
def exponentials_at(source: int, target: int, n: int, top: Any) -> Any:
    """exp(x - top) of `n` float32, none of them greater than `top`, from an address to another one or the same; and
    their sum. NaN gives NaN."""
    out = floats_at(target, n)
    with np.errstate(all="ignore"):
        np.exp(floats_at(source, n) - top, out=out)
    return out.sum(dtype=np.float32)


@cache
def _exponentials(numba: Any) -> Any:
    """What numba compiles these calls to."""
    int64, float32 = numba.types.int64, numba.types.float32

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target, n, top = arguments
        write = Writer(builder)
        zero, whole = write.number(0), write.whole(n)
        tops = write.spread(top)
        lanes = write.variable(write.vector, 0.0)
        with write.loop(zero, whole, LANES) as (i, _):
            value = _exponential(write, builder.fsub(write.load(write.vector, source, i), tops))
            write.store(value, target, i)
            builder.store(builder.fadd(builder.load(lanes), value), lanes)
        found = builder.load(lanes)
        while found.type.count > 1:
            found = write.halves(found, builder.fadd)
        total = write.variable(write.single, 0.0)
        builder.store(builder.extract_element(found, write.ir.Constant(write.ir.IntType(32), 0)), total)
        with write.loop(whole, n, 1) as (i, _):
            value = _exponential(write, builder.fsub(write.load(write.single, source, i), top))
            write.store(value, target, i)
            builder.store(builder.fadd(builder.load(total), value), total)
        return builder.load(total)

    def typed(typing: Any, source: Any, target: Any, n: Any, top: Any) -> Any:
        return float32(int64, int64, int64, float32), generate

    return importlib.import_module("numba.extending").intrinsic(typed)


def _exponential(write: Writer, x: Any) -> Any:
    """exp(x) of a value or a vector for x <= 0, to 2 units in the last place."""
    builder, ir = write.builder, write.ir
    type_ = x.type
    vector = type_ == write.vector
    integer = ir.VectorType(ir.IntType(32), LANES) if vector else ir.IntType(32)

    def constant(kind: Any, value: float) -> Any:
        return ir.Constant(kind, [value] * LANES if vector else value)

    def number(value: float) -> Any:
        return constant(type_, float(np.float32(value)))

    small = builder.fcmp_ordered("<", x, number(_LOWEST))
    x = builder.select(small, number(_LOWEST), x)
    shifted = write.multiplied(x, number(_LOG2E), number(_ROUNDER))
    n = builder.fsub(shifted, number(_ROUNDER))
    r = write.multiplied(n, number(-_LN2_HIGH), x)
    r = write.multiplied(n, number(-_LN2_LOW), r)
    p = number(_CEPHES[0])
    for coefficient in _CEPHES[1:]:
        p = write.multiplied(p, r, number(coefficient))
    y = builder.fadd(write.multiplied(p, builder.fmul(r, r), r), number(1.0))
    power = builder.sub(builder.bitcast(shifted, integer), constant(integer, _ROUNDER_BITS - _BIAS))
    scale = builder.bitcast(builder.shl(power, constant(integer, _SHIFT)), type_)
    return builder.select(small, number(0.0), builder.fmul(y, scale))


def _softmax_numpy(words: Any) -> None:
    """The compiled function's result, by whole arrays."""
    x, out = (rows_at(int(words[at]), 4 * int(words[1]), int(words[0]), int(words[1])) for at in (2, 3))
    with np.errstate(all="ignore"):
        e = np.exp(x - np.fmax.reduce(x, 1, keepdims=True))
        out[:] = e / e.sum(1, keepdims=True)


@jit("i8[1]", twin=_softmax_numpy, exact=True)
def softmax_rows(words: Array) -> None:
    """`words`: rows, width, addresses of x and of out, which may be one."""
    width = words[1]
    for r in prange(words[0]):
        at, target = words[2] + 4 * r * width, words[3] + 4 * r * width
        total = exponentials_at(at, target, width, max_at(at, width))
        out, factor = floats_at(target, width), _ONE / total
        for j in range(width):
            out[j] *= factor
