"""Normalising rows to mean 0 and variance 1 (or mean square 1), then scale and bias: the core of six operators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels import row_loops
from hetero.kernels.base import Call
from hetero.kernels.fused import PIECE_BYTES, in_turn
from hetero.kernels.quiet import Quiet
from hetero.kernels.row_loops import takes_rows
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
    if is_compiled(xp, rows, scale, bias, mean, inverse):
        return bind_compiled(rows, x, out, scale, bias, mean, inverse)
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


def is_compiled(xp: Any, rows: Rows, *vectors: Array | None) -> bool:
    """Whether compiled loops normalise these rows: plain ones of float32, with one number for each element in
    `vectors` (scale, bias) or for each row (mean, inverse)."""
    scale, bias = vectors[:2]
    plain = rows.samples == rows.groups == 1
    fits = all(v is None or v.size == rows.length for v in (scale, bias))
    dtypes = (rows.dtype, rows.output, *(v.dtype for v in vectors if v is not None))
    return plain and fits and takes_rows(xp, rows.rows, rows.length, *dtypes)


def bind_compiled(
    rows: Rows,
    x: Array,
    out: Array,
    scale: Array | None,
    bias: Array | None,
    mean: Array | None = None,
    inverse: Array | None = None,
    **skip: Array | None,
) -> Call:
    """As `bind_rows`, for rows that `is_compiled` takes. `skip`, `skip_bias`: what is added to `x` first, to give
    `total` (which may be `out`)."""
    arrays = {
        row_loops.X: x, row_loops.OUT: out, row_loops.SCALE: scale, row_loops.SHIFT: bias,
        row_loops.MEAN: mean, row_loops.INVERSE: inverse, row_loops.SKIP: skip.get("skip"),
        row_loops.BIAS: skip.get("skip_bias"), row_loops.TOTAL: skip.get("total"),
    }  # fmt: skip
    return row_loops.bind_norm(rows.rows, rows.length, rows.centred, rows.epsilon, arrays)


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
