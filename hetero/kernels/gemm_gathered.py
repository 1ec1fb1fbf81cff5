"""Products whose right factor is gathered on the way: where each of its elements lies is the sum of two offsets, of its
row and of its column, so that the windows of a convolution need not be laid out as a matrix first.

A few panels of it at a time are laid out in memory that stays in a core's cache, and tiles do the rest. Threads take
whole panels, or some rows of them: each element is one sum in the order of the depth, so its bits hang on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.gemm_packed import BLOCK_DEPTH, rows_by_panel
from hetero.kernels.jit import PARALLEL_ELEMENTS, enabled, floats_at, inline, jit, prange
from hetero.kernels.jit_call import bound
from hetero.kernels.jit_lanes import LANES, rows_at, turn_at
from hetero.kernels.jit_moves import REACH_BYTES, move_at, move_evens_at
from hetero.kernels.jit_runtime import pool_size
from hetero.kernels.jit_tiles import ROWS, lined_up
from hetero.kernels.jit_tiles import columns as panel_columns
from hetero.kernels.row_loops import address, calls_then
from hetero.kernels.workspace import Part
from hetero.types import Array, HostArray

(M, N, K, A_STEP, OUT_STEP, STEP, PANEL, SCRATCH, CHUNKS, PIECE_ROWS, GROUP, WORDS) = range(12)
"""Places of the words: sizes; bytes from row to row of the left factors and of the results, and from one column to the
next in a run; the columns of a panel; the address of panels for each chunk of work, how many chunks there are, and how
many rows and how many columns make one piece of work."""
(LEFT, RIGHT, END, OUT, BIAS, PLACES) = range(6)
"""Rows of the places, a column for each product: addresses; `END` is behind the memory that may be read on the right;
`BIAS` (a number for each row) is 0 where there is none."""
CHUNKS_AT_MOST = 16
"""Of work, each with panels of its own: two for each thread there may be."""
GROUP_FLOATS = 1 << 15
"""In the panels that are laid out together: more than one, since a row of a large plane is a page, and few enough for a
core's second cache."""
MOST_PANELS = 16
FEW_PIECES = 8
"""With fewer, threads would wait for each other: a piece of work is then some rows of a panel."""
FEWEST_ROWS = 16
"""Of a product that is not a convolution's: with fewer, laying out the right factor would be most of the work."""
_FLOAT32 = np.dtype(np.float32)
_TILE_ROWS = 8 * ROWS
"""That meet one panel after the other."""
PARALLEL_PRODUCTS = 12 * PARALLEL_ELEMENTS
"""Of elements, from which on threads pay: 20 µs on one."""


def scratch_part() -> Part:
    """Panels for all chunks, of any product."""
    return (most_chunks(), _CHUNK_FLOATS), np.float32


def most_chunks() -> int:
    """Pieces that work is cut into at most."""
    return min(CHUNKS_AT_MOST, 2 * pool_size())


_CHUNK_FLOATS = GROUP_FLOATS + MOST_PANELS * LANES
"""Each panel has slack for what is moved in whole vectors."""


@dataclass(frozen=True, slots=True, eq=False)
class Offsets:
    """Where a right factor's elements lie: bytes of each row and of each column, both ascending. `step`: bytes from
    one column to the next in a run; `runs`: for each column, how many from it on are one, in a vector and a panel."""

    rows: HostArray
    columns: HostArray
    step: int
    runs: HostArray

    @classmethod
    def of(cls, rows: HostArray, columns: HostArray, step: int) -> Offsets:
        """`rows` and `columns` of int64, none of them empty."""
        n = len(columns)
        starts = np.ones(n + 1, np.bool_)
        starts[1:n] = np.diff(columns) != step
        starts[0 : n : panel_columns()] = True
        at = np.arange(n)
        ends = np.flatnonzero(starts)
        ahead = ends[np.searchsorted(ends, at, side="right")] - at
        return cls(rows, columns, step, np.minimum(ahead, LANES))


