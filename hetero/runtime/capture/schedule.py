"""The schedule of a section: maximal runs of recordable calls as segments, and the seams between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetero.runtime.capture.reasons import SeamReason


@dataclass(frozen=True, slots=True)
class Piece:
    """Calls [first, last) of a section: a segment, or a seam with its reason."""

    first: int
    last: int
    reason: SeamReason | None = None

    def __len__(self) -> int:
        return self.last - self.first


def cut(
    seams: Sequence[SeamReason | None], barred: Callable[[int], SeamReason | None], shortest: int
) -> tuple[Piece, ...]:
    """Pieces that cover all calls in order; neighbours differ in kind or reason.

    `seams[k]`: why call k cannot be recorded. `barred(k)`: why a recordable call shall not be. `shortest`: fewer calls
    than this in a row are no segment.
    """
    reasons = [seam if seam is not None else barred(k) for k, seam in enumerate(seams)]
    pieces: list[Piece] = []
    for first, last, reason in _runs(reasons):
        if reason is None and last - first < shortest:
            reason = SeamReason.TOO_SHORT
        if pieces and pieces[-1].reason is reason:
            pieces[-1] = Piece(pieces[-1].first, last, reason)
        else:
            pieces.append(Piece(first, last, reason))
    return tuple(pieces)


def _runs(reasons: Sequence[SeamReason | None]) -> list[tuple[int, int, SeamReason | None]]:
    runs: list[tuple[int, int, SeamReason | None]] = []
    first = 0
    for k in range(1, len(reasons) + 1):
        if k == len(reasons) or reasons[k] is not reasons[first]:
            runs.append((first, k, reasons[first]))
            first = k
    return runs
