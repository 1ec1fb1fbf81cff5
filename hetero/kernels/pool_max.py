"""The largest of each window over one or two axes, plane by plane: rows into a line, then the line into the output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.jit import PARALLEL_ELEMENTS, inline, jit, prange
from hetero.kernels.jit_call import bound
from hetero.kernels.window import Window, axis_taps
from hetero.types import Array

_LOWEST = np.float32(-np.inf)


def bind_max_planes(x: Array, y: Array, window: Window, otherwise: Callable[[], Call]) -> Call:
    """x (planes, *extents) -> y (planes, *outputs). `otherwise` binds what to call without compiled code."""
    flat = len(window.kernel) == 1
    if len(window.kernel) > 2 or window.strides[-1] > 2 or x.size == 0 or y.size == 0:
        return otherwise()
    function = max_planes.variant(x, y, parallel=x.size >= PARALLEL_ELEMENTS)
    if function is max_planes.twin:
        return otherwise()
    if flat:
        x, y = x[:, None], y[:, None]
    sizes = (window.kernel, window.strides, window.dilations)
    steps = [n for pair in sizes for n in ((1, *pair) if flat else pair)]
    begins = (0, *window.begins) if flat else window.begins
    return bound(function, x, y, *steps, *begins)


def _max_planes_numpy(
    x: Array,
    y: Array,
    kh: int,
    kw: int,
    sh: int,
    sw: int,
    dh: int,
    dw: int,
    top: int,
    left: int,
) -> None:
    window = Window(x.shape[1:], (kh, kw), (sh, sw), (dh, dw), (top, left), (top, left), y.shape[1:])
    y[...] = _LOWEST
    for out_r, read_r in axis_taps(window, 0):
        for out_q, read_q in axis_taps(window, 1):
            np.maximum(y[:, out_r, out_q], x[:, read_r, read_q], out=y[:, out_r, out_q])


@inline
def larger(a: Any, b: Any) -> Any:
    """The larger number, or NaN where one of the two is."""
    return a if (a >= b) | (a != a) else b


@jit("f4[3], f4[3]!, i8, i8, i8, i8, i8, i8, i8, i8", twin=_max_planes_numpy)
def max_planes(
    x: Array,
    y: Array,
    kh: int,
    kw: int,
    sh: int,
    sw: int,
    dh: int,
    dw: int,
    top: int,
    left: int,
) -> None:
    """x (P, H, W), y (P, OH, OW): output (r, q) is the largest of x at rows r*sh + i*dh - top, columns alike.

    sw is 1 or 2.
    """
    height, width = x.shape[1], x.shape[2]
    rows, columns = y.shape[1], y.shape[2]
    # A line holds a row's columns behind `left` pads, in steps of sw; every tap of every output lies in it.
    pitch = max(columns + ((kw - 1) * dw) // sw, (left + width + sw - 1) // sw)
    for p in prange(x.shape[0]):
        line = np.empty(pitch * sw, np.float32)
        line[:] = _LOWEST
        middle = line[left : left + width]
        for r in range(rows):
            start = r * sh - top
            lo = min(max(0, (dh - 1 - start) // dh), kh)
            hi = max(lo, min(kh, (height - 1 - start) // dh + 1))
            i = lo
            # Two taps in one pass where there are two: a pass has a cost of its own, and lines are short.
            if hi - lo == 0:
                middle[:] = _LOWEST
            elif hi - lo == 1:
                part = x[p, start + i * dh]
                for q in range(width):
                    middle[q] = part[q]
                i += 1
            else:
                part, below = x[p, start + i * dh], x[p, start + (i + 1) * dh]
                for q in range(width):
                    middle[q] = larger(part[q], below[q])
                i += 2
            while i < hi:
                part = x[p, start + i * dh]
                for q in range(width):
                    middle[q] = larger(middle[q], part[q])
                i += 1
            out = y[p, r]
            # Slices, not index sums: numba checks a sum for wrapping round below zero, which stops SIMD.
            if sw == 1:
                run = line[:columns]
                j = 1
                if kw == 1:
                    for q in range(columns):
                        out[q] = run[q]
                else:
                    beside = line[dw:][:columns]
                    for q in range(columns):
                        out[q] = larger(run[q], beside[q])
                    j = 2
                while j < kw:
                    run = line[j * dw :][:columns]
                    for q in range(columns):
                        out[q] = larger(out[q], run[q])
                    j += 1
            else:
                pairs = line.reshape(pitch, 2)
                first = pairs[:columns]
                j = 1
                if kw == 1:
                    for q in range(columns):
                        out[q] = first[q, 0]
                else:
                    second = pairs[dw // 2 :][:columns]
                    if dw % 2:
                        for q in range(columns):
                            out[q] = larger(first[q, 0], second[q, 1])
                    else:
                        for q in range(columns):
                            out[q] = larger(first[q, 0], second[q, 0])
                    j = 2
                while j < kw:
                    other = pairs[j * dw // 2 :][:columns]
                    if j * dw % 2:
                        for q in range(columns):
                            out[q] = larger(out[q], other[q, 1])
                    else:
                        for q in range(columns):
                            out[q] = larger(out[q], other[q, 0])
                    j += 1
