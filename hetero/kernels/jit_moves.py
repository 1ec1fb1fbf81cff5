"""Moving and adding sixteen float32 at a time: LLVM's vectors, since no compiler can know that source and target lie
apart."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

from hetero.kernels.jit import floats_at, native
from hetero.kernels.jit_lanes import LANES, Writer, rows_at

REACH_BYTES = 4 * 2 * LANES
"""From where they begin to read: the most that these functions touch."""


def _mover(step: int) -> Callable[[Any], Any]:
    return lambda numba: _move(numba, step)


def _adder(numba: Any) -> Any:
    return _addition(numba)


@native(_mover(1))
def move_at(source: int, target: int) -> Any:
    """Sixteen float32 that lie one after the other."""
    floats_at(target, LANES)[:] = floats_at(source, LANES).copy()
    return 0


@native(_mover(2))
def move_evens_at(source: int, target: int) -> Any:
    """Every second one of 32 float32, the first among them."""
    floats_at(target, LANES)[:] = floats_at(source, 2 * LANES)[::2].copy()
    return 0


@cache
def _move(numba: Any, step: int) -> Any:
    """What numba compiles these calls to."""
    int64 = numba.types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = Writer(builder)
        source, target = arguments
        found = write.load(write.vector, source, write.number(0))
        if step == 2:
            more = write.load(write.vector, source, write.number(LANES))
            found = write.shuffled(found, more, list(range(0, 2 * LANES, 2)))
        write.store(found, target, write.number(0))
        return write.number(0)

    def typed(typing: Any, source: Any, target: Any) -> Any:
        return int64(int64, int64), generate

    return importlib.import_module("numba.extending").intrinsic(typed)


@native(_adder)
def add_to_rows_at(source: int, target: int, step: int, count: int) -> Any:
    """Sixteen float32 added to those of each of `count` rows that lie `step` bytes apart."""
    rows = rows_at(target, step, count, LANES)
    rows += floats_at(source, LANES)
    return 0


@cache
def _addition(numba: Any) -> Any:
    """What numba compiles these calls to."""
    int64 = numba.types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = Writer(builder)
        source, target, step, count = arguments
        zero = write.number(0)
        shift = write.load(write.vector, source, zero)
        with write.loop(zero, count, 1) as (i, _):
            row = builder.add(target, builder.mul(i, step))
            write.store(builder.fadd(write.load(write.vector, row, zero), shift), row, zero)
        return zero

    def typed(typing: Any, source: Any, target: Any, step: Any, count: Any) -> Any:
        return int64(int64, int64, int64, int64), generate

    return importlib.import_module("numba.extending").intrinsic(typed)
