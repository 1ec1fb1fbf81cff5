"""How two processes on one machine prove to each other who they are: a challenge each, answered with both secrets."""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

from actors.channels.cards import Card

NONCE_BYTES = 32
PROOF_BYTES = 32
_NUMBERS = struct.Struct("<qqq")
_CLAIM = struct.Struct(f"<q{NONCE_BYTES}s{PROOF_BYTES}s")
CLAIM_BYTES = _CLAIM.size


@dataclass(frozen=True, slots=True)
class Pair:
    """One connection of one generation: who connects and who listens. Both secrets went through Ray's calls only."""

    connecting: Card
    listening: Card
    generation: int

    def proof(self, role: str, asked: bytes, asking: bytes) -> bytes:
        """What only somebody with both secrets can answer to the challenge `asked`, and only in this role, to this
        peer, in this generation. `asking`: the challenge of whoever answers."""
        numbers = _NUMBERS.pack(self.connecting.peer, self.listening.peer, self.generation)
        key = self.connecting.secret + self.listening.secret
        return hmac.digest(key, b"|".join((role.encode(), numbers, asked, asking)), hashlib.sha256)

    def claim(self, asked: bytes, asking: bytes) -> bytes:
        """What the connecting side says to the challenge `asked`: who it is, its own challenge, and its proof."""
        return _CLAIM.pack(self.connecting.peer, asking, self.proof("connecting", asked, asking))

    def admits(self, claim: bytes, asked: bytes) -> bytes | None:
        """The listening side's own proof for a claim that holds; else None."""
        _, asking, proof = _CLAIM.unpack(claim)
        if not hmac.compare_digest(proof, self.proof("connecting", asked, asking)):
            return None
        return self.proof("listening", asking, asked)

    def accepts(self, proof: bytes, asked: bytes, asking: bytes) -> bool:
        """Whether the listening side's proof holds."""
        return hmac.compare_digest(proof, self.proof("listening", asking, asked))


def claimed(claim: bytes) -> int:
    """The peer that the connecting side says it is."""
    peer: int = _CLAIM.unpack(claim)[0]
    return peer
