"""Planning against itself: how the time grows from 10,000 to 100,000 nodes."""

from __future__ import annotations

import time
from dataclasses import dataclass

import onnx

from benchmarks.models import add_chain
from hetero import plan


@dataclass(frozen=True)
class Growth:
    """Seconds for the small and the large graph, load included, and their ratio (10 would be exactly linear)."""

    small_s: float
    large_s: float

    @property
    def ratio(self) -> float:
        """Large over small."""
        return self.large_s / self.small_s


def growth(small: int = 10_000, large: int = 100_000) -> Growth:
    """Load and plan a chain of Adds over sim:0 and cpu."""
    return Growth(_plan_s(add_chain(small)), _plan_s(add_chain(large)))


def _plan_s(model: onnx.ModelProto) -> float:
    started = time.perf_counter()
    plan(model, ["sim:0", "cpu"])
    return time.perf_counter() - started
