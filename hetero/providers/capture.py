"""Recordings and captured graphs of one provider: the rules of capture, whatever a graph is made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, NoReturn, TypeVar

from hetero.errors import CaptureError
from hetero.providers.base import CaptureToken

Item = TypeVar("Item")
Graph = TypeVar("Graph")


class Captures(Generic[Item, Graph]):
    """At most one open recording of `Item`s, and one finished `Graph` per (owner, slot).

    An owner never reaches another's graph: a graph is found by its token, and tokens compare by identity.
    """

    def __init__(self, device: str, finish: Callable[[list[Item]], Graph]) -> None:
        self.device = device
        self.recording = False
        """Whether a recording is open (broken or not); providers read it before every forbidden operation."""
        self._finish = finish
        self._key: tuple[Hashable, str] = ("", "")
        self._items: list[Item] = []
        self._broken: str | None = None
        self._graphs: dict[tuple[Hashable, str], tuple[CaptureToken, Graph]] = {}

    def begin(self, owner: Hashable, slot: str) -> None:
        """Open a recording. Raises: CaptureError where one is open (which breaks that one)."""
        if self.recording:
            self.refuse("begin_capture")
        self._key = (owner, slot)
        self.recording = True

    def add(self, item: Item) -> None:
        """Raises: CaptureError where no recording is open, or it is broken."""
        self.check("record")
        self._items.append(item)

    def refuse(self, what: str, why: str | None = None) -> NoReturn:
        """Break the open recording because `what` was asked for while it was open. Raises: CaptureError."""
        slot = self._key[1]
        reason = f" ({why})" if why else ""
        message = f"{what} while {self.device} records graph slot {slot!r}{reason}; the recording is broken"
        self._broken = self._broken or what
        raise CaptureError(message, device=self.device)

    def end(self) -> CaptureToken:
        """Close the recording. Raises: CaptureError where none is open, or it is broken (abort gets out)."""
        self.check("end_capture")
        token = CaptureToken(self.device, *self._key, calls=len(self._items))
        self._graphs[self._key] = (token, self._finish(self._items))
        self.abort()
        return token

    def abort(self) -> None:
        """Drop the open recording, if any."""
        self._items = []
        self._broken = None
        self.recording = False

    def graph(self, token: CaptureToken) -> Graph:
        """The graph that `token` names. Raises: CaptureError for a stale or foreign token, and while recording."""
        if self.recording:
            self.refuse("launch")
        found = self._graphs.get((token.owner, token.slot))
        if found is None or found[0] is not token:
            whose = "stale" if token.device == self.device else f"foreign (it belongs to {token.device})"
            raise CaptureError(
                f"the token of graph slot {token.slot!r} of {token.owner!r} is {whose}", device=self.device
            )
        return found[1]

    def discard(self, token: CaptureToken) -> None:
        """Forget the graph that `token` names; a stale token is ignored."""
        found = self._graphs.get((token.owner, token.slot))
        if found is not None and found[0] is token:
            del self._graphs[token.owner, token.slot]

    def clear(self) -> None:
        """Forget every graph, and the open recording."""
        self.abort()
        self._graphs.clear()

    def __len__(self) -> int:
        return len(self._graphs)

    def check(self, what: str) -> None:
        """Raises: CaptureError unless a recording is open and whole."""
        if not self.recording:
            raise CaptureError(f"{what}: {self.device} is not recording", device=self.device)
        if self._broken is not None:
            raise CaptureError(
                f"{what}: the recording of graph slot {self._key[1]!r} was broken by {self._broken}; abort it",
                device=self.device,
            )
