"""Winograd F(2×2, 3×3): 16 products for 2×2 outputs of a 3×3 convolution, not 36 (Lavin, Gray 2015)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Bind, Call
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.derived import Keeper
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm_gathered import END, LEFT, OUT, PLACES, RIGHT, Offsets, bind_gathered, scratch_part
from hetero.kernels.jit import PARALLEL_ELEMENTS, enabled, jit, prange
from hetero.kernels.jit_call import bound
from hetero.kernels.jit_tiles import columns
from hetero.kernels.row_loops import address
from hetero.kernels.widen import is_constant
from hetero.kernels.window import Window
from hetero.kernels.winograd_tiles import transform_tiles
from hetero.kernels.workspace import Part, carve
from hetero.types import Array

BLOCK_BYTES = 2 << 20
"""Transformed tiles and products of a block: what two cores' second-level caches hold."""

FEWEST_CHANNELS = 16
"""And maps: with fewer, transforms are most of the work."""
_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])


def winograd_serves(shape: ConvShape, dtype: np.dtype[Any], xp: Any) -> bool:
    """Dense 3×3 kernels of stride 1 on the host, with enough channels that products are most of the work, and enough
    windows that there are fewer of them.

    float64 stays with plain products: whoever asks for it wants its last digits.
    """
    w = shape.window
    return (
        xp is np
        and dtype == np.float32
        and shape.group == 1
        and w.kernel == (3, 3)
        and w.strides == w.dilations == (1, 1)
        and shape.channels >= FEWEST_CHANNELS
        and shape.maps >= FEWEST_CHANNELS
        and min(w.outputs) >= 4
        and _fills_panels(w)
    )


