"""Paired timing: two callables in turn, so that a ratio holds while the machine's speed drifts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """Medians of ours and theirs, and the median, lowest and highest ratio of neighbouring runs."""

    ours_s: float
    theirs_s: float
    ratio: float
    low: float
    high: float


def paired(
    ours: Callable[[], object], theirs: Callable[[], object], *, runs: int = 15, inner: int = 1
) -> Pair:
    """Time `inner` calls of each, `runs` times in turn, after two calls of each that are not counted."""
    for _ in range(2):
        ours()
        theirs()
    a, b = [], []
    for _ in range(runs):
        a.append(_time(ours, inner))
        b.append(_time(theirs, inner))
    ratios = sorted(x / y for x, y in zip(a, b, strict=True))
    quarter = len(ratios) // 4
    return Pair(
        statistics.median(a),
        statistics.median(b),
        statistics.median(ratios),
        ratios[quarter],
        ratios[-1 - quarter],
    )


def _time(call: Callable[[], object], inner: int) -> float:
    started = time.perf_counter()
    for _ in range(inner):
        call()
    return (time.perf_counter() - started) / inner
