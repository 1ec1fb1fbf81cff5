"""How much of the text was read right: edit distance of each line and of the whole page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LineScore:
    """A true line, what was read for it (None: nothing left to match), and the edits between the two."""

    true: str
    read: str | None
    edits: int

    @property
    def accuracy(self) -> float:
        return share_right(self.edits, len(self.true))


@dataclass(frozen=True, slots=True)
class PageScore:
    """Marks for one page; `extra` are lines that were read but match no true line."""

    lines: tuple[LineScore, ...]
    extra: tuple[str, ...]
    page_edits: int  # between the two pages as whole texts, so wrong order counts too
    page_length: int

    @property
    def accuracy(self) -> float:
        """Share of the page's characters that were read right, in the right order."""
        return share_right(self.page_edits, self.page_length)

    @property
    def exact_lines(self) -> int:
        return sum(line.edits == 0 for line in self.lines)


def share_right(edits: int, length: int) -> float:
    """1 - edits/length, never below 0; an empty truth is right exactly when nothing was read."""
    if length == 0:
        return float(edits == 0)
    return max(0.0, 1.0 - edits / length)


def edit_distance(a: str, b: str) -> int:
    """Levenshtein distance: insertions, deletions and substitutions, one each. O(len(a) len(b)), by rows."""
    if not a or not b:
        return len(a) + len(b)
    target = _code_points(b)
    index = np.arange(len(b) + 1, dtype=np.int64)
    row = index.copy()
    for done, letter in enumerate(_code_points(a), start=1):
        after = np.empty_like(row)
        after[0] = done
        np.minimum(row[1:] + 1, row[:-1] + (target != letter), out=after[1:])
        # Insertions chain along the row, each one more: a running minimum of (cost - index) does them all.
        row = np.minimum.accumulate(after - index) + index
    return int(row[-1])


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def score_page(true: Sequence[str], read: Sequence[str]) -> PageScore:
    """Marks for the lines `read` of a page whose lines are `true`, both in reading order.

    Lines are matched closest pair first, each at most once; a pair that has nothing in common (as many
    edits as the longer line has characters) is no match.
    """
    pairs = sorted(
        (edit_distance(true_line, read_line), t, r)
        for t, true_line in enumerate(true)
        for r, read_line in enumerate(read)
    )
    match: dict[int, tuple[int, int]] = {}
    taken: set[int] = set()
    for edits, t, r in pairs:
        if t not in match and r not in taken and edits < max(len(true[t]), len(read[r]), 1):
            match[t] = r, edits
            taken.add(r)
    lines = tuple(
        LineScore(line, read[match[t][0]], match[t][1]) if t in match else LineScore(line, None, len(line))
        for t, line in enumerate(true)
    )
    whole = "\n".join(true)
    return PageScore(
        lines=lines,
        extra=tuple(line for r, line in enumerate(read) if r not in taken),
        page_edits=edit_distance(whole, "\n".join(read)),
        page_length=len(whole),
    )
