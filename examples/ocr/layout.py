"""Boxes on a page, and the order people read them in: columns before rows, cut along white space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

# A gap between columns is at least this many line heights wide. Words of one line do not come this far apart
# in separate boxes, while a real gutter of a line height shrinks to this once the boxes beside it have grown.
COLUMN_GAP = 0.5
# Row gaps this close to the widest one are cut together, which keeps the depth of cuts small.
ALIKE = 0.8


@dataclass(frozen=True, slots=True)
class Box:
    """An upright rectangle in page pixels: left <= x < right, top <= y < bottom; `score` is in 0..1."""

    left: float
    top: float
    right: float
    bottom: float
    score: float = 1.0

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top


Span = Callable[[Box], tuple[float, float]]


def reading_order(boxes: Sequence[Box]) -> list[Box]:
    """The boxes as one reads them: the recursive XY cut (Nagy & Seth 1984), columns first, then rows.

    A heading over two columns keeps the columns together until it has been cut off above them. A table
    is read column by column: the layout alone cannot tell it from two columns of prose.
    """
    ordered: list[Box] = []
    todo = [list(boxes)]  # a stack, not recursion: a noisy page may need a thousand cuts
    while todo:
        group = todo.pop()
        if len(group) < 2:
            ordered += group
            continue
        parts = _cut(group)
        if len(parts) > 1:
            todo += reversed(parts)
        else:
            ordered += sorted(group, key=lambda box: (box.top + box.bottom, box.left))
    return ordered


def _cut(group: list[Box]) -> list[list[Box]]:
    line = median(box.height for box in group)
    columns = _split(group, _across, smallest=COLUMN_GAP * line)
    return columns if len(columns) > 1 else _split(group, _down, smallest=0.0)


def _across(box: Box) -> tuple[float, float]:
    return box.left, box.right


def _down(box: Box) -> tuple[float, float]:
    # Only the middle half counts: grown boxes of neighbouring lines overlap a little, their middles never.
    return box.top + box.height / 4, box.bottom - box.height / 4


def _split(group: list[Box], span: Span, smallest: float) -> list[list[Box]]:
    """`group` cut at its widest gaps along one axis, in order; one part if no gap exceeds `smallest`."""
    along = sorted(group, key=lambda box: span(box)[0])
    gaps: list[float] = []
    reach = span(along[0])[1]
    for box in along[1:]:
        start, end = span(box)
        gaps.append(start - reach)
        reach = max(reach, end)
    widest = max(gaps)
    if widest <= smallest:
        return [group]
    parts = [[along[0]]]
    for gap, box in zip(gaps, along[1:], strict=True):
        if gap > smallest and gap >= ALIKE * widest:
            parts.append([])
        parts[-1].append(box)
    return parts
