"""Direct dense convolution on the host: four maps by six taps at a time over contiguous runs of the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Bind, Call
from hetero.kernels.conv_phases import LANES, Phases, spread
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.derived import Keeper
from hetero.kernels.jit import PARALLEL_ELEMENTS, enabled, jit, prange
from hetero.kernels.jit_call import bound
from hetero.kernels.widen import is_constant
from hetero.kernels.workspace import Part, carve
from hetero.types import Array

BLOCK_ELEMENTS = 768
MAPS = 4
MOST_GATHERED = 1 << 22
LEAST_RUN = 128
"""Shorter runs leave the vector units idle, and products of gathered columns are faster."""


def direct_serves(shape: ConvShape, dtype: np.dtype[Any], xp: Any) -> bool:
    """Two spatial axes on the host, where blocks of output rows make long runs of mostly useful results."""
    win = shape.window
    if xp is not np or len(win.kernel) != 2 or shape.empty or not enabled():
        return False
    if win.taps == 1 or (shape.channels == 1 and _gathers_well(shape)):
        return False
    phases = Phases.of(win)
    run = phases.block(BLOCK_ELEMENTS) * phases.pitch
    return run >= LEAST_RUN and 4 * win.outputs[1] >= 3 * phases.pitch


def _gathers_well(shape: ConvShape) -> bool:
    """Whether gathering the columns of one channel costs little beside their product, and little memory."""
    win = shape.window
    flat = win.outputs[0] == 1 or win.strides[1] == 1
    return flat and shape.maps > 1 and win.taps * win.positions <= MOST_GATHERED


def _padded_maps(shape: ConvShape) -> int:
    return -(-shape.group_maps // MAPS) * MAPS


def direct_parts(shape: ConvShape, dtype: np.dtype[Any]) -> tuple[Part, ...]:
    """The phases of one sample, and the weights with each group's maps rounded up to MAPS."""
    phases = Phases.of(shape.window)
    return (
        ((shape.channels * phases.size + phases.slack,), dtype),
        ((shape.group, _padded_maps(shape), shape.depth), dtype),
    )


def bind_direct(shape: ConvShape, dtype: np.dtype[Any]) -> Bind:
    """x (N, C, H, W), w (M, C/group, kh, kw)."""
    win = shape.window
    phases = Phases.of(win)
    offsets = (np.arange(shape.group_channels)[:, None] * phases.size + phases.offsets).reshape(-1)
    geometry = (*win.strides, *win.begins, phases.rows, phases.pitch, phases.block(BLOCK_ELEMENTS))
    parallel = shape.batch * shape.maps * shape.depth * win.positions >= 16 * PARALLEL_ELEMENTS
    parts = direct_parts(shape, dtype)
    keep = Keeper()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        planes, weights = carve(workspace, *parts)
        x, y = inputs[0], outputs[0]
        w = inputs[1].reshape(shape.group, shape.group_maps, shape.depth)
        bias = inputs[2] if len(inputs) > 2 and inputs[2] is not None else np.zeros(shape.maps, x.dtype)
        constant = is_constant(inputs[1])
        if constant:

            def make() -> Array:
                padded = np.zeros(weights.shape, weights.dtype)
                padded[:, : shape.group_maps] = w
                return padded

            factor = keep("padded", (inputs[1],), make)
        else:
            factor = weights
        function = direct.variant(x, bias, parallel=parallel)
        convolved = bound(function, x, factor, bias, y, offsets, planes, *geometry)

        def call() -> None:
            if not constant:
                weights[:, : shape.group_maps] = w
                weights[:, shape.group_maps :] = 0
            convolved()

        return call

    return bind


def _direct_numpy(
    x: Array,
    w: Array,
    bias: Array,
    y: Array,
    offsets: Array,
    planes: Array,
    sh: int,
    sw: int,
    top: int,
    left: int,
    rows: int,
    pitch: int,
    block: int,
) -> None:
    groups = w.shape[0]
    per, maps = x.shape[1] // groups, y.shape[1] // groups
    size = sh * sw * rows * pitch
    height, width = y.shape[2:]
    for n in range(x.shape[0]):
        padded = np.zeros((x.shape[1], rows * sh, pitch * sw), x.dtype)
        h, v = min(x.shape[2], rows * sh - top), min(x.shape[3], pitch * sw - left)
        if h > 0 and v > 0:
            padded[:, top : top + h, left : left + v] = x[n, :, :h, :v]
        split = padded.reshape(-1, rows, sh, pitch, sw).transpose(0, 2, 4, 1, 3)
        planes[: x.shape[1] * size] = split.reshape(-1)
        planes[x.shape[1] * size :] = 0
        for g in range(groups):
            runs = planes[g * per * size + offsets[:, None] + np.arange(height * pitch)]
            sums = (w[g, :maps] @ runs).reshape(maps, height, pitch)[..., :width]
            y[n, g * maps : (g + 1) * maps] = sums + bias[g * maps : (g + 1) * maps, None, None]


