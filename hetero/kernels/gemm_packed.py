"""Products with a packed matrix: its columns lie in panels, so each is read once, in one stream, whatever the number
of rows. BLAS packs weights in each call; here it is done once. A row's bits hang on no other row."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.broadcasting import elements
from hetero.kernels.derived import Keeper
from hetero.kernels.fused import in_turn
from hetero.kernels.jit import PARALLEL_ELEMENTS, enabled, floats_at, inline, jit, prange
from hetero.kernels.jit_call import bound
from hetero.kernels.jit_lanes import LANES, rows_at
from hetero.kernels.jit_moves import add_to_rows_at
from hetero.kernels.jit_tiles import ROWS, columns, lined_up, tile_of_1, tile_of_2, tile_of_4, tile_of_6
from hetero.kernels.row_loops import address, aligned, calls_then
from hetero.kernels.widen import is_constant
from hetero.types import Array

ELEMENTS = range(1 << 14, (1 << 24) + 1)
"""Of a matrix: so many that packing pays, and so few (64 MiB) that the packed copy may be kept."""
SHORTEST = 64
"""Either side of a matrix."""
(A, A_STEP, PANELS, OUT, OUT_STEP, M, N, K, PANEL, BIAS, WORDS) = range(11)
"""Places of the words of a product: addresses, steps in bytes from row to row, sizes, the columns of a panel, and the
address of what is added to each row, 0 for nothing."""
_BLOCK_ROWS = 8 * ROWS
"""Of one thread's piece of work: with a panel, what a core's second cache holds."""
BLOCK_DEPTH = 512
"""Products in one sum, before it is added to the others: shorter sums are more precise."""
_FLOAT32 = np.dtype(np.float32)


@inline
def rows_by_panel(
    a: int, a_step: int, panel: int, out: int, out_step: int, rows: int, depth: int, adds: int, width: int
) -> None:
    """As `tile_of_6`, for any number of rows."""
    i = 0
    while i < rows:
        x, y, left = a + i * a_step, out + i * out_step, rows - i
        if left >= 6:
            tile_of_6(x, a_step, panel, y, out_step, depth, adds, width)
            i += 6
        elif left >= 4:
            tile_of_4(x, a_step, panel, y, out_step, depth, adds, width)
            i += 4
        elif left >= 2:
            tile_of_2(x, a_step, panel, y, out_step, depth, adds, width)
            i += 2
        else:
            tile_of_1(x, a_step, panel, y, out_step, depth, adds, width)
            i += 1


def _product_numpy(words: Any) -> None:
    """The compiled function's result, panel by panel."""
    w = [int(x) for x in words]
    a, out = rows_at(w[A], w[A_STEP], w[M], w[K]), rows_at(w[OUT], w[OUT_STEP], w[M], w[N])
    for j in range(0, w[N], w[PANEL]):
        panel = rows_at(w[PANELS] + 4 * j * w[K], 4 * w[PANEL], w[K], w[PANEL])
        np.matmul(a, panel[:, : w[N] - j], out[:, j : j + w[PANEL]])
    if w[BIAS]:
        out += floats_at(w[BIAS], w[N])