def _gathered_numpy(words: Any, places: Any, rows: Any, columns: Any, runs: Any) -> None:
    """The compiled function's result, product by product."""
    w = [int(x) for x in words]
    where = (rows[:, None] + columns) // 4
    for left, right, _, out, bias in zip(*places.tolist(), strict=True):
        source = floats_at(right, int(where.max(initial=-1)) + 1)
        target = rows_at(out, w[OUT_STEP], w[M], w[N])
        np.matmul(rows_at(left, w[A_STEP], w[M], w[K]), source[where], out=target)
        if bias:
            target += floats_at(bias, w[M])[:, None]


@inline
def _turn(
    source: int,
    depth: int,
    columns: Any,
    first: int,
    width: int,
    step: int,
    target: int,
    panel: int,
    apart: int,
) -> None:
    """As `_lay_out` for columns that are dense in memory: each a piece of a signal, as a rule."""
    for start in range(0, width, panel):
        to, j, stop = target + start // panel * apart, start, min(start + panel, width)
        while j < stop:
            here = source + columns[first + j]
            count, eights = 1, 0
            if j + 8 <= stop and columns[first + j + 7] - columns[first + j] == 7 * step:
                count, eights = 8, depth - depth % 8
            for t in range(0, eights, 8):
                turn_at(here + 4 * t, step, to + 4 * (t * panel + j - start), 4 * panel)
            for i in range(count):
                line = floats_at(here + i * step, depth)
                for t in range(eights, depth):
                    floats_at(to + 4 * (t * panel + j - start + i), 1)[0] = line[t]
            j += count


@inline
def _lay_out(
    source: int, end: int, rows: Any, columns: Any, runs: Any, at: int, depth: int, first: int, width: int,
    step: int, target: int, panel: int,
) -> None:  # fmt: skip
    """`depth` rows from `at` on, of `width` columns from `first` on, into panels."""
    apart = 4 * (depth * panel + LANES)
    last = columns[first + width - 1]
    if step > 8 and rows[at + depth - 1] - rows[at] == 4 * (depth - 1):
        _turn(source + rows[at], depth, columns, first, width, step, target, panel, apart)
        return
    dense = step == 4 and last - columns[first] == 4 * (width - 1)
    for t in range(depth):
        base, to = source + rows[at + t], target + 4 * t * panel
        vectors = step <= 8 and base + last + REACH_BYTES <= end
        start = first
        while start < first + width:  # a range of such steps would divide
            stop, j = min(start + panel, first + width), start
            if not vectors:
                line = floats_at(to, stop - start)
                for i in range(stop - start):
                    line[i] = floats_at(base + columns[start + i], 1)[0]
            elif dense:
                here = base + columns[start]
                while j < stop:
                    move_at(here, to + 4 * (j - start))
                    here += 4 * LANES
                    j += LANES
            else:
                while j < stop:  # what a vector brings too much is written over by what comes next
                    if step == 4:
                        move_at(base + columns[j], to + 4 * (j - start))
                    else:
                        move_evens_at(base + columns[j], to + 4 * (j - start))
                    j += runs[j]
            to += apart
            start += panel


