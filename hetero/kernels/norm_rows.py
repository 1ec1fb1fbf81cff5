"""Normalising rows to mean 0 and variance 1 (or mean square 1), then scale and bias: the core of six operators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.fused import PIECE_BYTES, in_turn
from hetero.kernels.jit import PARALLEL_ELEMENTS
from hetero.kernels.norm_lanes import normalise_lanes
from hetero.kernels.quiet import Quiet
from hetero.kernels.workspace import Part, carve
from hetero.types import Array

FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Rows:
    """A contiguous tensor as (samples, rows, groups, width): each row of groups × width elements is normalised.

    Scale and bias broadcast to (rows, groups, width). Works in float64 for float64 and in float32 for all else.
    `centred`: subtract the mean (otherwise it is the root mean square that becomes 1).
    """

    samples: int
    rows: int
    groups: int
    width: int
    dtype: np.dtype[Any]
    output: np.dtype[Any]
    epsilon: float
    centred: bool = True

    @property
    def length(self) -> int:
        """Elements of a row."""
        return self.groups * self.width

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The four axes."""
        return self.samples, self.rows, self.groups, self.width

    @property
    def wide(self) -> np.dtype[Any]:
        """The dtype it is computed in."""
        return self.dtype if self.dtype == np.float64 else FLOAT32

    def step(self, xp: Any) -> int:
        """Rows per piece."""
        if xp is not np:
            return max(1, self.rows)
        return max(1, min(self.rows, PIECE_BYTES // self.wide.itemsize // max(1, self.length)))

    def parts(self, xp: Any) -> tuple[Part, ...]:
        """The scratch of `bind_rows`."""
        rows = self.step(xp)
        return (
            ((rows, self.length), self.wide),
            ((rows, self.length) if self.output != self.wide else (0, 0), self.wide),
            ((rows, 1), self.wide),
            ((rows, 1), self.wide),
        )


def bind_rows(
    xp: Any,
    rows: Rows,
    x: Array,
    out: Array,
    scale: Array | None,
    bias: Array | None,
    workspace: Any,
    *,
    mean: Array | None = None,
    inverse: Array | None = None,
) -> Call:
    """The call that normalises `x` into `out` (both contiguous; `out` may be `x`).

    `mean` and `inverse` (1 / standard deviation), where wanted, have one element a row.
    """
    if mean is None and inverse is None and x.size and xp is np:
        call = _along_rows(rows, x, out, scale, bias)
        if call is not None:
            return call
    squares, wide, means, inverses = carve(workspace, *rows.parts(xp))
    step = rows.step(xp)
    source = x.reshape(rows.samples, rows.rows, rows.length)
    target = out.reshape(rows.samples, rows.rows, rows.length)
    statistics = [None if t is None else t.reshape(rows.samples, rows.rows, 1) for t in (mean, inverse)]
    calls: list[Call] = []
    if source.size == 0:
        return in_turn(calls)
    for sample in range(rows.samples):
        for i in range(0, rows.rows, step):
            n = min(step, rows.rows - i)
            piece, result = source[sample, i : i + n], target[sample, i : i + n]
            values = result if rows.output == rows.wide else wide[:n]
            kept = []
            for whole, scratch in zip(statistics, (means, inverses), strict=True):
                direct = whole is not None and whole.dtype == rows.wide
                kept.append(whole[sample, i : i + n] if whole is not None and direct else scratch[:n])
            if rows.dtype != rows.wide:
                calls.append(partial(values.__setitem__, ..., piece))
                piece = values
            block = values.reshape(n, rows.groups, rows.width)
            affine = [p if p is None or p.shape[0] == 1 else p[i : i + n] for p in (scale, bias)]
            calls.append(partial(_normalise, xp, rows, piece, values, block, squares[:n], *kept, *affine))
            if values is not result:
                calls.append(partial(result.__setitem__, ..., values))
            for whole, found in zip(statistics, kept, strict=True):
                if whole is not None and whole.dtype != rows.wide:
                    calls.append(partial(whole[sample, i : i + n].__setitem__, ..., found))
    return Quiet(in_turn(calls))


def _along_rows(rows: Rows, x: Array, out: Array, scale: Array | None, bias: Array | None) -> Call | None:
    """One compiled call for float32 whose scale and bias lie along the row; None for all else, or without numba."""
    if rows.dtype != FLOAT32 or rows.output != FLOAT32:
        return None
    affine: list[Array] = []
    for operand, neutral in ((scale, 1), (bias, 0)):
        if operand is None:
            operand = np.full((1, rows.length), neutral, FLOAT32)
        if operand.size != rows.length or operand.shape[0] != 1 or operand.dtype != FLOAT32:
            return None
        affine.append(operand.reshape(-1))
    lines = x.reshape(-1, rows.length), out.reshape(-1, rows.length)
    function = normalise_lanes.variant(lines[0], *affine, lines[1], parallel=x.size >= PARALLEL_ELEMENTS)
    if function is normalise_lanes.twin:
        return None
    return partial(function, lines[0], *affine, lines[1], rows.epsilon, int(rows.centred))


def _normalise(
    xp: Any,
    rows: Rows,
    x: Array,
    out: Array,
    block: Array,
    squares: Array,
    mean: Array,
    inverse: Array,
    scale: Array | None,
    bias: Array | None,
) -> None:
    """One piece: `x`, `out`, `squares` are (n, length), `mean` and `inverse` (n, 1); `block` is `out` by groups."""
    if rows.centred:
        x.sum(1, None, mean, True)
        xp.divide(mean, rows.length, mean)
        xp.subtract(x, mean, out)
        x = out
    xp.multiply(x, x, squares)
    squares.sum(1, None, inverse, True)
    xp.divide(inverse, rows.length, inverse)
    xp.add(inverse, rows.epsilon, inverse)
    xp.sqrt(inverse, inverse)
    xp.reciprocal(inverse, inverse)
    xp.multiply(x, inverse, out)
    if scale is not None:
        xp.multiply(block, scale, block)
    if bias is not None:
        xp.add(block, bias, block)
