"""Peers on other machines, and those that no direct socket reaches: ZeroMQ over TCP, encrypted and authenticated."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from actors.channels.cards import Card
from actors.channels.intake import Intake
from actors.channels.keys import ZAP_ADDRESS, KeyPair, answer
from actors.channels.messages import MAX_FRAME_BYTES, MAX_FRAMES, MAX_HEADER_BYTES

HEARTBEAT_MS = 2000
SILENCE_MS = 6000
"""A peer whose machine says nothing for so long is lost; one whose process ends is lost at once."""
_BATCH = 64
"""Messages taken before other descriptors get their turn."""
_ENDS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
_REFUSALS = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_EVENTS = _ENDS | _REFUSALS | zmq.EVENT_HANDSHAKE_SUCCEEDED


class ZeroMQRoad:
    """Listens on one address of this machine, and makes links to peers.

    A ZeroMQ socket's descriptor is readable when something has happened to it that was not looked at, not while
    messages wait: whoever is told of it takes everything, or asks to be called again.
    """

    def __init__(self, address: str, intake: Intake) -> None:
        """Raises: zmq.ZMQError where it cannot listen."""
        self.allowed: dict[bytes, int] = {}
        """Public keys of those who are let in, with their numbers."""
        self._intake = intake
        self._keys = KeyPair.make()
        self.public = self._keys.public
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._links: list[ZeroMQLink] = []
        try:
            self._zap = self._context.socket(zmq.REP)
            self._zap.linger = 0
            self._zap.bind(ZAP_ADDRESS)
            self._inbox = self._listening(address)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.address = self._inbox.getsockopt_string(zmq.LAST_ENDPOINT)
        _watch(intake, self._zap, self._answer)
        _watch(intake, self._inbox, self._receive)

    def _listening(self, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.PULL)
        _set_common(socket, address)
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

    def link(self, card: Card) -> ZeroMQLink:
        """A link to a peer; it is told of when the peer has let us in."""
        socket = self._context.socket(zmq.PUSH)
        _set_common(socket, card.address.removeprefix("tcp://").rpartition(":")[0])
        socket.sndhwm = 0
        socket.immediate = True  # a message that waits for a connection would be lost without a word
        socket.reconnect_ivl = -1  # a peer that is lost stays lost
        socket.curve_serverkey = card.public
        socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret
        link = ZeroMQLink(card.peer, socket, self._intake)
        self._links.append(link)
        socket.connect(card.address)
        return link

    def _receive(self) -> None:
        inbox, counters = self._inbox, self._intake.counters
        for _ in range(_BATCH):
            try:
                frames = inbox.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:  # a message that has not arrived whole wakes the poller too
                return
            try:
                peer = int(frames[0]["User-Id"])
            except (ValueError, zmq.ZMQError):
                peer = None
            if peer is None or len(frames) > MAX_FRAMES or len(frames[0]) > MAX_HEADER_BYTES:
                counters.malformed += 1
            else:
                self._intake.arrived(peer, [frame.buffer for frame in frames])
        self._intake.call_again(self._receive)

    def _answer(self) -> None:
        while True:
            try:
                request = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            reply, admitted = answer(request, self.allowed)
            self._intake.counters.refused += not admitted
            self._zap.send_multipart(reply)

    def close(self) -> None:
        """Close every socket. A second call does nothing."""
        if self._context.closed:
            return
        for link in self._links:
            link.close()
        for socket in (self._zap, self._inbox):
            self._intake.forget(int(socket.get(zmq.FD)))
        self._context.destroy(linger=0)


class ZeroMQLink:
    """The way to one peer."""

    def __init__(self, peer: int, socket: zmq.Socket[bytes], intake: Intake) -> None:
        self._peer, self._socket, self._intake = peer, socket, intake
        self._monitor: Any = socket.get_monitor_socket(_EVENTS)
        self._lost = False
        self._lock = threading.Lock()
        _watch(intake, self._monitor, self._hear)

    def send(self, frames: Sequence[Any]) -> bool:
        """As Link says."""
        with self._lock:
            if self._lost or self._socket.closed:
                return False
            try:
                if len(frames) == 1:
                    self._socket.send(frames[0], zmq.NOBLOCK)
                else:  # copied, since pyzmq would keep a thread of its own to say when it needs them no more
                    self._socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.ZMQError:  # no connection: `poll` tells of it
                return False
        return True

    def _hear(self) -> None:
        while not self._monitor.closed:
            try:
                event = int(parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"])
            except zmq.Again:
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._intake.connected(self._peer)
            elif event & (_ENDS | _REFUSALS):
                self._lost = True
                reason = "it refused the connection" if event & _REFUSALS else "its channel closed"
                self._intake.lost(self._peer, reason)

    def close(self) -> None:
        """As Link says."""
        with self._lock:
            if not self._socket.closed:
                self._intake.forget(int(self._monitor.get(zmq.FD)))
                self._socket.disable_monitor()
                self._monitor.close(0)
                self._socket.close(0)


def _set_common(socket: zmq.Socket[bytes], address: str) -> None:
    socket.linger = 0
    socket.ipv6 = ":" in address
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = SILENCE_MS


def _watch(intake: Intake, socket: Any, handler: Callable[[], object]) -> None:
    intake.watch(int(socket.get(zmq.FD)), select.EPOLLIN, lambda _: handler())
    intake.call_again(handler)  # what has happened before shows no more
