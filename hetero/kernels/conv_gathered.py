"""Convolution as products whose windows are gathered on the way: no matrix of columns is written; threads are ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Bind, Call
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm_gathered import BIAS as BIAS_PLACE
from hetero.kernels.gemm_gathered import END, LEFT, OUT, PLACES, RIGHT, Offsets, bind_gathered, scratch_part
from hetero.kernels.jit import PARALLEL_ELEMENTS, enabled, jit, prange
from hetero.kernels.jit_call import bound
from hetero.kernels.jit_moves import REACH_BYTES
from hetero.kernels.row_loops import address, aligned
from hetero.kernels.window import Window, interior
from hetero.kernels.workspace import Part, carve
from hetero.types import Array, HostArray

FEW_MAPS = {1: 16, 2: 12}
"""By stride: maps up to which direct loops are faster."""
_FLOAT32 = np.dtype(np.float32)


def gathered_serves(shape: ConvShape, dtype: np.dtype[Any], xp: Any) -> bool:
    """Any float32 convolution on the host that has something to add up."""
    return xp is np and dtype == _FLOAT32 and not shape.empty and shape.depth > 0 and enabled()


def products_are_faster(shape: ConvShape) -> bool:
    """Than direct loops over two axes: with maps enough that gathering is the smaller part of the work, and strides for
    which it moves whole vectors."""
    stride = shape.window.strides[-1]
    return shape.group_maps > FEW_MAPS[stride] if stride in FEW_MAPS else False


def gathered_parts(shape: ConvShape) -> tuple[Part, ...]:
    """Panels, and the padded planes of all samples with what vectors may reach behind the last."""
    window = shape.window
    floats = shape.batch * shape.channels * math.prod(window.reach) + REACH_BYTES // 4
    return scratch_part(), ((floats if window.padded else 0,), np.float32)


def _distances(window: Window, extents: tuple[int, ...]) -> tuple[HostArray, HostArray]:
    """Elements from the window's first tap to each, and from the first window to each, in planes of `extents`."""
    taps, outputs = np.zeros(1, np.int64), np.zeros(1, np.int64)
    axes = zip(window.kernel, window.outputs, window.dilations, window.strides, extents, strict=True)
    for kernel, count, dilation, stride, extent in axes:
        taps = (taps[:, None] * extent + np.arange(kernel) * dilation).reshape(-1)
        outputs = (outputs[:, None] * extent + np.arange(count) * stride).reshape(-1)
    return taps, outputs


def offsets_of(shape: ConvShape) -> Offsets:
    """Of the windows of one group's planes."""
    window = shape.window
    extents = window.reach if window.padded else window.extents
    taps, outputs = _distances(window, extents)
    planes = np.arange(shape.group_channels)[:, None] * math.prod(extents)
    return Offsets.of(4 * (planes + taps).reshape(-1), 4 * outputs, 4 * window.strides[-1])


def bind_convolution(shape: ConvShape) -> Bind:
    """x (N, C, D1…), w (M, C/group, k1…), optional bias (M)."""
    window, group = shape.window, shape.group
    parts = gathered_parts(shape)
    offsets: list[Offsets] = []

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if not offsets:
            offsets.append(offsets_of(shape))
        scratch, planes = carve(workspace, *parts)
        calls, x = aligned(inputs[0])
        copies, w = aligned(inputs[1])
        calls += copies
        bias = None
        if len(inputs) > 2 and inputs[2] is not None:
            copies, bias = aligned(inputs[2])
            calls += copies
        y, source = outputs[0], x
        if window.padded:
            source = planes
            calls.append(padding(x, planes, window))
        job = np.arange(shape.batch * group)
        extents = window.reach if window.padded else window.extents
        places = np.zeros((PLACES, len(job)), np.int64)
        places[LEFT] = address(w) + job % group * (4 * shape.group_maps * shape.depth)
        places[RIGHT] = address(source) + job * (4 * shape.group_channels * math.prod(extents))
        places[END] = address(source) + source.nbytes
        places[OUT] = address(y) + job * (4 * shape.group_maps * window.positions)
        if bias is not None:
            places[BIAS_PLACE] = address(bias) + job % group * (4 * shape.group_maps)
        steps = 4 * shape.depth, 4 * window.positions
        operands = x, w, bias, y, planes
        calls.append(bind_gathered(shape.group_maps, steps, places, offsets[0], scratch, operands))
        return in_turn(calls)

    return bind


def padding(x: Array, planes: Array, window: Window) -> Call:
    """The call that fills the planes."""
    reach = window.reach
    padded = planes[: x.shape[0] * x.shape[1] * math.prod(reach)].reshape(*x.shape[:2], *reach)
    if len(reach) > 2:
        return in_turn([partial(padded.fill, 0), partial(np.copyto, interior(padded, window), x)])
    height, width = (1, *window.extents)[-2:]
    target = padded.reshape(-1, *(1, *reach)[-2:])
    function = pad_planes.variant(x, parallel=padded.size >= 2 * PARALLEL_ELEMENTS)
    top, left = (0, *window.begins)[-2:]
    return bound(function, x.reshape(-1, height, width), target, top, left)


def _pad_planes_numpy(x: Any, out: Any, top: int, left: int) -> None:
    out.fill(0)
    out[:, top : top + x.shape[1], left : left + x.shape[2]] = x


@jit("f4[3], f4[3]!, i8, i8", twin=_pad_planes_numpy, exact=True)
def pad_planes(x: Array, out: Array, top: int, left: int) -> None:
    """Planes x (C, H, W) into out (C, H', W') from row `top` and column `left` on, and zeros around them."""
    height, width = x.shape[1], x.shape[2]
    for c in prange(x.shape[0]):
        out[c, :top, :] = np.float32(0)
        out[c, top + height :, :] = np.float32(0)
        for r in range(height):
            line, part = out[c, top + r], x[c, r]
            line[:left] = np.float32(0)
            line[left + width :] = np.float32(0)
            for q in range(width):
                line[left + q] = part[q]