def _fills_panels(window: Window) -> bool:
    """Whether 16 products of tiles are less work than 9 of windows, both of whole panels."""
    panel = columns() if enabled() else 1
    tiles = math.prod(-(-extent // 2) for extent in window.outputs)
    return 5 * 16 * (-(-tiles // panel)) <= 4 * 9 * (-(-window.positions // panel))


def _tiles(shape: ConvShape) -> tuple[int, int]:
    rows, columns = shape.window.outputs
    return (rows + 1) // 2, (columns + 1) // 2


def _block(shape: ConvShape) -> int:
    """Rows of tiles transformed and multiplied at a time."""
    rows, columns = _tiles(shape)
    row_bytes = 16 * (shape.channels + 1 + shape.maps + 1) * columns * 4
    return max(1, min(rows, BLOCK_BYTES // row_bytes))


def _apart(count: int, tiles: int) -> int:
    """`count`, or one more: planes of so many rows of tiles. All 16 are gone through at once, and where they lay a
    multiple of 512 bytes apart, they would drive each other out of the first cache: twice the time."""
    return count + 1 if (4 * count * tiles + 64) % 512 < 128 else count


def winograd_parts(shape: ConvShape) -> tuple[Part, ...]:
    """Panels, transformed weights, a block of transformed input tiles, their products."""
    if shape.empty:
        return ()
    rows, columns = _block(shape), _tiles(shape)[1]
    f4 = np.float32
    return (
        scratch_part() if enabled() else ((0,), f4),
        ((16, shape.maps, shape.channels), f4),
        ((16, _apart(shape.channels, rows * columns), rows * columns), f4),
        ((16, _apart(shape.maps, rows * columns), rows * columns), f4),
    )


def transform_weights(w: Array, out: Array) -> None:
    """w (K, C, 3, 3) into out (16, K, C): G w Gᵀ per kernel, rounded once."""
    k, c = w.shape[:2]
    out.reshape(4, 4, k, c)[...] = np.einsum("ai,kcij,bj->abkc", _G, w, _G, optimize=True)


def bind_winograd(shape: ConvShape) -> Bind:
    """x (N, C, H, W), w (K, C, 3, 3); the weights' transform is kept where they are constant."""
    rows, columns = _tiles(shape)
    top, left = shape.window.begins
    parts = winograd_parts(shape)
    block = _block(shape)
    parallel = shape.channels * block * columns * 16 >= 4 * PARALLEL_ELEMENTS
    keep = Keeper()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if shape.empty:
            return lambda: None
        scratch, u, v, m = carve(workspace, *parts)
        x, w, y = inputs[0], inputs[1], outputs[0]
        bias = inputs[2] if len(inputs) > 2 and inputs[2] is not None else np.zeros(shape.maps, np.float32)
        constant = is_constant(w)
        if constant:

            def make() -> Array:
                transformed = np.empty(u.shape, u.dtype)
                transform_weights(w, transformed)
                return transformed

            factor = keep("winograd", (w,), make)
        else:
            factor = u
        forward = transform_tiles.variant(x, parallel=parallel)
        backward = gather_tiles.variant(bias, parallel=parallel)
        jobs: list[Call] = []
        for n in range(shape.batch):
            for first in range(0, rows, block):
                count = min(block, rows - first)
                used = count * columns
                tiles, products = (
                    each.reshape(-1)[: 16 * each.shape[1] * used].reshape(16, each.shape[1], used)
                    for each in (v, m)
                )
                transform = bound(forward, x[n], tiles, top - 2 * first, left, count, columns)
                gather = bound(backward, products, bias, y[n], first, count, columns)
                jobs += [transform, _products(factor, tiles, products, scratch), gather]
        if not constant:
            jobs.insert(0, partial(transform_weights, w, u))
        return in_turn(jobs)

    return bind


def _products(factor: Array, tiles: Array, out: Array, scratch: Array) -> Call:
    """The call out = factor @ tiles of sixteen matrices each; behind theirs, `tiles` and `out` may have a row more."""
    k, c = factor.shape[1:]
    if not enabled():
        return partial(np.matmul, factor, tiles[:, :c], out[:, :k])
    n = tiles.shape[2]
    places = np.zeros((PLACES, 16), np.int64)
    for place, array in ((LEFT, factor), (RIGHT, tiles), (OUT, out)):
        places[place] = address(array) + np.arange(16) * array.strides[0]
    places[END] = address(tiles) + tiles.nbytes
    right = Offsets.of(np.arange(c) * (4 * n), np.arange(n) * 4, 4)
    return bind_gathered(k, (4 * c, 4 * n), places, right, scratch, (factor, tiles, out))


def _gather_tiles_numpy(m: Array, bias: Array, y: Array, first: int, rows: int, columns: int) -> None:
    y = y[:, 2 * first : 2 * (first + rows)]
    maps, height, width = y.shape
    t = m[:, :maps].reshape(4, 4, maps, rows, columns)
    r = (t[0] + t[1] + t[2], t[1] - t[2] - t[3])
    b = bias[:, None, None]
    for i in range(2):
        high = (height - i + 1) // 2
        for j, part in enumerate((r[i][0] + r[i][1] + r[i][2] + b, r[i][1] - r[i][2] - r[i][3] + b)):
            wide = (width - j + 1) // 2
            y[:, i::2, j::2] = part[:, :high, :wide]


@jit("f4[3], f4[1], f4[3]!, i8, i8, i8", twin=_gather_tiles_numpy)
def gather_tiles(m: Array, bias: Array, y: Array, first: int, rows: int, columns: int) -> None:
    """m (16, K or more, rows*columns) into the tiles of y (K, H, W) from row `first` on: Aᵀ m A plus bias, cut at its
    edge."""
    height, width = y.shape[1], y.shape[2]
    whole = width // 2
    for k in prange(y.shape[0]):
        shift = bias[k]
        r = np.empty((2, 4, columns), np.float32)
        for a in range(rows):
            p = a * columns
            for j in range(4):
                for b in range(columns):
                    m1 = m[4 + j, k, p + b]
                    m2 = m[8 + j, k, p + b]
                    r[0, j, b] = m[j, k, p + b] + m1 + m2
                    r[1, j, b] = m1 - m2 - m[12 + j, k, p + b]
            for i in range(min(2, height - 2 * (first + a))):
                row = y[k, 2 * (first + a) + i]
                for b in range(whole):
                    row[2 * b] = r[i, 0, b] + r[i, 1, b] + r[i, 2, b] + shift
                    row[2 * b + 1] = r[i, 1, b] - r[i, 2, b] - r[i, 3, b] + shift
                if whole < columns:
                    row[width - 1] = r[i, 0, whole] + r[i, 1, whole] + r[i, 2, whole] + shift
