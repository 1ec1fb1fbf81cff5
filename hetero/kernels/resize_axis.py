"""Resampling one axis: from the output's positions to the input elements that each is made of, and their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.kernels.jit import PARALLEL_ELEMENTS, jit, prange
from hetero.types import Array, HostArray

COORDINATE_MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")


@dataclass(frozen=True, slots=True)
class AxisTable:
    """Output o along `axis` is the sum over k of weight[o, k] * input[index[o, k]]; `outside` lists the outputs that
    take the extrapolation value instead. Where `exact`, there is one weight, 1, and any dtype may be taken."""

    axis: int
    index: HostArray
    weight: HostArray
    outside: HostArray
    exact: bool

    def identity(self, extent: int) -> bool:
        """Whether the axis passes unchanged."""
        return (
            self.exact
            and not self.outside.size
            and len(self.index) == extent
            and bool((self.index[:, 0] == np.arange(extent)).all())
        )


@dataclass(frozen=True, slots=True)
class Sampling:
    """How positions are mapped and weighted: the attributes of Resize."""

    mode: str = "nearest"
    coordinates: str = "asymmetric"
    nearest: str = "floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


def positions(
    how: Sampling, extent: int, count: int, scale: float, length: float, roi: tuple[float, float]
) -> HostArray:
    """The input coordinate of each of `count` outputs, in how.coordinates. `length`: extent * scale before rounding.

    Rounded to float32 where a tie or an edge decides between elements, so that the last bits of a double do not.
    """
    exact = _positions(how, extent, count, scale, length, roi)
    if how.mode == "nearest" or how.coordinates == "tf_crop_and_resize":
        return exact.astype(np.float32)
    return exact


def _positions(
    how: Sampling, extent: int, count: int, scale: float, length: float, roi: tuple[float, float]
) -> HostArray:
    x: HostArray = np.arange(count, dtype=np.float64)
    if how.coordinates == "align_corners":
        return x * ((extent - 1) / (length - 1)) if length != 1 else x * 0
    if how.coordinates == "asymmetric":
        return x / scale
    if how.coordinates == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if how.coordinates == "tf_crop_and_resize":
        start, end = roi
        if count <= 1:
            return np.full(count, 0.5 * (start + end) * (extent - 1))
        return start * (extent - 1) + x * ((end - start) * (extent - 1) / (count - 1))
    if how.coordinates == "pytorch_half_pixel" and count <= 1:
        return x * 0
    found: HostArray = (x + 0.5) / scale - 0.5
    if how.coordinates == "half_pixel_symmetric" and length > 0:
        found += extent / 2 * (1 - count / length)
    return found


def axis_table(
    how: Sampling, axis: int, extent: int, count: int, scale: float, length: float, roi: tuple[float, float]
) -> AxisTable:
    """The table of one axis of `extent` > 0 elements resampled to `count`."""
    x = positions(how, extent, count, scale, length, roi)
    outside = np.flatnonzero((x < 0) | (x > extent - 1)) if how.coordinates == "tf_crop_and_resize" else x[:0]
    outside = outside.astype(np.int64)
    if how.mode == "nearest":
        index = np.clip(_nearest(how.nearest, x, scale), 0, extent - 1).astype(np.int64)[:, None]
        return AxisTable(axis, index, np.ones(index.shape), outside, True)
    left = np.ceil(x) - 1  # so that the ratio lies in (0, 1]
    ratio = (x - left)[:, None]
    shrink = min(scale, 1.0) if how.antialias else 1.0
    curve: Callable[[HostArray], Any] = _triangle if how.mode == "linear" else _cubic(how.cubic_a)
    support = 1 if how.mode == "linear" else 2
    first = int(np.floor(-support / shrink)) + 1
    steps = np.arange(first, 2 - first if how.mode == "linear" or shrink < 1 else 3)
    steps = steps[steps <= support / shrink + 1]
    weight = curve((steps - ratio) * shrink)
    spots = left[:, None] + steps
    if how.exclude_outside:
        weight = np.where((spots >= 0) & (spots < extent), weight, 0)
    if how.exclude_outside or how.antialias:
        total = weight.sum(1, keepdims=True)
        weight = weight / np.where(total == 0, 1, total)
    index = np.clip(spots, 0, extent - 1).astype(np.int64)
    used = (weight != 0).any(0)
    if used.any():
        index, weight = index[:, used], weight[:, used]
    exact = index.shape[1] == 1 and bool((weight == 1).all())
    return AxisTable(axis, np.ascontiguousarray(index), np.ascontiguousarray(weight), outside, exact)


def _nearest(mode: str, x: HostArray, scale: float) -> Any:
    half = x.dtype.type(0.5)
    if mode == "round_prefer_floor":
        return np.ceil(x - half)
    if mode == "round_prefer_ceil":
        return np.floor(x + half)
    if mode == "ceil" or (mode == "simple" and scale < 1):
        return np.ceil(x)
    return np.floor(x)


def _triangle(distance: HostArray) -> Any:
    return np.maximum(1 - np.abs(distance), 0)


def _cubic(a: float) -> Callable[[HostArray], Any]:
    """The convolution curve of Keys (1981) with parameter a."""

    def curve(distance: HostArray) -> Any:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return curve


def resample(x: Array, y: Array, index: Array, weight: Array) -> Any:
    """What to call to resample x (B, I, R) into y (B, O, R) by tables (O, K) on their own array module."""
    if isinstance(x, np.ndarray):
        return weigh.variant(x, y, parallel=y.size * weight.shape[1] >= 4 * PARALLEL_ELEMENTS)
    return _weigh_arrays


def _weigh_arrays(x: Array, y: Array, index: Array, weight: Array) -> None:
    for k in range(index.shape[1]):
        part = x.take(index[:, k], axis=1) * weight[:, k, None]
        if k == 0:
            y[...] = part
        else:
            y += part


@jit("f4[3], f4[3]!, i8[2], f4[2]", "f8[3], f8[3]!, i8[2], f8[2]", twin=_weigh_arrays)
def weigh(x: Array, y: Array, index: Array, weight: Array) -> None:
    """y[b, o, r] = sum over k of weight[o, k] * x[b, index[o, k], r], summed in order of k."""
    taps = index.shape[1]
    rest = y.shape[2]
    for b in prange(y.shape[0]):
        source = x[b]
        if rest == 1:
            for o in range(y.shape[1]):
                total = weight[o, 0] * source[index[o, 0], 0]
                for k in range(1, taps):
                    total += weight[o, k] * source[index[o, k], 0]
                y[b, o, 0] = total
            continue
        for o in range(y.shape[1]):
            row = y[b, o]
            line = source[index[o, 0]]
            w = weight[o, 0]
            for r in range(rest):
                row[r] = w * line[r]
            for k in range(1, taps):
                line = source[index[o, k]]
                w = weight[o, k]
                for r in range(rest):
                    row[r] += w * line[r]
