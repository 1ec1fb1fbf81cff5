"""Rotation of heads, compiled: angles are looked up where they are used, and each pair is read and written once."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.jit import PARALLEL_ELEMENTS, enabled, floats_at, jit, prange
from hetero.kernels.jit_call import bound
from hetero.types import Array

(BATCH, HEADS, LENGTH, SIZE, TURNED, INTERLEAVED, COS, SIN, ROWS, X, OUT, WORDS) = (*range(10), 13, 17)  # fmt: skip
"""Places of the words: sizes, flag, tables (rows, turned / 2) and their rows. At X and OUT: an address, and the bytes
from one batch entry, one head and one step to the next."""
_FLOAT32 = np.dtype(np.float32)


def _rotate_numpy(words: Any, positions: Any) -> None:
    """The compiled function's result, head by head."""
    batch, heads, length, size, turned, interleaved, cos, sin, rows = (int(w) for w in words[:X])
    half = turned // 2
    first, second = (
        (slice(0, turned, 2), slice(1, turned, 2)) if interleaved else (slice(half), slice(half, turned))
    )
    for b in range(batch):
        for s in range(length):
            row = int(positions[b % positions.shape[0], s])
            if not 0 <= row < rows:
                continue
            c, d = (floats_at(table + 4 * row * half, half) if half else np.empty(0) for table in (cos, sin))
            for h in range(heads):
                x, out = (
                    floats_at(
                        int(words[at] + b * words[at + 1] + h * words[at + 2] + s * words[at + 3]), size
                    )
                    for at in (X, OUT)
                )
                out[first] = x[first] * c - x[second] * d
                out[second] = x[second] * c + x[first] * d
                out[turned:] = x[turned:]


@jit("i8[1], i8[2]", twin=_rotate_numpy, exact=True)
def rotate(words: Array, positions: Array) -> None:
    """Turn `x` (batch, heads, length, size) into `out`, other memory, as `words` say. `positions` (batch or 1, length)
    are rows of the tables; heads at a position outside of them are left as they are."""
    heads, length, size, turned = words[HEADS], words[LENGTH], words[SIZE], words[TURNED]
    half = turned // 2
    for task in prange(words[BATCH] * length):
        b, s = task // length, task % length
        row = positions[b % positions.shape[0], s]
        if row >= 0 and row < words[ROWS]:
            cos, sin = (
                floats_at(words[COS] + 4 * row * half, half),
                floats_at(words[SIN] + 4 * row * half, half),
            )
            for h in range(heads):
                source = words[X] + b * words[X + 1] + h * words[X + 2] + s * words[X + 3]
                target = words[OUT] + b * words[OUT + 1] + h * words[OUT + 2] + s * words[OUT + 3]
                if words[INTERLEAVED]:
                    x, out = floats_at(source, size), floats_at(target, size)
                    for j in range(half):
                        first, second = x[2 * j], x[2 * j + 1]
                        out[2 * j] = first * cos[j] - second * sin[j]
                        out[2 * j + 1] = second * cos[j] + first * sin[j]
                else:
                    x1, x2 = floats_at(source, half), floats_at(source + 4 * half, half)
                    y1, y2 = floats_at(target, half), floats_at(target + 4 * half, half)
                    for j in range(half):
                        y1[j] = x1[j] * cos[j] - x2[j] * sin[j]
                    for j in range(half):
                        y2[j] = x2[j] * cos[j] + x1[j] * sin[j]
                x, out = floats_at(source, size), floats_at(target, size)
                for j in range(turned, size):
                    out[j] = x[j]


def rotates(xp: Any, *arrays: Array) -> bool:
    """Whether the compiled loops take these arrays: of float32 on the host, their last axis dense. They round as
    NumPy does, so that it makes no difference to the bits."""
    return (
        xp is np
        and enabled()
        and all(
            a.dtype == _FLOAT32
            and a.flags.aligned
            and a.size > 0
            and (a.shape[-1] == 1 or a.strides[-1] == 4)
            for a in arrays
        )
    )


def bind_rotate(
    x: Array, out: Array, tables: tuple[Array, Array], positions: Array, turned: int, interleaved: bool
) -> Call:
    """The call that turns `x` into `out`, both (batch, heads, length, size), by the rows `positions` (batch or 1,
    length) of contiguous tables."""
    words = np.zeros(WORDS, np.int64)
    words[:X] = (
        *x.shape,
        turned,
        interleaved,
        *(_address(t) for t in tables),
        tables[0].size // (turned // 2),
    )
    for at, array in ((X, x), (OUT, out)):
        words[at : at + 4] = _address(array), *array.strides[:3]
    call = bound(rotate.variant(words, positions, parallel=x.size >= PARALLEL_ELEMENTS), words, positions)
    call.__dict__["operands"] = x, out, tables  # the words are only numbers
    return call


def _address(array: Array) -> int:
    found: int = array.__array_interface__["data"][0]
    return found
