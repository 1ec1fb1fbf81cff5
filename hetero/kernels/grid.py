"""GridSample and AffineGrid: sampling an input at coordinates that are themselves data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.limits import bounded
from hetero.kernels.operands import fail, host_reason, known_ints, text_of
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.window import spatial
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

FLOATS = frozenset((np.dtype(np.float32), np.dtype(np.float64)))
CUBIC_A = -0.75
_MODES = {
    "linear": "linear",
    "bilinear": "linear",
    "nearest": "nearest",
    "cubic": "cubic",
    "bicubic": "cubic",
}


@kernel("GridSample", versions=(16, 20, 22))
def grid_sample(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, D1…Dr), grid (N, o1…or, r) of coordinates in [-1, 1], last axis of X first -> (N, C, o1…or)."""
    x, grid = spatial(op, specs), tensor(op, specs, 1)
    if x.dtype in NARROW:
        return widened(grid_sample, op, specs, xp)
    if x.dtype not in FLOATS or grid.dtype not in FLOATS | NARROW:
        raise UnsupportedError(f"GridSample of {x.dtype} at {grid.dtype}", op=op.id, node=op.name)
    extents = x.shape[2:]
    rank = len(extents)
    if len(grid.shape) != rank + 2 or grid.shape[-1] != rank or grid.shape[0] != x.shape[0]:
        fail(op, f"grid of shape {list(grid.shape)} for input of {list(x.shape)}", "grid")
    mode = _MODES.get(text_of(op, "mode", "linear"))
    padding = text_of(op, "padding_mode", "zeros")
    if mode is None or padding not in ("zeros", "border", "reflection"):
        fail(op, f"unknown mode {op.attr('mode')!r} or padding_mode {padding!r}", "mode")
    if mode == "cubic" and rank != 2:
        raise UnsupportedError(f"cubic sampling of {rank} axes", op=op.id, node=op.name)
    align = bool(op.attr("align_corners", 0))
    output = TensorSpec(x.dtype, (*x.shape[:2], *grid.shape[1:-1]))
    if output.size and not prod(extents):
        fail(op, f"nothing to sample in shape {list(x.shape)}")
    points = prod(grid.shape[1:-1])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        planes = inputs[0].reshape(*x.shape[:2], prod(extents))
        places = inputs[1].reshape(x.shape[0], points, rank)
        y = outputs[0].reshape(*x.shape[:2], points)

        def call() -> None:
            for source, place, target in zip(planes, places, y, strict=True):
                coordinates = [
                    _denormal(place[:, rank - 1 - a].astype(x.dtype), e, align) for a, e in enumerate(extents)
                ]
                _sample(xp, source, target, extents, coordinates, mode, padding, align)

        return call if output.size else lambda: None

    reason = host_reason(xp, "allocates intermediate arrays")
    return computed((output,), bind, contiguous=(0, 1), capture=reason)


def _denormal(g: Array, extent: int, align: bool) -> Array:
    """[-1, 1] onto the centres of the first and last element (`align`), or onto their outer edges."""
    return (g + 1) / 2 * (extent - 1) if align else ((g + 1) * extent - 1) / 2


def _reflect(xp: Any, c: Array, extent: int, align: bool) -> Array:
    """Coordinates folded back into the span of the elements, between centres (`align`) or edges."""
    low, high = (0.0, extent - 1.0) if align else (-0.5, extent - 0.5)
    span = high - low
    if span == 0:
        return xp.zeros_like(c)
    distance = xp.absolute(c - low)
    turns = xp.floor(distance / span)
    rest = distance - turns * span
    return xp.where(turns % 2 == 0, low + rest, high - rest)


