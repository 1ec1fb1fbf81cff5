"""Rotation of heads by position: pairs of elements turned by the angles of a table of cosines and sines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.gather import taken
from hetero.kernels.operands import fail
from hetero.kernels.rotary_loops import bind_rotate, rotates
from hetero.kernels.workspace import Part
from hetero.program.operation import Operation
from hetero.types import Array, TensorSpec


@dataclass(frozen=True, slots=True)
class Rotation:
    """Turns the first `turned` of the `size` elements of every head; the others stay.

    Pairs are element i with i + turned / 2, or (`interleaved`) elements 2i and 2i + 1. A pair (x, y) with angle a
    becomes (x cos a - y sin a, y cos a + x sin a).
    """

    size: int
    turned: int
    interleaved: bool
    dtype: np.dtype[Any]

    def part(self, batch: int, heads: int, length: int) -> Part:
        """The scratch of `bind` for heads (batch, heads, length, size)."""
        return (batch, heads, length, self.turned // 2), self.dtype

    def bind(self, xp: Any, x: Array, cos: Array, sin: Array, out: Array, scratch: Array) -> list[Call]:
        """The calls that turn `x` (batch, heads, length, size) into `out`, other memory of the same shape.

        `cos` and `sin` broadcast to (batch, heads, length, turned / 2).
        """
        half = self.turned // 2
        pairs = (slice(0, half), slice(half, self.turned))
        if self.interleaved:
            pairs = (slice(0, self.turned, 2), slice(1, self.turned, 2))
        (x1, x2), (y1, y2) = ([a[..., p] for p in pairs] for a in (x, out))
        calls: list[Call] = [
            partial(xp.multiply, x1, cos, y1),
            partial(xp.multiply, x2, sin, scratch),
            partial(xp.subtract, y1, scratch, y1),
            partial(xp.multiply, x2, cos, y2),
            partial(xp.multiply, x1, sin, scratch),
            partial(xp.add, y2, scratch, y2),
        ]
        if self.turned < self.size:
            calls.append(partial(xp.copyto, out[..., self.turned :], x[..., self.turned :]))
        return calls

    def looking_up(
        self,
        op: Operation,
        xp: Any,
        pairs: Sequence[tuple[Array, Array, Array]],
        tables: tuple[Array, Array],
        positions: Array,
        found: tuple[Array, Array],
    ) -> list[Call]:
        """The calls that turn `x` into `out` for each of the `pairs` (x, out, scratch), as `bind`, by the angles that
        the tables (positions, turned / 2) have at `positions` (batch or 1, length). `found` (batch or 1, length,
        turned / 2): scratch for cosines and sines.

        Raises when called, on the host: KernelError for a position outside the tables.
        """
        plain = self.turned and positions.dtype == np.int64 and positions.size
        if plain and rotates(xp, *tables, *(a for x, out, _ in pairs for a in (x, out))):
            calls: list[Call] = [position_check(op, positions, tables[0].shape[0])]
            for x, out, _ in pairs:
                calls.append(bind_rotate(x, out, tables, positions, self.turned, self.interleaved))
            return calls
        calls = looked_up(op, xp, tables, positions, found)
        for x, out, scratch in pairs:
            calls += self.bind(xp, x, found[0][:, None], found[1][:, None], out, scratch)
        return calls


def rotation_of(
    op: Operation, size: int, cos: TensorSpec, sin: TensorSpec, *, turned: int, interleaved: bool
) -> Rotation:
    """The rotation whose tables end in an axis of turned / 2 angles.

    Raises: KernelError where the tables differ in shape, or do not fit that many elements of a head of `size`.
    """
    if cos.shape != sin.shape or not cos.shape:
        fail(op, f"of shape {list(sin.shape)}, cosines {list(cos.shape)}", "sin_cache")
    if turned % 2 or turned > size or cos.shape[-1] != turned // 2:
        fail(op, f"of shape {list(cos.shape)} for {turned} of {size} elements", "cos_cache")
    return Rotation(size, turned, interleaved, cos.dtype)


def position_check(op: Operation, positions: Array, extent: int) -> Callable[[], None]:
    """The check that positions lie in [0, extent); for the host. Raises when called: KernelError where not."""

    def check_few() -> None:  # a reduction takes longer than this
        for position in positions.flat:
            if not 0 <= position < extent:
                fail(op, f"{positions.tolist()} leave the table of {extent} positions", "position_ids")

    def check() -> None:
        if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < extent:
            fail(op, f"{positions.tolist()} leave the table of {extent} positions", "position_ids")

    return check_few if positions.size <= 8 else check


def looked_up(
    op: Operation, xp: Any, tables: tuple[Array, Array], positions: Array, targets: tuple[Array, Array]
) -> list[Call]:
    """The calls that fetch the rows at `positions` (any shape) of both tables (positions, angles) into `targets`.

    Raises when called, on the host: KernelError for a position outside the tables.
    """
    calls: list[Call] = [position_check(op, positions, tables[0].shape[0])] if xp is np else []
    for table, target in zip(tables, targets, strict=True):
        calls.append(taken(table, positions, 0, target, xp))
    return calls
