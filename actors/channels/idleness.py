"""Which partitions leave the processor alone most of the time: those that wait for a device."""

from __future__ import annotations

import time

LONG_S = 1e-3
"""What takes less is not worth to be looked at: to ask is a system call."""
MOST_UNASKED = 15
"""How often in a row what was idle is taken to be so still."""


class Idleness(set[int]):
    """The partitions that this thread was idle in for more than half of the time, when they ran last."""

    def __init__(self) -> None:
        self._long: set[int] = set()
        self._used_s = 0.0
        """Of the processor, by this thread, when that was last asked."""
        self._unasked, self._unasked_s = 0, 0.0
        """How often idle partitions have ended since, and how long they took."""

    def ended(self, partition: int, took_s: float) -> None:
        """The partition has ended in this thread; it took so long."""
        if took_s < LONG_S:
            if partition in self._long:
                self._long.discard(partition)
                self.discard(partition)
        elif partition in self and self._unasked < MOST_UNASKED:
            self._unasked += 1
            self._unasked_s += took_s
        else:
            before, self._used_s = self._used_s, time.thread_time()
            self.note(partition, took_s + self._unasked_s, self._used_s - before)
            self._unasked, self._unasked_s = 0, 0.0

    def note(self, partition: int, took_s: float, used_s: float) -> None:
        """It took so long; so much of the processor was used since that was last asked."""
        if partition not in self._long:
            self._long.add(partition)
        elif used_s < took_s / 2:
            self.add(partition)
        else:
            self.discard(partition)
