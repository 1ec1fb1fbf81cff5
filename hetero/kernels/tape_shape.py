"""Broadcasts as a tape can walk them: a result of two dimensions, and where each operand's elements lie for a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """Row r of the result meets row (r // div) % mod of the operand, which is `wide` (as many columns) or one element.
    `full`: the operand has the result's own elements."""

    div: int
    mod: int
    wide: bool
    full: bool


def collapse(shape: Shape, operands: Sequence[Shape]) -> tuple[int, int, list[Walk]] | None:
    """(rows, columns, walks) of contiguous operands that broadcast to `shape`; None where two dimensions are too few.

    Operands do broadcast: the caller has checked it.
    """
    merged: list[tuple[int, tuple[bool, ...]]] = []
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        present = tuple(_present(o, axis - len(shape)) for o in operands)
        if merged and merged[-1][1] == present:
            merged[-1] = merged[-1][0] * extent, present
        else:
            merged.append((extent, present))
    if not merged:
        merged = [(1, (True,) * len(operands))]
    cols = merged[-1][0]
    outer = merged[:-1]
    walks = []
    for k in range(len(operands)):
        there = [i for i, (_, present) in enumerate(outer) if present[k]]
        if there and there[-1] - there[0] >= len(there):
            return None  # a gap
        div = math.prod(extent for extent, _ in outer[there[-1] + 1 :]) if there else 1
        mod = math.prod(outer[i][0] for i in there)
        wide = merged[-1][1][k]
        walks.append(Walk(div, mod, wide, wide and len(there) == len(outer)))
    return math.prod(extent for extent, _ in outer), cols, walks


def _present(operand: Shape, axis: int) -> bool:
    """Whether the operand has an extent of its own along `axis` (counted from the end, negative)."""
    return -axis <= len(operand) and operand[axis] != 1
