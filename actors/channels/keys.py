"""Who may talk to whom: a key pair per process and generation, and the answers to ZeroMQ's authentication requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

ZAP_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair in ZeroMQ's printable form. The secret stays in the process that made it."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def make(cls) -> KeyPair:
        """A new one."""
        return cls(*zmq.curve_keypair())


def answer(request: Sequence[bytes], allowed: Mapping[bytes, int]) -> tuple[list[bytes], bool]:
    """The reply to a request of the ZeroMQ Authentication Protocol (RFC 27), and whether it lets the client in.

    `allowed`: public key -> peer; the peer's number becomes the "User-Id" of whatever the client sends, so that nobody
    can send in another's name.
    """
    request_id = request[1] if len(request) > 1 else b""
    if len(request) == 7 and request[0] == _VERSION and request[5] == b"CURVE":
        peer = allowed.get(z85.encode(request[6]) if len(request[6]) == 32 else b"")
        if peer is not None:
            return [_VERSION, request_id, b"200", b"OK", str(peer).encode(), b""], True
    return [_VERSION, request_id, b"400", b"unknown key", b"", b""], False
