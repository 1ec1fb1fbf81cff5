"""Scaled dot product attention over heads, in blocks that stay in the cache: the core of all attention operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hetero.kernels.attention_few import bind_few, is_few, scratch_floats, takes
from hetero.kernels.base import Call
from hetero.kernels.broadcasting import elements
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm_batched import bind_matrices
from hetero.kernels.quiet import Quiet
from hetero.kernels.row_loops import bind_unary, takes_rows
from hetero.kernels.softmax import softmax_into
from hetero.kernels.softmax_rows import softmax_rows
from hetero.kernels.workspace import Part
from hetero.types import Array

BLOCK_BYTES = 1 << 20
"""Bytes of scores that are worked on at a time: several passes go over them, so they should stay in a core's cache."""
BOOL = np.dtype(bool)
Where: TypeAlias = tuple[slice, slice, slice, slice]
"""A selection on the first four of the five axes that scores have inside."""

PRODUCTS, CAPPED, BIASED, MASKED, WEIGHTS = "products", "capped", "biased", "masked", "weights"
"""What may be tapped: scaled products of queries and keys; these after the soft cap; after the biases; after keys out
of reach were masked; the weights that multiply the values."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The keys that each query may see: those from `first` (None: the first of all) to `last`, both included.

    Integer arrays of shape (batch or 1, queries), read at every call. `masked` is the score of every other key.
    """

    last: Array
    first: Array | None
    masked: float


