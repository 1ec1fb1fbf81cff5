"""A child at work: one partition at a time, whichever road its parcels came on, and what it is at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from actors import chaos
from hetero.runtime.child import ChildExecutor
from hetero.runtime.pins import Binding


class Turn:
    """Thread-safe. Not a part of the actor's class, whose every method Ray wraps for its tracing: this is called for
    every message."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.watched = False
        """Whether there may be gates before and behind each partition (`chaos.active`)."""
        self.before: Callable[[int], None] | None = None
        """What is called with the number of a step before each of its partitions, in its turn."""
        self._running: tuple[int, int, float] | None = None

    def compute(
        self,
        child: ChildExecutor,
        partition: int,
        step: int,
        parcels: Sequence[Sequence[Any]],
        graph_slot: str,
        binding: Binding | None = None,
    ) -> list[list[Any]]:
        """Run a partition when it is its turn. Raises: as ChildExecutor.run."""
        with self.lock:
            self._running = (partition, step, time.perf_counter())
            try:
                if self.before is not None:
                    self.before(step)
                if not self.watched:
                    return child.run(partition, step, parcels, graph_slot, binding)
                chaos.reach(f"partition {partition}, before run", step)
                sent = child.run(partition, step, parcels, graph_slot, binding)
                chaos.reach(f"partition {partition}, before send", step)
                return sent
            finally:
                self._running = None

    def running_s(self) -> float:
        """Seconds that the current run has taken so far; 0 when idle."""
        running = self._running
        return 0.0 if running is None else time.perf_counter() - running[2]

    def running(self) -> dict[str, Any] | None:
        """What runs (partition, step) and for how long (for_s), if something does."""
        running = self._running
        if running is None:
            return None
        partition, step, started = running
        return {"partition": partition, "step": step, "for_s": time.perf_counter() - started}
