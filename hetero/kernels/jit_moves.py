"""Moving sixteen float32 at a time: LLVM's vectors, since a compiler cannot know that source and target lie apart."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from hetero.kernels.jit import floats_at, native
from hetero.kernels.jit_lanes import LANES, Writer

REACH_BYTES = 4 * 2 * LANES
"""From where they begin to read: the most that these functions touch."""


@native(lambda numba: _move(numba, 1))
def move_at(source: int, target: int) -> Any:
    """Sixteen float32 that lie one after the other."""
    floats_at(target, LANES)[:] = floats_at(source, LANES).copy()
    return 0


@native(lambda numba: _move(numba, 2))
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
