"""Depthwise convolution on the host: each output row is a weighted sum of shifted input rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Bind, Call
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.jit import PARALLEL_ELEMENTS, jit, prange
from hetero.types import Array


def depthwise_serves(shape: ConvShape, dtype: np.dtype[Any], xp: Any) -> bool:
    """Two spatial axes, one channel a group, on the host."""
    return xp is np and len(shape.window.kernel) == 2 and shape.group_channels == 1 and not shape.empty


def bind_depthwise(shape: ConvShape) -> Bind:
    """(N, C, H, W) with (C*m, 1, kh, kw); no workspace: windows that leave the input are clipped."""
    win = shape.window
    n, c, m = shape.batch, shape.channels, shape.maps
    geometry = (*win.strides, *win.dilations, *win.begins)
    work = n * m * win.positions * win.taps

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        x = inputs[0].reshape(n * c, *win.extents)
        w = inputs[1].reshape(m, *win.kernel)
        y = outputs[0].reshape(n * m, *win.outputs)
        bias = inputs[2] if len(inputs) > 2 and inputs[2] is not None else np.zeros(m, x.dtype)
        function = depthwise.variant(x, w, bias, parallel=work >= 8 * PARALLEL_ELEMENTS)
        return lambda: function(x, w, bias, y, *geometry)

    return bind


def _span(extent: int, outputs: int, stride: int, shift: int) -> tuple[int, int]:
    """Outputs [lo, hi) whose input o*stride + shift lies in [0, extent)."""
    lo = min(max(0, -(shift // stride)), outputs)
    return lo, max(lo, min(outputs, (extent - 1 - shift) // stride + 1))


def _depthwise_numpy(
    x: Array, w: Array, bias: Array, y: Array, sh: int, sw: int, dh: int, dw: int, top: int, left: int
) -> None:
    planes, height, width = x.shape
    maps, kh, kw = w.shape
    per = y.shape[0] // planes
    xs = x.reshape(-1, 1, height, width)
    ys = y.reshape(planes, per, *y.shape[1:])
    repeat = planes * per // maps
    ws = np.tile(w.reshape(-1, per, kh, kw), (repeat, 1, 1, 1))
    ys[...] = np.tile(bias.reshape(-1, per), (repeat, 1))[..., None, None]
    for i in range(kh):
        for j in range(kw):
            t, l = i * dh - top, j * dw - left  # noqa: E741
            r0, r1 = _span(height, y.shape[1], sh, t)
            q0, q1 = _span(width, y.shape[2], sw, l)
            if r0 == r1 or q0 == q1:
                continue
            part = xs[..., r0 * sh + t : (r1 - 1) * sh + t + 1 : sh, q0 * sw + l : (q1 - 1) * sw + l + 1 : sw]
            ys[..., r0:r1, q0:q1] += part * ws[:, :, i, j, None, None]


@jit(
    "f4[3], f4[3], f4[1], f4[3]!, i8, i8, i8, i8, i8, i8",
    "f8[3], f8[3], f8[1], f8[3]!, i8, i8, i8, i8, i8, i8",
    twin=_depthwise_numpy,
)
def depthwise(
    x: Array, w: Array, bias: Array, y: Array, sh: int, sw: int, dh: int, dw: int, top: int, left: int
) -> None:
    """Planes x (N*C, H, W), w (M, kh, kw), bias (M), y (N*M, OH, OW); M a multiple of C."""
    height, width = x.shape[1], x.shape[2]
    maps, kh, kw = w.shape
    per = y.shape[0] // x.shape[0]
    rows, columns = y.shape[1], y.shape[2]
    for p in prange(y.shape[0]):
        k = p % maps
        plane = x[p // per]
        for r in range(rows):
            row = y[p, r]
            for q in range(columns):
                row[q] = bias[k]
            for i in range(kh):
                at = r * sh - top + i * dh
                if at < 0 or at >= height:
                    continue
                source = plane[at]
                for j in range(kw):
                    weight = w[k, i, j]
                    shift = j * dw - left
                    lo = min(max(0, -(shift // sw)), columns)
                    hi = max(lo, min(columns, (width - 1 - shift) // sw + 1))
                    if sw == 1:
                        for q in range(lo, hi):
                            row[q] += weight * source[q + shift]
                    else:
                        for q in range(lo, hi):
                            row[q] += weight * source[q * sw + shift]
