"""Convolution of few windows: their taps are rows that meet the filters, packed once as the panels of a matrix.

Where a sample has fewer windows than a panel has columns (a pooled plane, a short signal), panels of gathered windows
would be empty for the most part. Filters fill theirs, so here the two change sides: each element is the same sum in
the same order, and has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Bind, Call
from hetero.kernels.conv_gathered import (
    bind_convolution,
    gathered_parts,
    gathered_serves,
    offsets_of,
    padding,
)
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.derived import Keeper
from hetero.kernels.gemm_gathered import PARALLEL_PRODUCTS, Offsets, most_chunks
from hetero.kernels.gemm_packed import BLOCK_DEPTH, ELEMENTS, packed, rows_by_panel
from hetero.kernels.jit import floats_at, inline, jit, prange
from hetero.kernels.jit_call import bound
from hetero.kernels.jit_lanes import LANES, rows_at
from hetero.kernels.jit_tiles import ROWS, columns
from hetero.kernels.row_loops import address, aligned, calls_then
from hetero.kernels.widen import is_constant
from hetero.kernels.workspace import Part, carve
from hetero.types import Array

(WINDOWS, MAPS, K, PANEL, PANELS, BIAS, X, SAMPLE, OUT, RUN, BLOCK, SCRATCH, CHUNK, CHUNKS, WORDS) = range(15)
"""Places of the words: windows of all samples, maps, taps; the columns of a panel; addresses of the panels, of the
biases (0 for none), of the first window's plane, and bytes from sample to sample; the address of the results; taps that
lie one after the other; windows that are gathered together; the address of scratch memory, bytes of it for each chunk
of work, and how many chunks there are."""
FEWEST_MAPS = 16
"""With fewer, gathering the windows would be most of the work."""
_MOST_BLOCK = 8 * ROWS
_BLOCK_FLOATS = 1 << 16
"""In the windows that are gathered together: what a core's second cache holds beside a panel."""