@jit("i8[1], i8[2], i8[1], i8[1], i8[1]", twin=_gathered_numpy, exact=True)
def gathered(words: Array, places: Array, rows: Array, columns: Array, runs: Array) -> None:
    """out = left right + bias for each product of `places`: left (m, k) of dense rows; right (k, n), whose element
    (t, j) lies at its address + rows[t] + columns[j], both ascending within the memory; out (m, n)."""
    m, n, k, panel, step = words[M], words[N], words[K], words[PANEL], words[STEP]
    a_step, out_step, piece_rows, group = words[A_STEP], words[OUT_STEP], words[PIECE_ROWS], words[GROUP]
    pieces = (m + piece_rows - 1) // piece_rows
    each = pieces * ((n + group - 1) // group)
    chunks, work = words[CHUNKS], each * places.shape[1]
    for chunk in prange(chunks):
        scratch = words[SCRATCH] + 4 * chunk * _CHUNK_FLOATS
        for unit in range(chunk * work // chunks, (chunk + 1) * work // chunks):
            p, first = unit // each, unit % each // pieces * group
            top = unit % pieces * piece_rows
            bottom, width = min(top + piece_rows, m), min(group, n - first)
            for at in range(0, k, BLOCK_DEPTH):
                depth = min(BLOCK_DEPTH, k - at)
                _lay_out(
                    places[RIGHT, p], places[END, p], rows, columns, runs, at, depth, first, width, step,
                    scratch, panel,
                )  # fmt: skip
                for start in range(top, bottom, _TILE_ROWS):
                    count = min(_TILE_ROWS, bottom - start)
                    for column in range(0, width, panel):
                        out = places[OUT, p] + start * out_step + 4 * (first + column)
                        rows_by_panel(
                            places[LEFT, p] + start * a_step + 4 * at, a_step,
                            scratch + 4 * (column // panel) * (depth * panel + LANES), out, out_step, count,
                            depth, at, min(panel, width - column),
                        )  # fmt: skip
                    if places[BIAS, p] and at + depth == k:
                        shift = floats_at(places[BIAS, p] + 4 * start, count)
                        for i in range(count):
                            line = floats_at(places[OUT, p] + (start + i) * out_step + 4 * first, width)
                            b = shift[i]
                            for j in range(width):
                                line[j] += b


def bind_gathered(
    m: int, steps: tuple[int, int], places: HostArray, right: Offsets, scratch: Array | None, operands: Any
) -> Call:
    """The call of `gathered` for `m` rows. `steps`: the words A_STEP and OUT_STEP; `scratch`: as `scratch_part`;
    None: the call gets its own; `operands`: what must live as long as the call."""
    n, k, products, panel = len(right.columns), len(right.rows), places.shape[1], panel_columns()
    most = max(1, min(MOST_PANELS, GROUP_FLOATS // (min(k, BLOCK_DEPTH) * panel)))
    parallel = m * n * k * products >= PARALLEL_PRODUCTS
    piece, panels = m, -(-n // panel)
    if parallel:
        most = max(1, min(most, panels * products // FEW_PIECES))
        if panels * products < FEW_PIECES:
            piece = max(ROWS, -(-m // (2 * ROWS)) * ROWS)
    units = -(-panels // most) * -(-m // piece) * products
    chunks = min(most_chunks() if scratch is None else len(scratch), units) if parallel else 1
    if scratch is None:
        scratch = lined_up((chunks, _CHUNK_FLOATS), np.float32)  # of which no more is touched than is needed
    words = np.array(
        (m, n, k, *steps, right.step, panel, address(scratch), chunks, piece, most * panel), np.int64
    )
    arguments = words, places, right.rows, right.columns, right.runs
    call = bound(gathered.variant(*arguments, parallel=chunks > 1), *arguments)
    call.__dict__["operands"] = operands, scratch  # the places are only numbers
    return call


def is_gathered(xp: Any, a: tuple[int, ...], b: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether a product of two matrices of these shapes, which alone decide, is so large that threads pay, which BLAS
    does without, and has rows enough to be worth laying out the right factor."""
    if xp is not np or dtype != _FLOAT32 or len(a) != 2 or len(b) != 2 or a[0] < FEWEST_ROWS:
        return False
    return a[0] * a[1] * b[1] >= PARALLEL_PRODUCTS and enabled()


def bind_gathered_product(a: Array, b: Array, out: Array) -> Call:
    """The call out = a @ b for matrices that `is_gathered` takes, of any strides; `out` has dense rows. What has no
    dense rows (`b`: nor dense columns) is read from a copy that each call makes."""
    calls: list[Call] = []
    if a.strides[1] != 4 or not a.flags.aligned:
        a = _copied(a, calls)
    if 4 not in b.strides or min(b.strides) < 4 or not b.flags.aligned:
        b = _copied(b, calls)
    (m, k), n = a.shape, b.shape[1]
    row, column = b.strides
    places = np.zeros((PLACES, 1), np.int64)
    places[[LEFT, RIGHT, END, OUT], 0] = address(a), address(b), 0, address(out)
    places[END] = places[RIGHT] + (k - 1) * row + (n - 1) * column + 4
    offsets = Offsets.of(np.arange(k) * row, np.arange(n) * column, column)
    steps = a.strides[0], out.strides[0]
    return calls_then(calls, bind_gathered(m, steps, places, offsets, None, (a, b, out)))


def _copied(x: Array, calls: list[Call]) -> Array:
    copy = np.empty(x.shape, x.dtype)
    calls.append(partial(np.copyto, copy, x))
    return copy