@jit("i8[1]", twin=_product_numpy, exact=True)
def product(words: Array) -> None:
    """out = a b + bias for float32 rows `a` and a packed `b`; `words` as above."""
    a_step, out_step, m, n, k, panel = (
        words[A_STEP],
        words[OUT_STEP],
        words[M],
        words[N],
        words[K],
        words[PANEL],
    )
    blocks = (m + _BLOCK_ROWS - 1) // _BLOCK_ROWS
    for piece in prange(blocks * ((n + panel - 1) // panel)):
        column = piece // blocks * panel
        width = min(panel, n - column)
        start = piece % blocks * _BLOCK_ROWS
        stop = min(start + _BLOCK_ROWS, m)
        for at in range(0, k, BLOCK_DEPTH):
            depth = min(BLOCK_DEPTH, k - at)
            rows_by_panel(
                words[A] + start * a_step + 4 * at, a_step, words[PANELS] + 4 * (column * k + at * panel),
                words[OUT] + start * out_step + 4 * column, out_step, stop - start, depth, at, width,
            )  # fmt: skip
        if words[BIAS]:
            out, bias = words[OUT] + start * out_step + 4 * column, words[BIAS] + 4 * column
            if width == panel:
                for j in range(0, panel, LANES):
                    add_to_rows_at(bias + 4 * j, out + 4 * j, out_step, stop - start)
            else:
                for i in range(stop - start):
                    line, shift = floats_at(out + i * out_step, width), floats_at(bias, width)
                    for j in range(width):
                        line[j] += shift[j]


def packed(b: Array) -> Array:
    """The matrix `b` (k, n) in panels: panel p has columns [p c, (p + 1) c) of each row in turn, c = `columns()`, and
    zeros beyond n. Float32 of shape (panels, k, c), each row at a multiple of 64 bytes."""
    out = _panels(*b.shape)
    pack_into(b, out)
    return out


def _panels(k: int, n: int) -> Array:
    """Of zeros, for a matrix (k, n)."""
    c = columns()
    return lined_up((-(-n // c), k, c), np.float32)


def pack_into(b: Array, out: Array) -> None:
    """Fill `out`, which has zeros beyond n, as `packed` does."""
    n, c = b.shape[1], out.shape[2]
    whole = n // c
    out[:whole] = b[:, : whole * c].reshape(len(b), whole, c).transpose(1, 0, 2)
    if n % c:
        out[whole, :, : n % c] = b[:, whole * c :]


def as_rows(a: Array) -> Array | None:
    """`a` (…, M, K) as a (rows, K) view, or None where its strides do not allow one."""
    step = a.strides[-2]
    extent = a.shape[-2]
    for d, s in zip(a.shape[-3::-1], a.strides[-3::-1], strict=True):
        if d != 1 and extent != 1 and s != step * extent:
            return None
        if d != 1 and extent == 1:
            step = s
        extent *= d
    return a.reshape(-1, a.shape[-1])


def is_packed(xp: Any, a: tuple[int, ...], b: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether this is for the product of operands of these shapes, which alone decide."""
    if xp is not np or dtype != _FLOAT32 or not a or len(b) != 2 or min(b) < SHORTEST:
        return False
    return b[0] * b[1] in ELEMENTS and elements(a) > 0 and enabled()


def bind_panels(a: Array, panels: Array, out: Array, bias: Array | None = None) -> Call:
    """The call out = a @ b + bias for the matrix that `panels` were packed from; `a` with any strides, `out` and `bias`
    (n elements) contiguous. Each element is added to once the product is there, so the bits are those of two calls."""
    k, n = panels.shape[1], out.shape[-1]
    calls, a = aligned(a)
    rows, target = as_rows(np.atleast_2d(a)), out.reshape(-1, n)
    if rows is None or rows.strides[-1] != rows.itemsize:
        copy = np.empty(a.shape, a.dtype)
        calls.append(partial(np.copyto, copy, a))
        rows = copy.reshape(-1, k)
    words = np.zeros(WORDS, np.int64)
    words[[A, A_STEP, PANELS]] = address(rows), rows.strides[0], address(panels)
    words[[OUT, OUT_STEP]] = address(target), target.strides[0]
    words[[M, N, K, PANEL]] = rows.shape[0], n, k, panels.shape[2]
    if bias is not None:
        copies, bias = aligned(bias)
        calls += copies
        words[BIAS] = address(bias)
    parallel = rows.shape[0] * n * k >= 12 * PARALLEL_ELEMENTS
    call = bound(product.variant(words, parallel=parallel), words)
    call.__dict__["operands"] = rows, panels, target, bias  # the words are only numbers
    return calls_then(calls, call)


def bind_packed(keep: Keeper, a: Array, b: Array, out: Array, bias: Array | None = None) -> Call:
    """The call out = a @ b + bias for operands that `is_packed` takes, of any strides, `out` and `bias` contiguous. A
    constant `b` is packed once, any other in each call."""
    if is_constant(b):
        return bind_panels(a, keep("packed", (b,), partial(packed, b)), out, bias)
    panels = _panels(*b.shape)
    return in_turn([partial(pack_into, b, panels), bind_panels(a, panels, out, bias)])
