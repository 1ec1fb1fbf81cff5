"""Which thread polls: whoever waits for a step, and where nobody does, one that is there for it."""

from __future__ import annotations

import os
import select
import threading


class Turns:
    """At most one thread leads. While one that waits for a step does, it takes what comes in itself, and the thread
    that is there for it is not woken. Thread-safe."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is readable when there is something to poll."""
        self._descriptor = descriptor
        self._lead = threading.Lock()
        self._idle = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._idle.register(descriptor, select.EPOLLIN)
        self._idle.register(self._bell, select.EPOLLIN)

    def lead(self) -> bool:
        """Lead from now on, if nobody does."""
        if not self._lead.acquire(blocking=False):
            return False
        self._idle.modify(self._descriptor, 0)
        return True

    def leave(self) -> None:
        """Lead no more; what comes in wakes the thread that is there for it."""
        self._idle.modify(self._descriptor, select.EPOLLIN)
        self._lead.release()

    def wait(self, timeout_s: float | None) -> bool:
        """For the thread that is there for it: wait until there is something to poll and nobody leads, or `ring`, or
        the time is over. Whether it leads now; it gives that back by `pass_on`."""
        for descriptor, _ in self._idle.poll(timeout_s):
            if descriptor == self._bell:
                os.eventfd_read(self._bell)
        return self._lead.acquire(blocking=False)

    def pass_on(self) -> None:
        """It leads no more."""
        self._lead.release()

    def ring(self) -> None:
        """Have `wait` return."""
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Once the thread that is there for it has ended and nobody comes any more: waits for whoever leads."""
        with self._lead:
            if not self._idle.closed:
                self._idle.close()
                os.close(self._bell)
