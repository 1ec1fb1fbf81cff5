"""Peers on this machine: a Unix socket each way, written by whoever has something to send, with nothing in between.

The listening socket's name is abstract: it is in no file system, and is gone with the process. Who may talk is what the
kernel says of the process at the other end (user and process id, as the card has them), and what both prove to know
(`actors.channels.handshake`).
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from actors.channels.cards import Card
from actors.channels.framing import ONE, Reader, joined
from actors.channels.handshake import CLAIM_BYTES, NONCE_BYTES, PROOF_BYTES, Pair, claimed
from actors.channels.intake import Arrived, Intake
from actors.channels.messages import Known
from hetero.errors import TransportError

SECRET_BYTES = 32
SEND_BUFFER_BYTES = 1 << 20
"""What the system may keep of what was sent and not read; it may grant less. The rest waits here."""
MAX_STRANGERS = 64
"""Connections that have not proved anything yet; beyond that the oldest goes."""
_BACKLOG = 128
_PIECES = 64
"""Of a message, handed to the system at once."""
_NAME_BYTES = 16
_ENDS = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP


class LocalRoad:
    """Listens for peers on this machine, and makes links to them."""

    def __init__(self, generation: int, intake: Intake) -> None:
        """Raises: OSError where it cannot listen."""
        self.name = "hetero-" + secrets.token_hex(_NAME_BYTES)
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.me: Card | None = None
        self.known: dict[int, Card] = {}
        """Who is let in."""
        self.generation = generation
        self.intake = intake
        self._arriving: dict[int, _Arriving] = {}
        """What has come in, by descriptor, in this order."""
        self._links: dict[int, LocalLink] = {}
        self._listener = _socket()
        try:
            self._listener.bind(f"\0{self.name}")
            self._listener.listen(_BACKLOG)
        except OSError:
            self._listener.close()
            raise
        intake.watch(self._listener.fileno(), select.EPOLLIN, self._accept)

    def link(self, card: Card, refused: Callable[[], object]) -> LocalLink | None:
        """A link to a peer; None where there is no way to it from here. `refused` is called in `poll` where it then
        does not let us in."""
        sender = _socket()
        try:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            sender.connect(f"\0{card.name}")
            if _credentials(sender) != (card.process, os.geteuid()):
                raise PermissionError
        except OSError:
            sender.close()
            return None
        assert self.me is not None, "an endpoint that connects has its card"
        link = LocalLink(self, sender, Pair(self.me, card, self.generation), refused)
        self._links[card.peer] = link
        return link

    def _accept(self, _: int) -> None:
        while True:
            try:
                receiver, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor to be had: it would be told of this again and again
                self.intake.forget(self._listener.fileno())
                return
            receiver.setblocking(False)
            process, user = _credentials(receiver)
            if user != os.geteuid() or all(c.process != process for c in self.known.values()):
                self.intake.counters.refused += 1
                receiver.close()
                continue
            strangers = [a for a in self._arriving.values() if a.peer is None]
            if len(strangers) >= MAX_STRANGERS:
                strangers[0].refuse()
            self._arriving[receiver.fileno()] = _Arriving(self, receiver, process)

    def gone(self, descriptor: int) -> None:
        """What had come in here is closed."""
        self._arriving.pop(descriptor, None)

    def heard(self, peer: int) -> bool:
        """Whether this peer sends to us over this road."""
        return any(a.peer == peer for a in self._arriving.values())

    def lost(self, peer: int, reason: str) -> None:
        """The way to this peer is gone, or the way from it: both are, then. It is told of once all that it had sent is
        here."""
        link = self._links.get(peer)
        if link is not None:
            link.close()
        if not self.heard(peer):
            self.intake.lost(peer, reason)

    def close(self) -> None:
        """Close everything that has come in. A second call does nothing."""
        self.intake.forget(self._listener.fileno())
        self._listener.close()
        for arriving in tuple(self._arriving.values()):
            arriving.close()


class LocalLink:
    """The way to one peer. It answers the peer's challenge first, then waits for its proof, then messages go."""

    def __init__(
        self, road: LocalRoad, sender: socket.socket, pair: Pair, refused: Callable[[], object]
    ) -> None:
        self._road, self._intake = road, road.intake
        self._socket, self._pair, self._refused = sender, pair, refused
        self._descriptor = sender.fileno()
        self._peer = pair.listening.peer
        self._lock = threading.Lock()
        self._waiting: deque[memoryview] = deque()
        self._asking = secrets.token_bytes(NONCE_BYTES)
        self._asked: bytes | None = None
        self._got = bytearray()
        self._open = self._closed = self._full = False
        self._intake.watch(self._descriptor, select.EPOLLIN, self._ready)

    def send(self, frames: Sequence[Any]) -> bool:
        """As Link says."""
        first, *others = (ONE.pack(1, len(frames[0])) + frames[0],) if len(frames) == 1 else joined(frames)
        with self._lock:
            if not self._open:
                return False
            if not others and not self._waiting:
                try:
                    sent = self._socket.send(first)
                except BlockingIOError:
                    sent = 0
                except OSError:  # it is gone: `poll` tells of it
                    return False
                if sent == len(first):
                    return True
                first = memoryview(first)[sent:]
            self._waiting.extend(map(memoryview, (first, *others)))
            if not self._full:
                self._flush()
        return True

    def _ready(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            with self._lock:
                if self._open:
                    self._flush()
        if mask & (select.EPOLLIN | _ENDS):
            self._hear()

    def _flush(self) -> None:
        """Send what waits, as far as the system has room for it; have `poll` go on when it has more."""
        waiting, full = self._waiting, False
        try:
            while waiting:
                sent = self._socket.sendmsg(tuple(islice(waiting, _PIECES)))
                while waiting and sent >= len(waiting[0]):
                    sent -= len(waiting.popleft())
                if sent:
                    waiting[0] = waiting[0][sent:]
        except BlockingIOError:
            full = True
        except OSError:
            waiting.clear()
        if full != self._full:
            self._full = full
            mask = select.EPOLLIN | select.EPOLLOUT if full else select.EPOLLIN
            self._intake.watch(self._descriptor, mask, self._ready)

    def _hear(self) -> None:
        """The peer's challenge, its proof, or its end."""
        wanted = NONCE_BYTES if self._asked is None else PROOF_BYTES
        try:
            got = self._socket.recv(1 if self._open else wanted - len(self._got))
        except BlockingIOError:
            return
        except OSError:
            got = b""
        if self._open or not got:
            if self._open:
                self._road.lost(self._peer, "its channel closed")
            else:
                self.close()
                self._refused()
            return
        self._got += got
        if len(self._got) < wanted:
            return
        said, self._got = bytes(self._got), bytearray()
        if self._asked is None:
            self._asked = said
            try:
                self._socket.send(self._pair.claim(said, self._asking))
            except OSError:
                self.close()
                self._refused()
        elif self._pair.accepts(said, self._asked, self._asking):
            self._open = True
            self._intake.connected(self._peer)
        else:
            self.close()
            self._refused()

    def close(self) -> None:
        """As Link says."""
        with self._lock:
            self._open = False
            if not self._closed:
                self._closed = True
                self._intake.forget(self._descriptor)
                self._socket.close()
                self._waiting.clear()


class _Arriving:
    """A connection that came in: a stranger's until it has proved whose it is (`peer`)."""

    def __init__(self, road: LocalRoad, receiver: socket.socket, process: int) -> None:
        self.peer: int | None = None
        self._road, self._socket, self._process = road, receiver, process
        self._descriptor = receiver.fileno()
        self._asked = secrets.token_bytes(NONCE_BYTES)
        self._claim = bytearray()
        self._reader = Reader()
        with suppress(OSError):  # else its end shows when it is read
            receiver.send(self._asked)
        road.intake.watch(self._descriptor, select.EPOLLIN, self._admit)

    def _admit(self, _: int) -> None:
        try:
            self._claim += (got := self._socket.recv(CLAIM_BYTES - len(self._claim)))
        except BlockingIOError:
            return
        except OSError:
            got = b""
        if not got:
            self.refuse()
        elif len(self._claim) == CLAIM_BYTES:
            road, claim = self._road, bytes(self._claim)
            card = road.known.get(claimed(claim))
            if card is None or card.process != self._process or road.heard(card.peer):
                self.refuse()
                return
            assert road.me is not None, "an endpoint that knows peers has its card"
            proof = Pair(card, road.me, road.generation).admits(claim, self._asked)
            if proof is None:
                self.refuse()
                return
            self.peer = card.peer
            road.intake.watch(self._descriptor, select.EPOLLIN, self._read)
            with suppress(OSError):
                self._socket.send(proof)

    def _read(self, _: int) -> None:
        assert self.peer is not None, "whoever may send has proved who it is"
        intake, reader, reason = self._road.intake, self._reader, None
        try:
            received = reader.receive(self._socket, intake.forms, intake.opening)
            if isinstance(received, Known):
                intake.counters.received += 1
                intake.events.append(Arrived(self.peer, received))
            elif received:
                for frames in reader.take(received):
                    intake.arrived(self.peer, frames)
            else:
                intake.counters.malformed += reader.partial
                reason = "its channel closed"
        except BlockingIOError:
            return
        except OSError:
            reason = "its channel closed"
        except (TransportError, MemoryError):
            intake.counters.malformed += 1
            reason = "it sent what is no message"
        if reason is not None:
            self.close()
            self._road.lost(self.peer, reason)

    def refuse(self) -> None:
        """It is a stranger's."""
        self._road.intake.counters.refused += 1
        self.close()

    def close(self) -> None:
        """End it."""
        self._road.gone(self._descriptor)
        self._road.intake.forget(self._descriptor)
        self._socket.close()


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def _credentials(connected: socket.socket) -> tuple[int, int]:
    """Process id and user of the process at the other end, as the kernel knows them."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", raw)
    return process, user