def _taps(xp: Any, c: Array, mode: str) -> list[tuple[Array, Array | None]]:
    """(element position, weight) per tap along one axis; the weight is None where it is 1."""
    if mode == "nearest":
        return [(xp.rint(c), None)]
    left = xp.floor(c)
    r = c - left
    if mode == "linear":
        return [(left, 1 - r), (left + 1, r)]
    a = CUBIC_A
    s, t = r + 1, 1 - r
    u = 1 + t
    return [
        (left - 1, ((a * s - 5 * a) * s + 8 * a) * s - 4 * a),
        (left, ((a + 2) * r - (a + 3)) * r * r + 1),
        (left + 1, ((a + 2) * t - (a + 3)) * t * t + 1),
        (left + 2, ((a * u - 5 * a) * u + 8 * a) * u - 4 * a),
    ]


def _sample(
    xp: Any,
    source: Array,
    target: Array,
    extents: Sequence[int],
    coordinates: Sequence[Array],
    mode: str,
    padding: str,
    align: bool,
) -> None:
    """One sample: source (C, elements) at coordinates (one array of points per axis) into target (C, points)."""
    axes = []
    for c, extent in zip(coordinates, extents, strict=True):
        if mode != "cubic":  # cubic pads element by element, the others the coordinate itself
            if padding == "reflection":
                c = _reflect(xp, c, extent, align)
            if padding != "zeros":
                c = xp.clip(c, 0, extent - 1)
        taps = []
        for spot, weight in _taps(xp, c, mode):
            if padding == "reflection" and mode == "cubic":
                spot = xp.rint(_reflect(xp, spot, extent, align))
            if padding == "zeros":
                inside = (spot >= 0) & (spot <= extent - 1)
                weight = inside.astype(c.dtype) if weight is None else xp.where(inside, weight, 0)
            # NaN and far-off coordinates become a legal index; their weight decides what they count
            index = xp.nan_to_num(xp.clip(spot, 0, extent - 1)).astype(np.int64)
            taps.append((index, weight))
        axes.append(taps)
    first = True
    for combination in product(*axes):
        flat: Any = 0
        share: Any = None
        for (index, part), extent in zip(combination, extents, strict=True):
            flat = flat * extent + index
            if part is not None:
                share = part if share is None else share * part
        values = source.take(flat, axis=1)
        if share is not None:
            values *= share
        if first:
            target[...] = values
            first = False
        else:
            target += values


@kernel("AffineGrid", versions=(20,), values=(1,))
def affine_grid(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """theta (N, r, r+1), size (N, C, D1…Dr) -> grid (N, D1…Dr, r) of sampling coordinates, last axis first."""
    theta = tensor(op, specs, 0)
    size = known_ints(op, specs, 1, "size")
    if theta.dtype in NARROW:
        return widened(affine_grid, op, specs, xp)
    if theta.dtype not in FLOATS:
        raise UnsupportedError(f"AffineGrid of {theta.dtype}", op=op.id, node=op.name)
    if size is None or len(size) not in (4, 5) or min(size) < 0:
        fail(op, f"size {size} must hold 4 or 5 extents", "size")
    extents = size[2:]
    rank = len(extents)
    if theta.shape != (size[0], rank, rank + 1):
        fail(op, f"theta of shape {list(theta.shape)} for size {list(size)}", "theta")
    output = bounded(op, theta.dtype, (size[0], *extents, rank))
    align = bool(op.attr("align_corners", 0))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        lines = [_centres(e, align) for e in extents]
        mesh = np.meshgrid(*lines, indexing="ij")
        base = np.stack([m.reshape(-1) for m in mesh[::-1]] + [np.ones(prod(extents))], axis=1)
        points = xp.asarray(base.astype(theta.dtype))
        y = outputs[0].reshape(size[0], prod(extents), rank)
        maps = inputs[0].swapaxes(1, 2)
        return lambda: xp.matmul(points, maps, out=y)

    return computed((output,), bind)


def _centres(extent: int, align: bool) -> np.ndarray[Any, Any]:
    """Normalised coordinates of an axis's elements: -1 and 1 are its first and last (`align`), or its edges.

    The text leaves the only element of an axis undefined under `align`; PyTorch puts it at 0.
    """
    if align:
        return np.linspace(-1, 1, extent) if extent > 1 else np.zeros(extent)
    return (2 * np.arange(extent) + 1) / max(extent, 1) - 1
