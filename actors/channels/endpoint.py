"""One process's end of the channels: a link to each peer, on the road that leads there, and what comes from them."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence

import zmq

from actors.channels.blocks import OwnBlock, reachable
from actors.channels.cards import Card
from actors.channels.intake import Event, Intake, Link, PeerConnected, PeerLost
from actors.channels.messages import Message, as_of, write
from actors.channels.sockets import LocalRoad
from actors.channels.zeromq import ZeroMQRoad
from hetero.errors import TransportError

_PROBE_BYTES = 32


class Endpoint:
    """Authenticated, on one address of this machine and for its own processes. `send`, `wake` and `counters` may be
    used from any thread; everything else belongs to one at a time."""

    def __init__(self, me: int, device: str, generation: int, address: str) -> None:
        """Listens on a free port of `address`, an IP of this machine; nobody is let in before `connect`.

        Raises: TransportError where it cannot.
        """
        self.generation = generation
        self._cards: dict[int, Card] = {}
        self._near: dict[int, bool] = {}
        self._links: dict[int, Link] = {}
        self._probe: OwnBlock | None = None
        self._local: LocalRoad | None = None
        self._far: ZeroMQRoad | None = None
        try:
            self._intake = Intake(generation)
        except OSError as cause:
            raise TransportError(f"cannot listen: {cause}", device=device) from cause
        self.counters = self._intake.counters
        self.fileno = self._intake.fileno
        self.poll, self.wait, self.take = self._intake.poll, self._intake.wait, self._intake.take
        self.wake = self._intake.wake
        try:
            self._local = local = LocalRoad(generation, self._intake)
            self._far = far = ZeroMQRoad(address, self._intake)
            self._probe = OwnBlock(_PROBE_BYTES)
            content = secrets.token_bytes(_PROBE_BYTES)
            self._probe.body()[:] = bytearray(content)
        except (zmq.ZMQError, OSError) as cause:
            self.close()
            raise TransportError(f"cannot listen on {address}: {cause}", device=device) from cause
        self.card = local.me = Card(
            me,
            device,
            far.address,
            far.public,
            os.getpid(),
            self._probe.handle,
            content,
            local.name,
            local.secret,
        )

    # -- connecting ----------------------------------------------------------------------------------------------
    def connect(self, cards: Sequence[Card]) -> None:
        """Let these peers in, and connect to them; `poll` tells of each when it has let us in."""
        local, far = self._roads()
        local.known.update({card.peer: card for card in cards})
        far.allowed.update({card.public: card.peer for card in cards})
        for card in cards:
            self._cards[card.peer] = card
            self._near[card.peer] = reachable(card.process, card.probe, card.content)
            self._links[card.peer] = self._linked(card)

    def _linked(self, card: Card) -> Link:
        """The direct way, where there is one."""
        local, far = self._roads()

        def refused() -> None:
            self._links[card.peer] = far.link(card)

        return local.link(card, refused) or far.link(card)

    def _roads(self) -> tuple[LocalRoad, ZeroMQRoad]:
        assert self._local is not None, "an endpoint that is open has its roads"
        assert self._far is not None, "both of them"
        return self._local, self._far

    def near(self, peer: int) -> bool:
        """Whether the memory of that peer's process can be read here, and so, ours there."""
        return self._near[peer]

    def process(self, peer: int) -> int:
        """The process id of a peer."""
        return self._cards[peer].process

    @property
    def peers(self) -> Mapping[int, str]:
        """The device of each peer."""
        return {k: card.device for k, card in self._cards.items()}

    # -- messages ------------------------------------------------------------------------------------------------
    def send(self, peer: int, message: Message | bytes, generation: int | None = None) -> bool:
        """Send at once, as of `generation` (None: of this one); a message in one frame may be written already. False
        where the peer is lost, or this endpoint closed.

        Raises: TransportError (too large).
        """
        if not isinstance(message, bytes):
            frames = write(message, self.generation if generation is None else generation)
        else:
            frames = [message if generation is None else as_of(message, generation)]
        if not self._links[peer].send(frames):
            return False
        self.counters.sent += 1
        return True

    def close(self) -> None:
        """Close every socket and free the probe. A second call does nothing."""
        if not self._intake.end():
            return
        for link in self._links.values():
            link.close()
        if self._local is not None:
            self._local.close()
        if self._far is not None:
            self._far.close()
        if self._probe is not None:
            self._probe.close()
        self._intake.close()


def wait_connected(endpoint: Endpoint, deadline_s: float) -> list[Event]:
    """Poll until every peer has let us in; returns what else has happened meanwhile.

    `deadline_s`: of time.monotonic(). Raises: TransportError where a peer is lost, or the time is over.
    """
    waiting = set(endpoint.peers)
    others: list[Event] = []
    while waiting:
        left = deadline_s - time.monotonic()
        if left <= 0:
            names = sorted(endpoint.peers[k] for k in waiting)
            raise TransportError(f"no channel to {names} in time")
        for event in endpoint.poll(left):
            if isinstance(event, PeerConnected):
                waiting.discard(event.peer)
            elif isinstance(event, PeerLost):
                raise TransportError(f"no channel to {endpoint.peers[event.peer]}: {event.reason}")
            else:
                others.append(event)
    return others
