"""One process's end of the channels: a socket that receives, one per peer that sends, and what ZeroMQ says of them."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from actors.channels.blocks import OwnBlock, reachable
from actors.channels.keys import ZAP_ADDRESS, KeyPair, answer
from actors.channels.messages import (
    MAX_FRAME_BYTES,
    MAX_FRAMES,
    MAX_HEADER_BYTES,
    Block,
    Message,
    read,
    write,
)
from hetero.errors import TransportError

HEARTBEAT_MS = 2000
SILENCE_MS = 6000
"""A peer whose machine says nothing for so long is lost; one whose process ends is lost at once."""
_BATCH = 64
"""Messages taken before other sockets get their turn."""
_PROBE_BYTES = 32
_ENDS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
_REFUSALS = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_EVENTS = _ENDS | _REFUSALS | zmq.EVENT_HANDSHAKE_SUCCEEDED


@dataclass(frozen=True, slots=True)
class Card:
    """What peers need to know of an endpoint. Travels through Ray's calls only.

    `probe`: a block with `content`, to find out whether its memory can be shared.
    """

    peer: int
    device: str
    address: str
    public: bytes
    process: int
    probe: Block
    content: bytes


@dataclass(slots=True)
class Arrived:
    """A message of a peer, as authenticated."""

    peer: int
    message: Message


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


@dataclass(slots=True, eq=False)
class _Peer:
    card: Card
    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    near: bool
    lost: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Endpoint:
    """Encrypted, authenticated, on one address of this machine. `send`, `wake` and `counters` may be used from any
    thread; everything else belongs to one at a time."""

    def __init__(self, me: int, device: str, generation: int, address: str) -> None:
        """Listens on a free port of `address`, an IP of this machine; nobody is let in before `connect`.

        Raises: TransportError where it cannot.
        """
        self.generation = generation
        self.counters = Counters()
        self._keys = KeyPair.make()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._peers: dict[int, _Peer] = {}
        self._allowed: dict[bytes, int] = {}
        self._probe: OwnBlock | None = None
        self._awake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ending = threading.Lock()
        try:
            self._poller.register(self._awake, zmq.POLLIN)
            self._zap = self._context.socket(zmq.REP)
            self._zap.linger = 0
            self._zap.bind(ZAP_ADDRESS)
            self._inbox = self._listening(address)
            for socket in (self._zap, self._inbox):
                self._poller.register(socket, zmq.POLLIN)
            self._probe = OwnBlock(_PROBE_BYTES)
            content = secrets.token_bytes(_PROBE_BYTES)
            self._probe.body()[:] = bytearray(content)
        except (zmq.ZMQError, OSError) as cause:
            self.close()
            raise TransportError(f"cannot listen on {address}: {cause}", device=device) from cause
        where = self._inbox.getsockopt_string(zmq.LAST_ENDPOINT)
        self.card = Card(me, device, where, self._keys.public, os.getpid(), self._probe.handle, content)

    def _listening(self, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.PULL)
        self._set_common(socket, address)
        socket.rcvhwm = (
            0  # what may be under way is bounded by the steps in flight, and by the senders' ledgers
        )
        socket.maxmsgsize = MAX_FRAME_BYTES
        socket.curve_secretkey = self._keys.secret
        socket.curve_publickey = self._keys.public
        socket.curve_server = True
        socket.zap_domain = b"hetero"
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        host = f"[{address}]" if ":" in address else address
        socket.bind(f"tcp://{host}:*")
        return socket

    def _set_common(self, socket: zmq.Socket[bytes], address: str) -> None:
        socket.linger = 0
        socket.ipv6 = ":" in address
        socket.heartbeat_ivl = HEARTBEAT_MS
        socket.heartbeat_timeout = SILENCE_MS

    # -- connecting ----------------------------------------------------------------------------------------------
    def connect(self, cards: Sequence[Card]) -> None:
        """Let these peers in, and connect to them; `poll` tells of each when it has let us in."""
        self._allowed.update({card.public: card.peer for card in cards})
        for card in cards:
            socket = self._context.socket(zmq.PUSH)
            self._set_common(socket, card.address.removeprefix("tcp://").rpartition(":")[0])
            socket.sndhwm = 0
            socket.immediate = True  # a message that waits for a connection would be lost without a word
            socket.reconnect_ivl = -1  # a peer that is lost stays lost
            socket.curve_serverkey = card.public
            socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret
            monitor: Any = socket.get_monitor_socket(_EVENTS)
            near = reachable(card.process, card.probe, card.content)
            self._peers[card.peer] = _Peer(card, socket, monitor, near)
            self._poller.register(monitor, zmq.POLLIN)
            socket.connect(card.address)

    def near(self, peer: int) -> bool:
        """Whether the memory of that peer's process can be read here, and so, ours there."""
        return self._peers[peer].near

    def process(self, peer: int) -> int:
        """The process id of a peer."""
        return self._peers[peer].card.process

    @property
    def peers(self) -> Mapping[int, str]:
        """The device of each peer."""
        return {k: p.card.device for k, p in self._peers.items()}

    # -- messages ------------------------------------------------------------------------------------------------
    def send(self, peer: int, message: Message, generation: int | None = None) -> bool:
        """Send at once, as of `generation` (None: of this one). False where the peer is lost, or this endpoint closed.

        Raises: TransportError (too large).
        """
        frames = write(message, self.generation if generation is None else generation)
        entry = self._peers[peer]
        with entry.lock:
            if entry.lost or entry.socket.closed:
                return False
            try:
                if len(frames) == 1:
                    entry.socket.send(frames[0], zmq.NOBLOCK)
                else:  # copied, since pyzmq would keep a thread of its own to say when it needs them no more
                    entry.socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.ZMQError:  # no connection: `poll` tells of it
                return False
        self.counters.sent += 1
        return True

    def poll(self, timeout_s: float | None) -> list[Event]:
        """What has happened; waits for something to, up to `timeout_s` (None: for ever) or `wake`."""
        ready = self._poller.poll(None if timeout_s is None else max(0, int(timeout_s * 1000)))
        events: list[Event] = []
        for source, _ in ready:
            if source is self._inbox:
                self._receive(events)
            elif source is self._zap:
                self._answer()
            elif source == self._awake:
                os.eventfd_read(self._awake)
            else:
                self._watch(source, events)
        return events

    def wake(self) -> None:
        """Have `poll` return."""
        with self._ending:
            if self._awake >= 0:
                os.eventfd_write(self._awake, 1)

    def _receive(self, events: list[Event]) -> None:
        inbox = self._inbox
        for _ in range(_BATCH):
            try:
                frames = inbox.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:  # a message that has not arrived whole wakes the poller too
                return
            try:
                if len(frames) > MAX_FRAMES or len(frames[0]) > MAX_HEADER_BYTES:
                    raise TransportError("a malformed message: too large")
                peer = int(frames[0]["User-Id"])
                generation, message = read([frame.buffer for frame in frames])
            except (TransportError, ValueError, zmq.ZMQError):
                self.counters.malformed += 1
            else:
                if generation == self.generation:
                    self.counters.received += 1
                    events.append(Arrived(peer, message))
                else:
                    self.counters.fenced += 1
            if not int(inbox.get(zmq.EVENTS)) & zmq.POLLIN:
                return

    def _answer(self) -> None:
        while True:
            try:
                request = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            reply, admitted = answer(request, self._allowed)
            self.counters.refused += not admitted
            self._zap.send_multipart(reply)

    def _watch(self, monitor: Any, events: list[Event]) -> None:
        entry = next(p for p in self._peers.values() if p.monitor is monitor)
        while True:
            try:
                event = int(parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))["event"])
            except zmq.Again:
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                events.append(PeerConnected(entry.card.peer))
            elif event & (_ENDS | _REFUSALS) and not entry.lost:
                entry.lost = True
                reason = "it refused the connection" if event & _REFUSALS else "its channel closed"
                events.append(PeerLost(entry.card.peer, reason))

    def close(self) -> None:
        """Close every socket and free the probe. A second call does nothing."""
        with self._ending:
            awake, self._awake = self._awake, -1
        if awake < 0:
            return
        for entry in self._peers.values():
            with entry.lock:
                entry.socket.disable_monitor()
                entry.monitor.close(0)
                entry.socket.close(0)
        self._context.destroy(linger=0)
        os.close(awake)
        if self._probe is not None:
            self._probe.close()


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
