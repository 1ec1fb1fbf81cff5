"""Products of a few rows with many turned matrices, compiled: the scores of a step, whose keys lie as rows."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.broadcasting import elements
from hetero.kernels.jit import PARALLEL_ELEMENTS, enabled, jit, prange
from hetero.kernels.jit_lanes import dots_at, rows_at
from hetero.kernels.row_loops import address, aligned, calls_then
from hetero.kernels.shifting import bind_numbers, places_of
from hetero.types import Array

MOST_ROWS = 4
DEPTHS, FEWEST_COLUMNS = range(16, 257), 256
"""Of keys: as long as heads are, and so many that to turn them would take longer than the product."""
_FLOAT32 = np.dtype(np.float32)
_BLOCK = 64
"""Columns at a time: their elements stay in the first cache for all rows."""


def _products_numpy(words: Any, places: Any) -> None:
    """The compiled function's result, matrix by matrix."""
    m, k, n, step = (int(w) for w in words)
    for a, b, out in zip(*places.tolist(), strict=True):
        rows_at(out, 4 * n, m, n)[:] = rows_at(a, 4 * k, m, k) @ rows_at(b, step, n, k).T


@jit("i8[1], i8[2]", twin=_products_numpy, exact=True)
def products(words: Array, places: Array) -> None:
    """out = a b for matrices (m, k) and (k, n) at the addresses `places` (3, matrices); `b` has its columns as dense
    rows. `words`: m, k, n, and bytes from one column of `b` to the next."""
    m, k, n, step = words[0], words[1], words[2], words[3]
    for i in prange(places.shape[1]):
        for block in range(0, n, _BLOCK):
            count = min(_BLOCK, n - block)
            for r in range(m):
                dots_at(
                    places[0, i] + 4 * r * k, places[1, i] + block * step, step,
                    places[2, i] + 4 * (r * n + block), k, count,
                )  # fmt: skip


def is_few_rows(xp: Any, a: tuple[int, ...], b: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether these loops are for the product of operands of these shapes, which alone decide: `b` is then wanted
    turned, and laid out so where it is not."""
    if xp is not np or dtype != _FLOAT32 or len(a) < 2 or len(b) < 3 or elements(b[:-2]) < 2:
        return False
    few = 1 <= a[-2] <= MOST_ROWS and a[-1] in DEPTHS and b[-1] >= FEWEST_COLUMNS
    return few and elements(a) > 0 and enabled()


def bind_few_rows(a: Array, b: Array, out: Array) -> Call:
    """The call out = a @ b for operands that `is_few_rows` takes: the matrices of `a` and `out` are contiguous, and
    those of `b` either way."""
    turned = b.swapaxes(-1, -2)
    if turned.strides[-1] == turned.itemsize and turned.flags.aligned:
        return bind_matrices(products, a, turned, turned.shape[:-2], turned.strides[:-2], out.shape[:-2], out)
    rows = np.empty(turned.shape, turned.dtype)
    call = bind_matrices(products, a, rows, rows.shape[:-2], rows.strides[:-2], out.shape[:-2], out)
    return calls_then([partial(np.copyto, rows, turned)], call)


def bind_matrices(
    loops: Any,
    a: Array,
    b: Array,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    batch: tuple[int, ...],
    out: Array,
) -> Call:
    """The call of `loops`, which take matrices at addresses as `products` does: the contiguous ones of `a` and `out`,
    and those that `b` has as dense rows, of `shape` and `strides` (bytes), and broadcast to `batch`, which has as many
    as `out`."""
    calls, a = aligned(a)
    own = out.shape[:-2]
    words = *a.shape[-2:], out.shape[-1], b.strides[-2]
    parallel = out.size * a.shape[-1] >= 16 * PARALLEL_ELEMENTS
    call = bind_numbers(loops, words, elements(own), (a, b, out), parallel)
    places = places_of(call)
    for row, x in ((places[0], a), (places[2], out)):
        np.add(offsets(x.shape[:-2], x.strides[:-2], own), address(x), out=row)
    np.add(offsets(shape, strides, batch), address(b), out=places[1])
    return calls_then(calls, call)


@lru_cache(maxsize=64)
def offsets(shape: tuple[int, ...], strides: tuple[int, ...], batch: tuple[int, ...]) -> Array:
    """Where the matrices of an array lie from its first element on, broadcast to `batch`, in order (bytes, int64).
    The layers of a model ask for the same again and again."""
    missing = len(batch) - len(shape)
    offsets = np.zeros(1, np.int64)
    for extent, own, stride in zip(batch, (1,) * missing + shape, (0,) * missing + strides, strict=True):
        steps = np.arange(extent, dtype=np.int64) * (stride if own != 1 else 0)
        offsets = np.add.outer(offsets, steps).ravel()
    return offsets
