"""Winograd's forward transform of 4×4 tiles, eight at a time: LLVM's vectors, with even and odd columns parted by
shuffles, since a compiler makes sixteen loops over pairs of columns of it."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np

from hetero.kernels.jit import floats_at, jit, native, prange
from hetero.kernels.jit_lanes import LANES, Writer, rows_at
from hetero.types import Array

EIGHT = 8
"""Tiles that are transformed together."""


def _compiled(numba: Any) -> Any:
    return _transform(numba)


@native(_compiled)
def transform_eight_at(source: int, step: int, target: int, target_step: int) -> Any:
    """Bᵀ d B for eight 4×4 tiles d, 2 columns apart, of four rows that lie `step` bytes apart: element (i, j) of all
    eight goes to row 4 i + j, of rows `target_step` bytes apart."""
    d = rows_at(source, step, 4, 2 * EIGHT + 2)
    t = np.stack((d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]))
    e = [t[:, j : j + 2 * EIGHT : 2] for j in range(4)]
    out = np.stack((e[0] - e[2], e[1] + e[2], e[2] - e[1], e[1] - e[3]), 1)
    rows_at(target, target_step, 16, EIGHT)[:] = out.reshape(16, EIGHT)
    return 0


@cache
def _transform(numba: Any) -> Any:
    """What numba compiles these calls to."""
    int64 = numba.types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write = Writer(builder)
        source, step, target, target_step = arguments
        minus, plus = builder.fsub, builder.fadd
        at = [builder.add(source, builder.mul(step, write.number(i))) for i in range(4)]
        ahead: list[list[Any]] = []
        for shift in (0, 2):  # the elements 0 to 15 of each row, and 2 to 17
            d = [write.load(write.vector, row, write.number(shift)) for row in at]
            ahead.append([minus(d[0], d[2]), plus(d[1], d[2]), minus(d[2], d[1]), minus(d[1], d[3])])
        even, odd = list(range(0, LANES, 2)), list(range(1, LANES, 2))
        for i, (near, far) in enumerate(zip(*ahead, strict=True)):
            e = [write.shuffled(x, x, lanes) for x in (near, far) for lanes in (even, odd)]
            found = (minus(e[0], e[2]), plus(e[1], e[2]), minus(e[2], e[1]), minus(e[1], e[3]))
            for j, value in enumerate(found):
                row = builder.add(target, builder.mul(target_step, write.number(4 * i + j)))
                write.store(value, row, write.number(0))
        return write.number(0)

    def typed(typing: Any, source: Any, step: Any, target: Any, target_step: Any) -> Any:
        return int64(int64, int64, int64, int64), generate

    return importlib.import_module("numba.extending").intrinsic(typed)


def _transform_tiles_numpy(x: Array, v: Array, top: int, left: int, rows: int, columns: int) -> None:
    c, height, width = x.shape
    planes = np.zeros((c, 2 * rows + 2, 2 * columns + 2), x.dtype)
    skip = max(0, -top)  # input rows above this block
    h, w = min(height - skip, planes.shape[1] - max(top, 0)), min(width, planes.shape[2] - left)
    if h > 0 and w > 0:
        planes[:, max(top, 0) : max(top, 0) + h, left : left + w] = x[:, skip : skip + h, :w]
    # d[i][..., j::2] runs over the tiles' element (i, j)
    d = [planes[:, i : i + 2 * rows : 2] for i in range(4)]
    t = (d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3])
    out = v.reshape(4, 4, -1, rows, columns)[:, :, :c]
    for i in range(4):
        e = [t[i][..., j : j + 2 * columns : 2] for j in range(4)]
        np.subtract(e[0], e[2], out=out[i, 0])
        np.add(e[1], e[2], out=out[i, 1])
        np.subtract(e[2], e[1], out=out[i, 2])
        np.subtract(e[1], e[3], out=out[i, 3])


@jit("f4[3], f4[3]!, i8, i8, i8, i8", twin=_transform_tiles_numpy, exact=True)
def transform_tiles(x: Array, v: Array, top: int, left: int, rows: int, columns: int) -> None:
    """x (C, H, W) into v (16, C or more, rows*columns): Bᵀ d B for each 4×4 tile d, tiles 2 apart, zeros around x."""
    height, width = x.shape[1], x.shape[2]
    n = max(2 * columns, 2 * EIGHT) + 2
    end = min(width + left, n)
    step = 4 * v.shape[1] * v.shape[2]
    for c in prange(x.shape[0]):
        d = np.zeros((2 * rows + 2, n), np.float32)
        for i in range(2 * rows + 2):
            at = i - top
            if 0 <= at < height:
                line, part = d[i], x[c, at]
                for q in range(left, end):
                    line[q] = part[q - left]
        few = np.empty((16, EIGHT), np.float32)
        source, spare = d.ctypes.data, few.ctypes.data
        for a in range(rows):
            target = v.ctypes.data + 4 * (c * rows + a) * columns
            row = source + 8 * a * n
            if columns < EIGHT:
                transform_eight_at(row, 4 * n, spare, 4 * EIGHT)
                for k in range(16):
                    line = floats_at(target + k * step, columns)
                    for b in range(columns):
                        line[b] = few[k, b]
            else:
                b = 0
                while b < columns:
                    b = min(b, columns - EIGHT)  # the last ones once more: nothing is written behind them
                    transform_eight_at(row + 8 * b, 4 * n, target + 4 * b, step)
                    b += EIGHT