@dataclass(frozen=True, slots=True)
class Extras:
    """What joins the scores. `biases` have shape (batch or 1, heads or 1, queries or 1, keys), and are added in turn.

    `sink` (heads,): a further score in each head's softmax, whose weight goes nowhere. `taps`: arrays (batch, heads,
    queries, keys) for what the stages give; `blank`: keys out of reach are 0 there. `zero_empty`: a query whose
    scores are all -inf gets weights of 0 and not NaN.
    """

    biases: Sequence[Array] = ()
    reach: Reach | None = None
    sink: Array | None = None
    taps: Mapping[str, Array] = field(default_factory=dict)
    blank: bool = False
    zero_empty: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """softmax(scale * queries @ keys' + biases) @ values, for `heads` query heads that share `kv_heads` keys.

    `softcap`: c * tanh(scores / c) before the biases; 0 is none.
    Inside, scores have five axes (batch, kv head, A, R, key): (A, R) are the query heads of one kv head and the
    queries, or 1 and the query heads where there is one query, so that each product has as many rows as it can.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    value_size: int
    dtype: np.dtype[Any]
    scale: float
    softcap: float = 0.0

    @property
    def rows(self) -> tuple[int, int]:
        """(A, R)."""
        group = self.heads // self.kv_heads
        return (1, group) if self.queries == 1 else (group, self.queries)

    def blocks(self, xp: Any) -> Iterator[Where]:
        """Selections whose scores make up about BLOCK_BYTES; everything at once on other array modules."""
        a, r = self.rows
        row = max(1, a * self.keys * self.dtype.itemsize)
        head, entry = (max(1, n * row) for n in (r, self.kv_heads * r))
        if xp is not np:
            steps = self.batch, self.kv_heads, r
        elif entry <= BLOCK_BYTES:
            steps = BLOCK_BYTES // entry, self.kv_heads, r
        elif head <= BLOCK_BYTES:
            steps = 1, BLOCK_BYTES // head, r
        else:
            steps = 1, 1, max(1, BLOCK_BYTES // row)
        extents = (self.batch, self.kv_heads, r)
        pieces = (
            [slice(i, min(i + step, extent)) for i in range(0, extent, max(1, step))]
            for step, extent in zip(steps, extents, strict=True)
        )
        for b, h, i in itertools.product(*pieces):
            yield b, h, slice(0, a), i

    def parts(self, xp: Any) -> tuple[Part, ...]:
        """The scratch of `bind`: the scaled queries (batch, heads, queries, size), arrays for one block, and those of
        the loops for a few queries."""
        first = next(self.blocks(xp), None)
        extents = (0, 0, 0, 0) if first is None else tuple(s.stop - s.start for s in first)
        rows = elements(extents)
        flags = extents[0] * (1 if self.queries == 1 else extents[3]) * self.keys
        return (
            ((self.batch, self.heads, self.queries, self.size), self.dtype),
            ((rows * self.keys,), self.dtype),
            ((rows,), self.dtype),
            ((rows,), self.dtype),
            ((flags,), BOOL),
            ((flags,), BOOL),
            ((scratch_floats(self) if is_few(self, xp) else 0,), self.dtype),
        )

    def bind(
        self,
        xp: Any,
        queries: Array,
        keys: Array,
        values: Array,
        out: Array,
        scratch: Sequence[Array],
        extras: Extras,
    ) -> Call:
        """The call that attends; `scratch` are the arrays of `parts`.

        `queries` (batch, heads, queries, size) may be the first scratch array itself. `keys` (batch, kv_heads, keys,
        size), `values` (…, value_size) and `out` (batch, heads, queries, value_size) may be views with dense rows.
        """
        if self.batch * self.heads * self.queries * self.value_size == 0:
            return in_turn([])
        if self.keys == 0:
            return partial(out.__setitem__, ..., 0)
        if is_few(self, xp) and takes(extras):
            return bind_few(self, queries, keys, values, out, scratch[-1], extras)
        scaled = scratch[0]
        folded = scaled.reshape(self.batch, self.kv_heads, *self.rows, self.size)
        target = self._five(out)
        calls: list[Call] = [partial(xp.multiply, queries, self.scale, scaled)]
        for where in self.blocks(xp):
            block = _Block(xp, self, where, scratch[1:], extras)
            b, h = where[:2]
            block.calls.append(
                bind_matrices(xp, folded[where], keys[b, h, None].swapaxes(-1, -2), block.scores)
            )
            block.mask()
            block.softmax()
            block.calls.append(bind_matrices(xp, block.scores, values[b, h, None], target[where]))
            calls.extend(block.calls)
        return Quiet(in_turn(calls))

    def _five(self, array: Array) -> Array:
        """(batch or 1, heads or 1, queries or 1, n) as a view over the five axes; axes of length 1 stay that."""
        b, n, s, last = array.shape
        kv, group = (1, 1) if n == 1 else (self.kv_heads, self.heads // self.kv_heads)
        return array.reshape((b, kv, 1, group, last) if self.queries == 1 else (b, kv, group, s, last))

    def part(self, array: Array, where: Where) -> Array:
        """The stretch of (batch or 1, heads or 1, queries or 1, n) that belongs to a block's scores."""
        five = self._five(array)
        return five[tuple(s if n != 1 else slice(None) for s, n in zip(where, five.shape[:4], strict=True))]


