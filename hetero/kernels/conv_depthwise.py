"""Depthwise convolution on the host: per plane a weighted sum of contiguous runs, a few taps at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Bind, Call
from hetero.kernels.conv_phases import LANES, Phases, spread
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.jit import PARALLEL_ELEMENTS, jit, prange
from hetero.kernels.jit_call import bound
from hetero.kernels.window import axis_taps
from hetero.kernels.workspace import Part, carve
from hetero.types import Array

BLOCK_ELEMENTS = 1024
FILTERS = 4
"""Filters over the one channel there is, from which on every element is worth more than one pass."""
CHUNKS = 8
"""Groups of planes with scratch of their own, which threads may take."""


def depthwise_serves(shape: ConvShape, dtype: np.dtype[Any], xp: Any) -> bool:
    """Two spatial axes, one channel a group, on the host; but not many filters over one channel: those are a matrix."""
    return (
        xp is np
        and len(shape.window.kernel) == 2
        and shape.group_channels == 1
        and not shape.empty
        and (shape.group > 1 or shape.maps < FILTERS)
    )


def depthwise_parts(shape: ConvShape, dtype: np.dtype[Any]) -> tuple[Part, ...]:
    """The phases of one plane and a block of results, per chunk."""
    phases = Phases.of(shape.window)
    rows = phases.block(BLOCK_ELEMENTS)
    return (
        ((CHUNKS, phases.size + phases.slack), dtype),
        ((CHUNKS, rows * phases.pitch + LANES), dtype),
    )


def bind_depthwise(shape: ConvShape, dtype: np.dtype[Any]) -> Bind:
    """(N, C, H, W) with (C*m, 1, kh, kw)."""
    win = shape.window
    n, c, m = shape.batch, shape.channels, shape.maps
    phases = Phases.of(win)
    geometry = (*win.strides, *win.begins, phases.rows, phases.pitch, phases.block(BLOCK_ELEMENTS))
    work = n * m * win.positions * win.taps
    parts = depthwise_parts(shape, dtype)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        planes, results = carve(workspace, *parts)
        x = inputs[0].reshape(n * c, *win.extents)
        w = inputs[1].reshape(m, win.taps)
        y = outputs[0].reshape(n * m, *win.outputs)
        bias = inputs[2] if len(inputs) > 2 and inputs[2] is not None else np.zeros(m, x.dtype)
        function = depthwise.variant(x, w, bias, parallel=work >= 8 * PARALLEL_ELEMENTS)
        if function is depthwise.twin:
            return lambda: _depthwise_numpy(x, w, bias, y, win)
        offsets = phases.offsets
        return bound(function, x, w, bias, y, offsets, planes, results, *geometry)

    return bind


def _depthwise_numpy(x: Array, w: Array, bias: Array, y: Array, win: Any) -> None:
    planes = x.shape[0]
    maps = w.shape[0]
    per = y.shape[0] // planes
    repeat = planes * per // maps
    xs = x.reshape(planes, 1, *win.extents)
    ys = y.reshape(planes, per, *win.outputs)
    ws = np.tile(w.reshape(-1, per, *win.kernel), (repeat, 1, 1, 1))
    ys[...] = np.tile(bias.reshape(-1, per), (repeat, 1))[..., None, None]
    rows, columns = (axis_taps(win, axis) for axis in range(2))
    for i, (out_r, read_r) in enumerate(rows):
        for j, (out_q, read_q) in enumerate(columns):
            ys[..., out_r, out_q] += xs[..., read_r, read_q] * ws[:, :, i, j, None, None]


@jit(
    "f4[3], f4[2], f4[1], f4[3]!, i8[1], f4[2]!, f4[2]!, i8, i8, i8, i8, i8, i8, i8",
    "f8[3], f8[2], f8[1], f8[3]!, i8[1], f8[2]!, f8[2]!, i8, i8, i8, i8, i8, i8, i8",
    twin=_depthwise_numpy,
)
def depthwise(
    x: Array,
    w: Array,
    bias: Array,
    y: Array,
    offsets: Array,
    planes: Array,
    results: Array,
    sh: int,
    sw: int,
    top: int,
    left: int,
    rows: int,
    pitch: int,
    block: int,
) -> None:
    """Planes x (N*C, H, W), w (M, taps), bias (M), y (N*M, OH, OW); M a multiple of C. Scratch as `depthwise_parts`."""
    maps, taps = w.shape
    per = y.shape[0] // x.shape[0]
    height, width = y.shape[1], y.shape[2]
    chunks = planes.shape[0]
    for chunk in prange(chunks):
        b = planes[chunk]
        b[:] = 0
        total = results[chunk]
        for p in range(chunk * x.shape[0] // chunks, (chunk + 1) * x.shape[0] // chunks):
            spread(x[p], b, sh, sw, top, left, rows, pitch)
            for z in range(p * per, (p + 1) * per):
                v = w[z % maps]
                start = bias[z % maps]
                for r0 in range(0, height, block):
                    count = min(block, height - r0)
                    n = (count * pitch + LANES - 1) // LANES * LANES
                    s = r0 * pitch
                    a = total[:n]
                    for q in range(n):
                        a[q] = start
                    t = 0
                    # Slices, not index sums: numba checks a sum for wrapping round below zero, which stops SIMD.
                    while t + 9 <= taps:
                        b0 = b[s + offsets[t] : s + offsets[t] + n]
                        b1 = b[s + offsets[t + 1] : s + offsets[t + 1] + n]
                        b2 = b[s + offsets[t + 2] : s + offsets[t + 2] + n]
                        b3 = b[s + offsets[t + 3] : s + offsets[t + 3] + n]
                        b4 = b[s + offsets[t + 4] : s + offsets[t + 4] + n]
                        b5 = b[s + offsets[t + 5] : s + offsets[t + 5] + n]
                        b6 = b[s + offsets[t + 6] : s + offsets[t + 6] + n]
                        b7 = b[s + offsets[t + 7] : s + offsets[t + 7] + n]
                        b8 = b[s + offsets[t + 8] : s + offsets[t + 8] + n]
                        v0, v1, v2, v3, v4 = v[t], v[t + 1], v[t + 2], v[t + 3], v[t + 4]
                        v5, v6, v7, v8 = v[t + 5], v[t + 6], v[t + 7], v[t + 8]
                        for q in range(n):
                            a[q] = (
                                a[q]
                                + v0 * b0[q]
                                + v1 * b1[q]
                                + v2 * b2[q]
                                + v3 * b3[q]
                                + v4 * b4[q]
                                + v5 * b5[q]
                                + v6 * b6[q]
                                + v7 * b7[q]
                                + v8 * b8[q]
                            )
                        t += 9
                    while t + 5 <= taps:
                        b0 = b[s + offsets[t] : s + offsets[t] + n]
                        b1 = b[s + offsets[t + 1] : s + offsets[t + 1] + n]
                        b2 = b[s + offsets[t + 2] : s + offsets[t + 2] + n]
                        b3 = b[s + offsets[t + 3] : s + offsets[t + 3] + n]
                        b4 = b[s + offsets[t + 4] : s + offsets[t + 4] + n]
                        v0, v1, v2, v3, v4 = v[t], v[t + 1], v[t + 2], v[t + 3], v[t + 4]
                        for q in range(n):
                            a[q] = a[q] + v0 * b0[q] + v1 * b1[q] + v2 * b2[q] + v3 * b3[q] + v4 * b4[q]
                        t += 5
                    while t < taps:
                        b0 = b[s + offsets[t] : s + offsets[t] + n]
                        v0 = v[t]
                        for q in range(n):
                            a[q] += v0 * b0[q]
                        t += 1
                    for r in range(count):
                        line = y[z, r0 + r]
                        part = a[r * pitch :][:width]
                        for q in range(width):
                            line[q] = part[q]
