"""What comes in at an endpoint: descriptors that are watched, and what they bring, checked, as events."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from actors.channels.messages import Forms, Received, opening, read
from hetero.errors import TransportError


@dataclass(slots=True)
class Arrived:
    """A message of a peer, as authenticated."""

    peer: int
    message: Received


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The peer has let us in: messages to it will arrive."""

    peer: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The peer's process, its machine or the way to it is gone, or it does not let us in; for good."""

    peer: int
    reason: str


Event = Arrived | PeerConnected | PeerLost


@dataclass(slots=True)
class Counters:
    """What an endpoint has seen. `malformed`, `fenced` and `refused` were dropped."""

    sent: int = 0
    received: int = 0
    malformed: int = 0
    fenced: int = 0
    """Messages of another generation."""
    refused: int = 0
    """Connections of strangers."""


class Link(Protocol):
    """The way on which this process sends to one peer."""

    def send(self, frames: Sequence[Any]) -> bool:
        """Send at once, or put what the peer has no room for behind what waits; never waits. The frames are not changed
        any more. False where the peer is lost, or not connected yet. Thread-safe."""

    def close(self) -> None:
        """End it; what waits is dropped. A second call does nothing."""


class Intake:
    """Belongs to one thread at a time, but for `wake`, `watch` and `forget`, which any may call."""

    def __init__(self, generation: int) -> None:
        """Raises: OSError where there is no descriptor to be had."""
        self.counters = Counters()
        self._generation = generation
        self.opening = opening(generation)
        self.forms: Forms = {}
        """What messages were like before."""
        self.events: list[Event] = []
        """What the next `take` returns."""
        self._lost: set[int] = set()
        self._handlers: dict[int, Callable[[int], object]] = {}
        self._again: list[Callable[[], object]] = []
        self._ending = threading.Lock()
        self._epoll = select.epoll()
        self._awake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._awake, select.EPOLLIN, lambda _: os.eventfd_read(self._awake))

    # -- descriptors ---------------------------------------------------------------------------------------------
    def watch(self, descriptor: int, mask: int, handler: Callable[[int], object]) -> None:
        """Call `handler` with what is ready, in `poll`, as long as it is; or watch for something else from now on."""
        known = descriptor in self._handlers
        self._handlers[descriptor] = handler
        (self._epoll.modify if known else self._epoll.register)(descriptor, mask)

    def forget(self, descriptor: int) -> None:
        """Watch it no more; before it is closed."""
        if self._handlers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def call_again(self, handler: Callable[[], object]) -> None:
        """Have the next `poll` call this, without waiting: there is more than one turn's share."""
        self._again.append(handler)

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to do."""
        return self._epoll.fileno()

    def poll(self, timeout_s: float | None) -> list[Event]:
        """What has happened; waits for something to, up to `timeout_s` (None: for ever) or `wake`."""
        return self.take(self._epoll.poll(0 if self._again else timeout_s))

    def wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """The waiting part of `poll`: what `take` takes. If it is interrupted, nothing is lost."""
        return self._epoll.poll(0 if self._again else timeout_s)

    def take(self, ready: list[tuple[int, int]]) -> list[Event]:
        """The other part of `poll`."""
        if self._again:
            again, self._again = self._again, []
            for call in again:
                call()
        for descriptor, mask in ready:
            handler = self._handlers.get(descriptor)
            if handler is not None:  # else an earlier one of this turn has closed it
                handler(mask)
        events, self.events = self.events, []
        return events

    def wake(self) -> None:
        """Have `poll` return."""
        with self._ending:
            if self._awake >= 0:
                os.eventfd_write(self._awake, 1)

    def end(self) -> bool:
        """Nothing is to be woken any more: close what is watched, then this; False where that was so already."""
        with self._ending:
            awake, self._awake = self._awake, -1
        if awake >= 0:
            self.forget(awake)
            os.close(awake)
        return awake >= 0

    def close(self) -> None:
        """Watch nothing any more."""
        self._epoll.close()

    # -- what links tell -----------------------------------------------------------------------------------------
    def arrived(self, peer: int, frames: Sequence[Any]) -> None:
        """A message of an authenticated peer; what it must not be is counted and dropped. Keeps the first frame not."""
        try:
            generation, message = read(frames, self.forms)
        except TransportError:
            self.counters.malformed += 1
            return
        if generation == self._generation:
            self.counters.received += 1
            self.events.append(Arrived(peer, message))
        else:
            self.counters.fenced += 1

    def connected(self, peer: int) -> None:
        """The peer has let us in."""
        self.events.append(PeerConnected(peer))

    def lost(self, peer: int, reason: str) -> None:
        """The peer is lost; the first reason counts."""
        if peer not in self._lost:
            self._lost.add(peer)
            self.events.append(PeerLost(peer, reason))
