"""Products of a few rows with many matrices, compiled: what a step mixes of values, which lie as rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.broadcasting import elements
from hetero.kernels.jit import enabled, floats_at, jit, prange
from hetero.kernels.jit_lanes import add_weighted_at, rows_at
from hetero.kernels.matmul_few import DEPTHS, FEWEST_COLUMNS, MOST_ROWS, bind_matrices
from hetero.kernels.row_loops import calls_then
from hetero.types import Array

WIDTHS, FEWEST_DEPTH = DEPTHS, FEWEST_COLUMNS
"""Of values: as wide as heads are, and so many that BLAS, matrix by matrix, is no faster."""
_FLOAT32 = np.dtype(np.float32)
_ZERO = np.float32(0)
_BLOCK = 64
"""Rows at a time: each block is added up by itself, which is more precise than one long sum."""


def _products_numpy(words: Any, places: Any) -> None:
    """The compiled function's result, matrix by matrix."""
    m, k, n, step = (int(w) for w in words)
    for a, b, out in zip(*places.tolist(), strict=True):
        rows_at(out, 4 * n, m, n)[:] = rows_at(a, 4 * k, m, k) @ rows_at(b, step, k, n)


@jit("i8[1], i8[2]", twin=_products_numpy, exact=True)
def weighted_products(words: Array, places: Array) -> None:
    """out = a b for matrices (m, k) and (k, n) at the addresses `places` (3, matrices), whose rows are dense. `words`:
    m, k, n, and bytes from one row of `b` to the next."""
    m, k, n, step = words[0], words[1], words[2], words[3]
    for i in prange(places.shape[1]):
        for r in range(m):
            out = floats_at(places[2, i] + 4 * r * n, n)
            for j in range(n):
                out[j] = _ZERO
        for block in range(0, k, _BLOCK):
            count = min(_BLOCK, k - block)
            for r in range(m):
                add_weighted_at(
                    places[0, i] + 4 * (r * k + block), places[1, i] + block * step, step,
                    places[2, i] + 4 * r * n, n, count,
                )  # fmt: skip


def is_weighted(xp: Any, a: tuple[int, ...], b: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether these loops are for the product of operands of these shapes, which alone decide."""
    if xp is not np or dtype != _FLOAT32 or len(a) < 2 or len(b) < 3 or elements(b[:-2]) < 2:
        return False
    few = 1 <= a[-2] <= MOST_ROWS and b[-1] in WIDTHS and b[-2] >= FEWEST_DEPTH
    return few and elements(a) > 0 and enabled()


def bind_weighted(a: Array, b: Array, out: Array) -> Call:
    """The call out = a @ b for operands that `is_weighted` takes: the matrices of `a` and `out` are contiguous."""
    calls: list[Call] = []
    if b.strides[-1] != b.itemsize or not b.flags.aligned:
        rows = np.empty(b.shape, b.dtype)
        calls.append(partial(np.copyto, rows, b))
        b = rows
    call = bind_matrices(weighted_products, a, b, b.shape[:-2], b.strides[:-2], out.shape[:-2], out)
    return calls_then(calls, call)
