"""Products of bytes with a packed matrix of bytes, in int32 that wraps: exact, so the route is free to be the fastest.

With a' = a + 128 (or a) unsigned, b' = b - 128 (or b) signed and zero points moved alike,
Σ (a - za) (b - zb) = Σ a' b' - za' Σ b' - zb' Σ a' + K za' zb'; the sums over b' are made once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.derived import Keeper
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm_packed import as_rows
from hetero.kernels.jit import PARALLEL_ELEMENTS, enabled, jit, prange
from hetero.kernels.jit_byte_tiles import (
    QUAD,
    byte_tile,
    byte_tile_of_1,
    byte_tile_of_2,
    byte_tile_of_4,
    byte_tile_of_6,
    fast_bytes,
)
from hetero.kernels.jit_call import bound
from hetero.kernels.jit_tiles import ROWS, columns, lined_up
from hetero.kernels.row_loops import address
from hetero.kernels.widen import is_constant
from hetero.types import Array

SHORTEST = 16
"""Either side of a matrix."""
(A, A_STEP, PANELS, START, OUT, OUT_STEP, M, N, QUADS, PANEL, WORDS) = range(11)
"""Places of the words of a product: addresses, steps in bytes from row to row, sizes, and the columns of a panel."""
_BLOCK_ROWS = 8 * ROWS
_FLIP = np.uint8(128)


def _product_numpy(words: Any) -> None:
    """The compiled function's result, panel by panel."""
    w = [int(x) for x in words]
    for j in range(0, w[N], w[PANEL]):
        panel = w[PANELS] + 4 * j * w[QUADS]
        width = min(w[PANEL], w[N] - j)
        byte_tile(
            w[M], w[A], w[A_STEP], panel, w[OUT] + 4 * j, w[OUT_STEP], w[QUADS], w[START] + 4 * j, width
        )


