"""Gathering the columns of a convolution in one compiled pass, pads and all."""

from __future__ import annotations

from functools import partial

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.jit import PARALLEL_ELEMENTS, jit, prange
from hetero.kernels.window import Window, axis_taps
from hetero.types import Array

SHORT = 8
"""Outputs a row up to which one by one is faster than runs."""


def bind_columns(shape: ConvShape, x: Array, columns: Array) -> Call | None:
    """The call that gathers one sample x (C, *extents) into columns (its elements in the order C, *kernel, *outputs).

    None where there is no compiled code for it.
    """
    win = shape.window
    if len(win.kernel) > 2 or x.size == 0:
        return None
    flat = len(win.kernel) == 1
    function = gather_columns.variant(x, columns, parallel=columns.size >= 4 * PARALLEL_ELEMENTS)
    if function is gather_columns.twin:
        return None
    lead = (1,) if flat else ()
    source = x.reshape(shape.channels, *lead, *win.extents)
    target = columns.reshape(shape.channels, *lead, *win.kernel, *lead, *win.outputs)
    steps = (*lead, *win.strides, *lead, *win.dilations, *((0,) if flat else ()), *win.begins)
    return partial(function, source, target, *steps)


def _gather_columns_numpy(
    x: Array, columns: Array, sh: int, sw: int, dh: int, dw: int, top: int, left: int
) -> None:
    kernel, outputs = columns.shape[1:3], columns.shape[3:]
    window = Window(x.shape[1:], kernel, (sh, sw), (dh, dw), (top, left), (top, left), outputs)
    columns[...] = 0
    for i, (out_r, read_r) in enumerate(axis_taps(window, 0)):
        for j, (out_q, read_q) in enumerate(axis_taps(window, 1)):
            columns[:, i, j, out_r, out_q] = x[:, read_r, read_q]


@jit("f4[3], f4[5]!, i8, i8, i8, i8, i8, i8", twin=_gather_columns_numpy)
def gather_columns(x: Array, columns: Array, sh: int, sw: int, dh: int, dw: int, top: int, left: int) -> None:
    """x (C, H, W) into columns (C, kh, kw, OH, OW): what tap (i, j) of output (r, q) reads, zero beyond x."""
    height, width = x.shape[1], x.shape[2]
    kh, kw, rows, count = columns.shape[1], columns.shape[2], columns.shape[3], columns.shape[4]
    for c in prange(x.shape[0]):
        for i in range(kh):
            for j in range(kw):
                shift = j * dw - left
                lo = min(max(0, -(shift // sw)), count)
                hi = max(lo, min(count, (width - 1 - shift) // sw + 1))
                n = hi - lo
                first = lo * sw + shift
                for r in range(rows):
                    at = r * sh + i * dh - top
                    if count <= SHORT:
                        inside = 0 <= at < height
                        for q in range(count):
                            columns[c, i, j, r, q] = (
                                x[c, at, q * sw + shift] if inside and lo <= q < hi else np.float32(0)
                            )
                        continue
                    line = columns[c, i, j, r]
                    if n == 0 or at < 0 or at >= height:
                        line[:] = np.float32(0)
                        continue
                    for q in range(lo):
                        line[q] = np.float32(0)
                    for q in range(hi, count):
                        line[q] = np.float32(0)
                    # Slices, not index sums: numba checks a sum for wrapping round below zero, which stops SIMD.
                    target = line[lo:][:n]
                    part = x[c, at][first:]
                    if sw == 1:
                        for q in range(n):
                            target[q] = part[q]
                    elif sw == 2:
                        pairs = part[: 2 * (n - 1)].reshape(n - 1, 2)
                        for q in range(n - 1):
                            target[q] = pairs[q, 0]
                        target[n - 1] = part[2 * (n - 1)]
                    else:
                        for q in range(n):
                            target[q] = part[q * sw]