class _Block:
    """The calls over one block's scores, and the arrays that they work in."""

    def __init__(
        self, xp: Any, sizes: Attention, where: Where, scratch: Sequence[Array], extras: Extras
    ) -> None:
        self.xp, self.sizes, self.where, self.extras = xp, sizes, where, extras
        self.calls: list[Call] = []
        shape = [s.stop - s.start for s in where]
        rows = elements(shape)
        self.scores = scratch[0][: rows * sizes.keys].reshape(*shape, sizes.keys)
        self.row, self.total = (s[:rows].reshape(*shape, 1) for s in scratch[1:3])
        self.flags = scratch[3:5]

    def then(self, function: Callable[..., object], *arguments: Any, **keywords: Any) -> None:
        """One more call."""
        self.calls.append(partial(function, *arguments, **keywords))

    def mask(self) -> None:
        """From the scaled products to the scores that the softmax takes."""
        xp, scores, extras, cap = self.xp, self.scores, self.extras, self.sizes.softcap
        beyond = None if extras.reach is None else self._beyond(extras.reach)
        self._tap(PRODUCTS, beyond)
        if cap:
            self.then(xp.divide, scores, cap, scores)
            self.then(xp.tanh, scores, scores)
            self.then(xp.multiply, scores, cap, scores)
        self._tap(CAPPED, beyond)
        for bias in extras.biases:
            self.then(xp.add, scores, self.sizes.part(bias, self.where), scores)
        self._tap(BIASED, beyond)
        if extras.reach is not None:
            self.then(xp.copyto, scores, extras.reach.masked, where=beyond)
        self._tap(MASKED, beyond)

    def softmax(self) -> None:
        """From scores to weights, in place."""
        xp, extras, rows = self.xp, self.extras, self.row.size
        if extras.sink is not None:
            sink = self.sizes.part(extras.sink.reshape(1, -1, 1, 1), self.where)
            self.then(_softmax_beside, xp, self.scores, self.row, self.total, sink)
        elif extras.zero_empty:
            self.then(_softmax_or_zero, xp, self.scores, self.row)
        elif takes_rows(xp, rows, self.sizes.keys, self.scores.dtype):
            flat = self.scores.reshape(rows, self.sizes.keys)
            self.calls.append(bind_unary(softmax_rows, rows, self.sizes.keys, flat, flat))
        else:
            flat = self.scores.reshape(rows, self.sizes.keys, 1)
            self.then(softmax_into, xp, flat, flat, self.row.reshape(rows, 1, 1))
        self._tap(WEIGHTS, None)

    def _tap(self, stage: str, beyond: Array | None) -> None:
        tap = self.extras.taps.get(stage)
        if tap is None:
            return
        target = self.sizes.part(tap, self.where)
        self.then(self.xp.copyto, target, self.scores)
        if self.extras.blank and beyond is not None:
            self.then(self.xp.copyto, target, 0, where=beyond)

    def _beyond(self, reach: Reach) -> Array:
        """Flags of the keys out of reach, as an array that broadcasts to the scores."""
        xp, places = self.xp, self.xp.arange(self.sizes.keys)
        ends = [None if x is None else self._limits(x) for x in (reach.last, reach.first)]
        assert ends[0] is not None
        shape = (*ends[0].shape[:4], self.sizes.keys)
        beyond, before = (f[: elements(shape)].reshape(shape) for f in self.flags)
        self.then(xp.greater, places, ends[0], beyond)
        if ends[1] is not None:
            self.then(xp.less, places, ends[1], before)
            self.then(xp.logical_or, beyond, before, beyond)
        return beyond

    def _limits(self, limits: Array) -> Array:
        """The block's part of (batch or 1, queries) as (batch or 1, 1, 1, R or 1, 1)."""
        return self.sizes.part(limits[:, None, :, None], self.where)


def _softmax_beside(xp: Any, x: Array, row: Array, total: Array, sink: Array) -> None:
    """x = its softmax along the last axis, with `sink` as one more element of each row, whose share is dropped."""
    x.max(-1, row, True)
    xp.maximum(row, sink, out=row)
    xp.subtract(x, row, x)
    xp.exp(x, x)
    x.sum(-1, None, total, True)
    xp.subtract(sink, row, row)
    xp.exp(row, row)
    xp.add(total, row, total)
    xp.divide(x, total, x)


def _softmax_or_zero(xp: Any, x: Array, row: Array) -> None:
    """x = its softmax along the last axis; 0 where all of a row is -inf."""
    x.max(-1, row, True)
    xp.maximum(row, xp.finfo(x.dtype).min, out=row)
    xp.subtract(x, row, x)
    xp.exp(x, x)
    x.sum(-1, None, row, True)
    # A row with anything in it sums to at least 1.
    xp.maximum(row, xp.finfo(x.dtype).tiny, out=row)
    xp.divide(x, row, x)
