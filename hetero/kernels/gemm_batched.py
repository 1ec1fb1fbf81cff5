"""Products of many matrices with as many others: each right factor is laid out in panels on the way, a panel at a time,
and tiles do the rest. Threads take whole matrices, so the bits hang on nothing but the shapes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.broadcasting import elements
from hetero.kernels.gemm_gathered import bind_gathered_product, is_gathered
from hetero.kernels.gemm_packed import BLOCK_DEPTH, rows_by_panel
from hetero.kernels.jit import PARALLEL_ELEMENTS, enabled, floats_at, inline, jit, prange
from hetero.kernels.jit_call import bound
from hetero.kernels.jit_lanes import rows_at, turn_at
from hetero.kernels.jit_tiles import columns, lined_up
from hetero.kernels.matmul_few import MOST_ROWS, offsets
from hetero.kernels.row_loops import address, calls_then
from hetero.types import Array

(M, N, K, A_STEP, B_STEP, TURNED, OUT_STEP, PANEL, SCRATCH, CHUNKS, WORDS) = range(11)
"""Places of the words: sizes, bytes from row to row (of b's columns where it is `TURNED`), the columns of a panel, the
address of a panel for each chunk of matrices, and how many chunks there are."""
MOST_CHUNKS = 16
"""Pieces of work for threads: each has a panel of its own."""
SMALLEST = 1 << 12
"""Products of elements in one matrix from which the panels pay."""
_FLOAT32 = np.dtype(np.float32)


def _products_numpy(words: Any, places: Any) -> None:
    """The compiled function's result, matrix by matrix."""
    w = [int(x) for x in words]
    for a, b, out in zip(*places.tolist(), strict=True):
        rows, columns_ = (w[N], w[K]) if w[TURNED] else (w[K], w[N])
        right = rows_at(b, w[B_STEP], rows, columns_)
        left = rows_at(a, w[A_STEP], w[M], w[K])
        rows_at(out, w[OUT_STEP], w[M], w[N])[:] = left @ (right.T if w[TURNED] else right)


@inline
def turn_into(source: int, step: int, target: int, target_step: int, count: int, n: int) -> None:
    """`count` rows of `n` float32, `step` bytes apart, as the columns of `n` rows, `target_step` bytes apart."""
    eights, whole = count - count % 8, n - n % 8
    for j in range(0, eights, 8):
        for t in range(0, whole, 8):
            turn_at(source + j * step + 4 * t, step, target + t * target_step + 4 * j, target_step)
    for j in range(count):
        row = floats_at(source + j * step, n)
        for t in range(whole if j < eights else 0, n):
            floats_at(target + t * target_step, j + 1)[j] = row[t]


@jit("i8[1], i8[2]", twin=_products_numpy, exact=True)
def batched(words: Array, places: Array) -> None:
    """out = a b for float32 matrices (m, k) and (k, n) at the addresses `places` (3, matrices), whose rows are dense;
    where b is turned, those of its transpose."""
    m, n, k, panel, b_step = words[M], words[N], words[K], words[PANEL], words[B_STEP]
    count, chunks = places.shape[1], words[CHUNKS]
    for chunk in prange(chunks):
        scratch = words[SCRATCH] + 4 * chunk * k * panel
        for i in range(chunk * count // chunks, (chunk + 1) * count // chunks):
            for column in range(0, n, panel):
                width = min(panel, n - column)
                if words[TURNED]:
                    turn_into(places[1, i] + column * b_step, b_step, scratch, 4 * panel, width, k)
                else:
                    for t in range(k):
                        source = floats_at(places[1, i] + t * b_step + 4 * column, width)
                        target = floats_at(scratch + 4 * t * panel, width)
                        for j in range(width):
                            target[j] = source[j]
                for at in range(0, k, BLOCK_DEPTH):
                    rows_by_panel(
                        places[0, i] + 4 * at, words[A_STEP], scratch + 4 * at * panel,
                        places[2, i] + 4 * column, words[OUT_STEP], m, min(BLOCK_DEPTH, k - at), at, width,
                    )  # fmt: skip


def is_batched(xp: Any, a: tuple[int, ...], b: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether this is for the product of operands of these shapes, which alone decide."""
    if xp is not np or dtype != _FLOAT32 or len(a) < 2 or len(b) < 3 or elements(b[:-2]) < 2:
        return False
    several = a[-2] > MOST_ROWS and elements(a[-2:]) * b[-1] >= SMALLEST
    return several and elements(a) > 0 and enabled()


def bind_batched(a: Array, b: Array, out: Array) -> Call:
    """The call out = a @ b for operands that `is_batched` takes, `out` with dense rows. They are read where they lie
    if the rows of their matrices are dense, or the columns of `b`; else from copies that each call makes."""
    turned = b.strides[-1] != b.itemsize and b.strides[-2] == b.itemsize
    calls: list[Call] = []
    operands = []
    for x in (a, b.swapaxes(-1, -2) if turned else b):
        if x.strides[-1] != x.itemsize or not x.flags.aligned:
            copy = np.empty(x.shape, x.dtype)
            calls.append(partial(np.copyto, copy, x))
            x = copy
        operands.append(x)
    a, right = operands
    batch = out.shape[:-2]
    places = np.empty((3, elements(batch)), np.int64)
    for row, x in zip(places, (a, right, out), strict=True):
        np.add(offsets(x.shape[:-2], x.strides[:-2], batch), address(x), out=row)
    (m, k), n = a.shape[-2:], out.shape[-1]
    parallel = places.shape[1] * m * n * k >= 12 * PARALLEL_ELEMENTS
    chunks = min(MOST_CHUNKS, places.shape[1]) if parallel else 1
    scratch = lined_up((chunks, k, columns()), np.float32)
    steps = a.strides[-2], right.strides[-2], turned, out.strides[-2]
    words = np.array((m, n, k, *steps, columns(), address(scratch), chunks), np.int64)
    call = bound(batched.variant(words, places, parallel=parallel), words, places)
    call.__dict__["operands"] = a, right, out, scratch  # the places are only numbers
    return calls_then(calls, call)


def bind_matrices(xp: Any, a: Array, b: Array, out: Array) -> Call:
    """The call out = a @ b for arrays of matrices, `out` with dense rows: in tiles where the shapes say so."""
    if is_batched(xp, a.shape, b.shape, out.dtype):
        return bind_batched(a, b, out)
    if a.shape[:-2] == b.shape[:-2] and elements(a.shape[:-2]) == 1:
        a, b, out = (x.reshape(x.shape[-2:]) for x in (a, b, out))
        if is_gathered(xp, a.shape, b.shape, out.dtype):
            return bind_gathered_product(a, b, out)
    return partial(xp.matmul, a, b, out)
