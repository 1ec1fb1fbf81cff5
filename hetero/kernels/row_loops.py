"""Loops over the rows of float32 matrices, compiled: norms and means, each row in one call and one order."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.jit import PARALLEL_ELEMENTS, enabled, floats_at, jit, prange
from hetero.kernels.jit_call import bound
from hetero.kernels.jit_lanes import rows_at, squares_at, sum_at
from hetero.types import Array

(ROWS, WIDTH, CENTRED, X, OUT, SCALE, SHIFT, MEAN, INVERSE, SKIP, SKIP_ROWS, BIAS, TOTAL, WORDS) = range(14)
"""Places of the words of a norm: sizes, a flag, and addresses, 0 for what is not there."""
MOST_WIDTH = 1 << 14
"""Elements of a row up to which these loops are used: longer sums are more precise in pairs, as NumPy's."""
_FLOAT32 = np.dtype(np.float32)
_ONE = np.float32(1)


def _norm_numpy(words: Any, epsilon: Any) -> None:
    """The compiled function's result, by whole arrays."""
    w = [int(x) for x in words]
    rows, width = w[ROWS], w[WIDTH]
    x, out = (rows_at(w[at], 4 * width, rows, width) for at in (X, OUT))
    if w[SKIP]:
        x = x + np.resize(rows_at(w[SKIP], 4 * width, w[SKIP_ROWS], width), x.shape)
        if w[BIAS]:
            x = x + floats_at(w[BIAS], width)
        rows_at(w[TOTAL], 4 * width, rows, width)[:] = x
    if w[CENTRED]:
        mean = x.mean(1, keepdims=True, dtype=np.float32)
        x = x - mean
        if w[MEAN]:
            floats_at(w[MEAN], rows)[:] = mean[:, 0]
    with np.errstate(all="ignore"):
        inverse = _ONE / np.sqrt(np.square(x).mean(1, keepdims=True, dtype=np.float32) + epsilon[0])
        if w[INVERSE]:
            floats_at(w[INVERSE], rows)[:] = inverse[:, 0]
        found = x * inverse
        found = found * floats_at(w[SCALE], width) if w[SCALE] else found
        out[:] = found + floats_at(w[SHIFT], width) if w[SHIFT] else found


@jit("i8[1], f4[1]", twin=_norm_numpy, exact=True)
def norm(words: Array, epsilon: Array) -> None:
    """Rows of `x` (of `x` + `skip` + `bias`, which `total` gets) to mean 0 and variance 1, or mean square 1, then
    times `scale` plus `shift`."""
    width = words[WIDTH]
    for r in prange(words[ROWS]):
        at, target = words[X] + 4 * r * width, words[OUT] + 4 * r * width
        out = floats_at(target, width)
        if words[SKIP]:
            x = floats_at(at, width)
            skip = floats_at(words[SKIP] + 4 * (r % words[SKIP_ROWS]) * width, width)
            at = words[TOTAL] + 4 * r * width
            total = floats_at(at, width)
            for j in range(width):
                total[j] = x[j] + skip[j]
            if words[BIAS]:
                bias = floats_at(words[BIAS], width)
                for j in range(width):
                    total[j] += bias[j]
        source = floats_at(at, width)
        if words[CENTRED]:
            mean = sum_at(at, width) / np.float32(width)
            if words[MEAN]:
                floats_at(words[MEAN], words[ROWS])[r] = mean
            for j in range(width):
                out[j] = source[j] - mean
            at = target
        inverse = _ONE / np.sqrt(squares_at(at, width) / np.float32(width) + epsilon[0])
        if words[INVERSE]:
            floats_at(words[INVERSE], words[ROWS])[r] = inverse
        source = floats_at(at, width)
        if (
            at == target
        ):  # compiled loops are vectors only where what they read and write is one array, or lies apart
            for j in range(width):
                out[j] *= inverse
        else:
            for j in range(width):
                out[j] = source[j] * inverse
        if words[SCALE]:
            scale = floats_at(words[SCALE], width)
            for j in range(width):
                out[j] *= scale[j]
        if words[SHIFT]:
            shift = floats_at(words[SHIFT], width)
            for j in range(width):
                out[j] += shift[j]


def _mean_numpy(words: Any) -> None:
    """The compiled function's result, by whole arrays."""
    x = rows_at(int(words[2]), 4 * int(words[1]), int(words[0]), int(words[1]))
    floats_at(int(words[3]), int(words[0]))[:] = x.mean(1, dtype=np.float32)


@jit("i8[1]", twin=_mean_numpy, exact=True)
def mean_rows(words: Array) -> None:
    """`words`: rows, width, addresses of x (rows, width) and of out (rows,)."""
    width = words[1]
    for r in prange(words[0]):
        out = floats_at(
            words[3] + 4 * r, 1
        )  # within the loop: an array from outside of it gets nothing on threads
        out[0] = sum_at(words[2] + 4 * r * width, width) / np.float32(width)


def takes_rows(xp: Any, rows: int, width: int, *dtypes: np.dtype[Any]) -> bool:
    """Whether these loops are for rows of this width and these dtypes, by which alone it is decided."""
    floats = all(dtype == _FLOAT32 for dtype in dtypes)
    return xp is np and floats and 0 < width <= MOST_WIDTH and rows > 0 and enabled()


def bind_unary(function: Any, rows: int, width: int, x: Array, out: Array) -> Call:
    """The call of `mean_rows` or `softmax_rows` over a contiguous `x` of so many rows."""
    calls, source = aligned(x)
    words = np.array([rows, width, address(source), address(out)], np.int64)
    call = bound(function.variant(words, parallel=rows > 1 and 2 * rows * width >= PARALLEL_ELEMENTS), words)
    call.__dict__["operands"] = source, out  # the words are only numbers
    return calls_then(calls, call)


def bind_norm(
    rows: int,
    width: int,
    centred: bool,
    epsilon: float,
    arrays: dict[int, Array | None],
) -> Call:
    """The call of `norm`. `arrays`: contiguous, by their places X to INVERSE, SKIP, BIAS and TOTAL."""
    words = np.zeros(WORDS, np.int64)
    words[:X] = rows, width, centred
    calls: list[Call] = []
    kept = []
    for place, array in arrays.items():
        if array is None:
            continue
        if place in (X, SCALE, SHIFT, SKIP, BIAS):
            copies, array = aligned(array)
            calls += copies
        words[place] = address(array)
        kept.append(array)
        if place == SKIP:
            words[SKIP_ROWS] = array.size // width
    numbers = np.array([epsilon], np.float32)
    parallel = rows > 1 and 2 * rows * width >= PARALLEL_ELEMENTS
    call = bound(norm.variant(words, numbers, parallel=parallel), words, numbers)
    call.__dict__["operands"] = kept  # the words are only numbers
    return calls_then(calls, call)


def calls_then(calls: list[Call], last: Call) -> Call:
    """One call that makes all of these."""
    if not calls:
        return last

    def call() -> None:
        for each in calls:
            each()
        last()

    return call


def aligned(array: Array) -> tuple[list[Call], Array]:
    """The array, or where it is not aligned to its items (a mapped file may hold such) a copy that each call makes."""
    if array.flags.aligned:
        return [], array
    copy = np.empty(array.shape, array.dtype)
    return [partial(np.copyto, copy, array)], copy


def address(array: Array) -> int:
    """Where the first element lies."""
    found: int = array.__array_interface__["data"][0]
    return found
