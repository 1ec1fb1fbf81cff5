"""Which partitions leave the processor alone most of the time: those that wait for a device."""

from __future__ import annotations

import time

LONG_S = 1e-3
"""What takes less is not worth to be looked at."""


class Idleness:
    """By partition, as it was last time. Asking costs a system call, so only those are asked that took long before."""

    def __init__(self) -> None:
        self._long: set[int] = set()
        self._idle: set[int] = set()

    def __contains__(self, partition: int) -> bool:
        """Whether this thread was idle for more than half of the time."""
        return partition in self._idle

    def begin(self, partition: int) -> tuple[float, float | None]:
        """The partition begins, in this thread. Returns what `end` takes."""
        used_s = time.thread_time() if partition in self._long else None
        return time.perf_counter(), used_s

    def end(self, partition: int, begun: tuple[float, float | None]) -> None:
        """It has ended."""
        started_s, used_s = begun
        self.note(
            partition,
            time.perf_counter() - started_s,
            None if used_s is None else time.thread_time() - used_s,
        )

    def note(self, partition: int, took_s: float, used_s: float | None) -> None:
        """It took so long, and so much of the processor, if that was asked."""
        if took_s < LONG_S:
            if partition in self._long:
                self._long.discard(partition)
                self._idle.discard(partition)
        elif used_s is None:
            self._long.add(partition)
        elif used_s < took_s / 2:
            self._idle.add(partition)
        else:
            self._idle.discard(partition)
