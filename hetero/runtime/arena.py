"""Buffers that values of one nesting level share: taken in execution order, given back at the last use."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from hetero.providers.base import Buffer, Provider

_SLACK = 4
"""A free buffer serves a request of at least 1/4 of its size; a larger one is kept for larger requests."""


def roomy(nbytes: int) -> int:
    """What to ask for where a value of `nbytes` grows from step to step: room for half as much again."""
    return nbytes + nbytes // 2 + 256


class Arena:
    """All buffers of one nesting level of one child.

    Programs of one level never run at the same time on a child, so all of them draw on the same buffers. A buffer goes
    back to the provider's pool when no section uses it any more.
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._users: dict[int, int] = {}
        self._buffers: dict[int, Buffer] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all its buffers."""
        return sum(b.nbytes for b in self._buffers.values())

    def lease(self, live: Iterable[Buffer] = (), *, reuse: bool = True) -> Lease:
        """Start planning a section while the buffers in `live` hold values."""
        busy = {id(b): b for b in live}
        free = [b for b in self._buffers.values() if id(b) not in busy] if reuse else []
        return Lease(self, free, reuse, sum(b.nbytes for b in busy.values()))

    def _acquire(self, nbytes: int) -> Buffer:
        buffer = self._provider.take(nbytes)
        self._buffers[id(buffer)] = buffer
        self._users[id(buffer)] = 0
        return buffer

    def _use(self, buffer: Buffer) -> None:
        self._users[id(buffer)] += 1

    def _unuse(self, buffer: Buffer) -> None:
        self._users[id(buffer)] -= 1
        if self._users[id(buffer)] == 0:
            del self._users[id(buffer)], self._buffers[id(buffer)]
            self._provider.give(buffer)


class Lease:
    """The buffers that one section uses. `close` ends the lease (the section is dropped)."""

    def __init__(self, arena: Arena, free: list[Buffer], reuse: bool, live_bytes: int) -> None:
        self._arena = arena
        self._reuse = reuse
        self._order = 0
        self._free: list[tuple[int, int, Buffer]] = []
        self._used: dict[int, Buffer] = {}
        self.live_bytes = live_bytes
        self.peak_bytes = live_bytes
        for buffer in free:
            self._offer(buffer)

    def _offer(self, buffer: Buffer) -> None:
        self._order += 1
        insort(self._free, (buffer.nbytes, self._order, buffer), key=lambda item: item[:2])

    def take(self, nbytes: int) -> Buffer:
        """A buffer of at least `nbytes` that no live value of the section holds."""
        at = bisect_left(self._free, nbytes, key=lambda item: item[0])
        if at < len(self._free) and self._free[at][0] <= max(nbytes, 64) * _SLACK:
            buffer = self._free.pop(at)[2]
        else:
            buffer = self._arena._acquire(nbytes)
        if id(buffer) not in self._used:
            self._used[id(buffer)] = buffer
            self._arena._use(buffer)
        self.live_bytes += buffer.nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return buffer

    def release(self, buffer: Buffer) -> None:
        """The value in `buffer` was read for the last time."""
        self.live_bytes -= buffer.nbytes
        if self._reuse:
            self._offer(buffer)

    def close(self) -> None:
        """Drop the section's claims. A second call does nothing."""
        used, self._used = self._used, {}
        for buffer in used.values():
            self._arena._unuse(buffer)