@jit(
    "f4[4], f4[3], f4[1], f4[4]!, i8[1], f4[1]!, i8, i8, i8, i8, i8, i8, i8",
    "f8[4], f8[3], f8[1], f8[4]!, i8[1], f8[1]!, i8, i8, i8, i8, i8, i8, i8",
    twin=_direct_numpy,
)
def direct(
    x: Array,
    w: Array,
    bias: Array,
    y: Array,
    offsets: Array,
    planes: Array,
    sh: int,
    sw: int,
    top: int,
    left: int,
    rows: int,
    pitch: int,
    block: int,
) -> None:
    """x (N, C, H, W), w (group, maps rounded up to 4, depth), bias (M), y (N, M, OH, OW); `offsets` (depth) of each
    product within a group's planes; scratch as `direct_parts`."""
    groups, padded, depth = w.shape
    channels = x.shape[1]
    per = channels // groups
    maps = y.shape[1] // groups
    size = sh * sw * rows * pitch
    height, width = y.shape[2], y.shape[3]
    tiles = padded // 4
    blocks = (height + block - 1) // block
    planes[channels * size :] = 0
    for n in range(x.shape[0]):
        for c in prange(channels):
            target = planes[c * size : (c + 1) * size]
            target[:] = 0
            spread(x[n, c], target, sh, sw, top, left, rows, pitch)
        for task in prange(blocks * groups * tiles):
            r0 = task // (groups * tiles) * block
            g = task // tiles % groups
            k = task % tiles * 4
            count = min(block, height - r0)
            length = (count * pitch + LANES - 1) // LANES * LANES
            sums = np.empty((4, length), x.dtype)
            a0, a1, a2, a3 = sums[0], sums[1], sums[2], sums[3]
            for i in range(4):
                start = bias[g * maps + min(k + i, maps - 1)]
                sums[i, :] = start
            w0, w1, w2, w3 = w[g, k], w[g, k + 1], w[g, k + 2], w[g, k + 3]
            b = planes[g * per * size + r0 * pitch :]
            d = 0
            # Slices, not index sums: numba checks a sum for wrapping round below zero, which stops SIMD. Four maps by
            # six taps was the fastest of the tilings tried: 24 multiply-adds for 14 loads and stores.
            while d + 6 <= depth:
                b0 = b[offsets[d] : offsets[d] + length]
                b1 = b[offsets[d + 1] : offsets[d + 1] + length]
                b2 = b[offsets[d + 2] : offsets[d + 2] + length]
                b3 = b[offsets[d + 3] : offsets[d + 3] + length]
                b4 = b[offsets[d + 4] : offsets[d + 4] + length]
                b5 = b[offsets[d + 5] : offsets[d + 5] + length]
                p0, p1, p2, p3, p4, p5 = w0[d], w0[d + 1], w0[d + 2], w0[d + 3], w0[d + 4], w0[d + 5]
                q0, q1, q2, q3, q4, q5 = w1[d], w1[d + 1], w1[d + 2], w1[d + 3], w1[d + 4], w1[d + 5]
                s0, s1, s2, s3, s4, s5 = w2[d], w2[d + 1], w2[d + 2], w2[d + 3], w2[d + 4], w2[d + 5]
                t0, t1, t2, t3, t4, t5 = w3[d], w3[d + 1], w3[d + 2], w3[d + 3], w3[d + 4], w3[d + 5]
                for q in range(length):
                    x0, x1, x2, x3, x4, x5 = b0[q], b1[q], b2[q], b3[q], b4[q], b5[q]
                    a0[q] = a0[q] + p0 * x0 + p1 * x1 + p2 * x2 + p3 * x3 + p4 * x4 + p5 * x5
                    a1[q] = a1[q] + q0 * x0 + q1 * x1 + q2 * x2 + q3 * x3 + q4 * x4 + q5 * x5
                    a2[q] = a2[q] + s0 * x0 + s1 * x1 + s2 * x2 + s3 * x3 + s4 * x4 + s5 * x5
                    a3[q] = a3[q] + t0 * x0 + t1 * x1 + t2 * x2 + t3 * x3 + t4 * x4 + t5 * x5
                d += 6
            while d < depth:
                b0 = b[offsets[d] : offsets[d] + length]
                p0, q0, s0, t0 = w0[d], w1[d], w2[d], w3[d]
                for q in range(length):
                    x0 = b0[q]
                    a0[q] += p0 * x0
                    a1[q] += q0 * x0
                    a2[q] += s0 * x0
                    a3[q] += t0 * x0
                d += 1
            for i in range(min(4, maps - k)):
                for r in range(count):
                    line = y[n, g * maps + k + i, r0 + r]
                    part = sums[i, r * pitch :][:width]
                    for q in range(width):
                        line[q] = part[q]