def few_serves(shape: ConvShape, dtype: np.dtype[Any], xp: Any) -> bool:
    """Whether panels of filters are fuller than those of windows."""
    if not gathered_serves(shape, dtype, xp) or shape.group != 1 or shape.maps < FEWEST_MAPS:
        return False
    if shape.maps * shape.depth > ELEMENTS[-1]:
        return False
    panel, positions = columns(), shape.window.positions
    filled = shape.batch * positions * (-(-shape.maps // panel) * panel)
    return 5 * filled <= 4 * shape.batch * (-(-positions // panel) * panel) * shape.maps


def _block(shape: ConvShape) -> int:
    """Windows that are gathered together."""
    windows = shape.batch * shape.window.positions
    return min(windows, _MOST_BLOCK, max(ROWS, _BLOCK_FLOATS // shape.depth // ROWS * ROWS))


def _chunks(shape: ConvShape) -> int:
    """Pieces of work that threads take: windows that are gathered together, with one panel."""
    windows = shape.batch * shape.window.positions
    if windows * shape.maps * shape.depth < PARALLEL_PRODUCTS:
        return 1
    return min(most_chunks(), -(-windows // _block(shape)) * -(-shape.maps // columns()))


def few_parts(shape: ConvShape) -> tuple[Part, ...]:
    """Those of `bind_convolution`, which filters that are not constant are left to; then for each chunk of work the
    gathered windows, and their products with one panel."""
    return *gathered_parts(shape), ((_chunks(shape), _block(shape) * (shape.depth + columns())), np.float32)


def _few_numpy(words: Any, taps: Any, starts: Any) -> None:
    """The compiled function's result, sample by sample."""
    w = [int(x) for x in words]
    positions = len(starts)
    where = (starts[:, None] + taps) // 4
    panels = rows_at(w[PANELS], 4 * w[PANEL], -(-w[MAPS] // w[PANEL]) * w[K], w[PANEL])
    filters = panels.reshape(-1, w[K], w[PANEL]).transpose(1, 0, 2).reshape(w[K], -1)[:, : w[MAPS]]
    for sample in range(w[WINDOWS] // positions):
        source = floats_at(w[X] + sample * w[SAMPLE], int(where.max(initial=-1)) + 1)
        out = rows_at(w[OUT] + 4 * sample * w[MAPS] * positions, 4 * positions, w[MAPS], positions)
        out[:] = (source[where] @ filters).T
        if w[BIAS]:
            out += floats_at(w[BIAS], w[MAPS])[:, None]


@inline
def _gather(
    x: int, sample: int, taps: Any, starts: Any, first: int, count: int, run: int, target: int
) -> None:
    """`count` windows from `first` on, as rows."""
    positions, depth = starts.shape[0], taps.shape[0]
    for r in range(count):
        base = x + (first + r) // positions * sample + starts[(first + r) % positions]
        row = floats_at(target + 4 * r * depth, depth)
        if run < LANES:
            for t in range(depth):
                row[t] = floats_at(base + taps[t], 1)[0]
        else:
            for t in range(0, depth, run):
                part, source = row[t:][:run], floats_at(base + taps[t], run)
                for i in range(run):
                    part[i] = source[i]


@jit("i8[1], i8[1], i8[1]", twin=_few_numpy, exact=True)
def few(words: Array, taps: Array, starts: Array) -> None:
    """Convolve all windows; `taps` and `starts`: bytes from a window's first tap to each, and from the first window's
    plane to each window."""
    windows, maps, depth, panel = words[WINDOWS], words[MAPS], words[K], words[PANEL]
    block, chunks, positions = words[BLOCK], words[CHUNKS], starts.shape[0]
    panels = (maps + panel - 1) // panel
    work = (windows + block - 1) // block * panels
    for chunk in prange(chunks):
        rows = words[SCRATCH] + chunk * words[CHUNK]
        products = rows + 4 * block * depth
        there = -1
        for unit in range(chunk * work // chunks, (chunk + 1) * work // chunks):
            first, column = unit // panels * block, unit % panels * panel
            count, width = min(block, windows - first), min(panel, maps - column)
            if first != there:
                _gather(words[X], words[SAMPLE], taps, starts, first, count, words[RUN], rows)
                there = first
            for at in range(0, depth, BLOCK_DEPTH):
                rows_by_panel(
                    rows + 4 * at, 4 * depth, words[PANELS] + 4 * (column * depth + at * panel), products,
                    4 * panel, count, min(BLOCK_DEPTH, depth - at), at, panel,
                )  # fmt: skip
            if words[BIAS]:
                bias = floats_at(words[BIAS] + 4 * column, width)
                for r in range(count):
                    line = floats_at(products + 4 * r * panel, width)
                    for j in range(width):
                        line[j] += bias[j]
            for r in range(count):
                sample, position = (first + r) // positions, (first + r) % positions
                out = words[OUT] + 4 * ((sample * maps + column) * positions + position)
                line = floats_at(products + 4 * r * panel, width)
                for j in range(width):
                    floats_at(out + 4 * j * positions, 1)[0] = line[j]


def _run(taps: Array) -> int:
    """How many taps lie one after the other, as often as there are any."""
    breaks = np.flatnonzero(np.diff(taps) != 4) + 1
    return int(np.gcd.reduce(breaks, initial=len(taps)))


def bind_few(shape: ConvShape) -> Bind:
    """x (N, C, D1…), w (M, C, k1…), optional bias (M)."""
    window = shape.window
    parts = few_parts(shape)
    every_filter = bind_convolution(shape)
    keep = Keeper()
    found: list[Offsets] = []

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        filters = inputs[1]
        if not is_constant(filters):
            return every_filter(inputs, outputs, workspace)
        if not found:
            found.append(offsets_of(shape))
        taps, starts = found[0].rows, found[0].columns
        _, planes, scratch = carve(workspace, *parts)
        panels = keep("panels", (filters,), lambda: packed(filters.reshape(shape.maps, shape.depth).T))
        calls, x = aligned(inputs[0])
        source = x
        if window.padded:
            source = planes
            calls.append(padding(x, planes, window))
        bias = inputs[2] if len(inputs) > 2 else None
        if bias is not None:
            copies, bias = aligned(bias)
            calls += copies
        extents = window.reach if window.padded else window.extents
        words = np.zeros(WORDS, np.int64)
        words[[WINDOWS, MAPS, K, PANEL]] = shape.batch * window.positions, shape.maps, shape.depth, columns()
        words[[PANELS, BIAS, X]] = address(panels), 0 if bias is None else address(bias), address(source)
        words[[SAMPLE, OUT]] = 4 * shape.channels * math.prod(extents), address(outputs[0])
        words[[RUN, BLOCK, SCRATCH]] = _run(taps), _block(shape), address(scratch)
        words[[CHUNK, CHUNKS]] = scratch.strides[0], len(scratch)
        call = bound(few.variant(words, taps, starts, parallel=len(scratch) > 1), words, taps, starts)
        call.__dict__["operands"] = panels, source, bias, outputs[0], scratch  # the words are only numbers
        return calls_then(calls, call)

    return bind