@jit("i8[1]", twin=_product_numpy, exact=True)
def byte_product(words: Array) -> None:
    """out = start + a b for uint8 rows `a`, whole quads long, and a packed int8 `b`; `words` as above."""
    a_step, out_step, m, n, quads, panel = (
        words[A_STEP], words[OUT_STEP], words[M], words[N], words[QUADS], words[PANEL]
    )  # fmt: skip
    blocks = (m + _BLOCK_ROWS - 1) // _BLOCK_ROWS
    for piece in prange(blocks * ((n + panel - 1) // panel)):
        column = piece // blocks * panel
        width = min(panel, n - column)
        i = piece % blocks * _BLOCK_ROWS
        stop = min(i + _BLOCK_ROWS, m)
        b, start = words[PANELS] + 4 * column * quads, words[START] + 4 * column
        while i < stop:
            x, y = words[A] + i * a_step, words[OUT] + i * out_step + 4 * column
            left = stop - i
            if left >= 6:
                byte_tile_of_6(x, a_step, b, y, out_step, quads, start, width)
                i += 6
            elif left >= 4:
                byte_tile_of_4(x, a_step, b, y, out_step, quads, start, width)
                i += 4
            elif left >= 2:
                byte_tile_of_2(x, a_step, b, y, out_step, quads, start, width)
                i += 2
            else:
                byte_tile_of_1(x, a_step, b, y, out_step, quads, start, width)
                i += 1


def panel_shape(k: int, n: int) -> tuple[int, int, int, int]:
    """Panels, quads, columns and bytes of a packed matrix (k, n)."""
    return -(-n // columns()), -(-k // QUAD), columns(), QUAD


def pack_bytes(b: Array, out: Array) -> None:
    """Fill `out`, int8 of `panel_shape`, with the bytes `b` (k, n), int8 or uint8 less 128: panel by panel, quad by
    quad, four bytes of each column in turn; zeros beyond k and n."""
    panels, quads, c, _ = out.shape
    signed = np.zeros((quads * QUAD, panels * c), np.int8)
    np.bitwise_xor(
        b.view(np.uint8), _flip(b.dtype, signed=True), out=signed[: len(b), : b.shape[1]].view(np.uint8)
    )
    out[:] = signed.reshape(quads, QUAD, panels, c).transpose(2, 0, 3, 1)


def packed_bytes(b: Array) -> Array:
    """As `pack_bytes`, into an array of its own."""
    out = lined_up(panel_shape(*b.shape), np.int8)
    pack_bytes(b, out)
    return out


def _flip(dtype: np.dtype[Any], *, signed: bool) -> np.uint8:
    """What turns bytes of `dtype` into signed (unsigned) ones that are 128 less (more), by exclusive or."""
    return _FLIP if (dtype == np.uint8) == signed else np.uint8(0)


def sum_columns(b: Array, out: Array) -> None:
    """out = Σ b' over the depth, for each column, int32 that wraps."""
    total = b.sum(axis=0, dtype=np.int64) - (128 * len(b) if b.dtype == np.uint8 else 0)
    np.copyto(out[: b.shape[1]], total, casting="unsafe")


def _column_sums(b: Array) -> Array:
    """As `sum_columns`, with zeros up to whole panels."""
    panels, _, c, _ = panel_shape(*b.shape)
    out = np.zeros(panels * c, np.int32)
    sum_columns(b, out)
    return out


def bind_bytes(
    keep: Keeper, a: Array, a_zero: Array | None, b: Array, b_zero: Array | None, out: Array
) -> Call:
    """The call that writes the int32 product of bytes less their zero points into `out` (…, n), which is contiguous.

    `a` (…, k) has one zero point or none; `b` (k, n), a constant, none, one, or one for each column.
    """
    (k, n), m = b.shape, out.size // b.shape[1]
    panels = keep("byte panels", (b,), partial(packed_bytes, b))
    calls: list[Call] = []
    flip = _flip(a.dtype, signed=False)
    rows = as_rows(np.atleast_2d(a.view(np.uint8)))
    if flip or k % QUAD or rows is None or rows.strides[-1] != 1:
        rows = np.zeros((m, panels.shape[1] * QUAD), np.uint8)
        target = rows[:, :k].reshape(a.shape)
        calls.append(partial(np.bitwise_xor, a.view(np.uint8), flip, target))
    right = _signed_zeros(b, b_zero)
    sums = keep("byte sums", (b,), partial(_column_sums, b))
    start = np.empty(sums.shape, np.int32)
    begin = partial(_begin, start, sums, right, a_zero, k, int(flip))
    if a_zero is None or is_constant(a_zero):
        begin()
    else:
        calls.append(begin)
    sums_out = out.reshape(m, n)
    words = np.zeros(WORDS, np.int64)
    words[[A, A_STEP, PANELS, START]] = address(rows), rows.strides[0], address(panels), address(start)
    words[[OUT, OUT_STEP]] = address(sums_out), sums_out.strides[0]
    words[[M, N, QUADS, PANEL]] = m, n, *panels.shape[1:3]
    call = bound(byte_product.variant(words, parallel=m * n * k >= 32 * PARALLEL_ELEMENTS), words)
    call.__dict__["operands"] = rows, panels, start, sums_out  # the words are only numbers
    calls.append(call)
    if right is not None:
        calls.append(partial(_correct, sums_out, rows, right))
    return in_turn(calls)


def _begin(
    start: Array, sums: Array, right: Array | None, a_zero: Array | None, depth: int, shift: int
) -> None:
    """start = -za' Σ b' + K za' zb', modulo 2³²."""
    given = 0 if a_zero is None else a_zero.reshape(-1)[0]
    # The zero point of a range with NaN is NaN, as the result is.
    zero = shift + (int(given) if given == given else 0)
    np.multiply(sums, -zero, out=start, dtype=np.int64, casting="unsafe")
    if right is not None:
        np.add(start[: len(right)], right * (depth * zero), out=start[: len(right)], casting="unsafe")


def _correct(out: Array, rows: Array, right: Array) -> None:
    """out -= Σ a' zb', modulo 2³²."""
    np.subtract(out, rows.sum(axis=1, dtype=np.int64)[:, None] * right, out=out, casting="unsafe")


def _signed_zeros(b: Array, b_zero: Array | None) -> Array | None:
    """zb' for each column, int64, or None where all are 0."""
    zeros = np.zeros(1, np.int64) if b_zero is None else b_zero.reshape(-1).astype(np.int64)
    zeros = np.broadcast_to(zeros - (128 if b.dtype == np.uint8 else 0), b.shape[1])
    return zeros if zeros.any() else None


def serves_bytes(xp: Any, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether `bind_bytes` is the fastest for operands of these shapes, `b` a constant."""
    if xp is not np or len(a) < 1 or len(b) != 2 or min(b) < SHORTEST or 0 in a:
        return False
    return enabled() and fast_bytes()
