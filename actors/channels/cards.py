"""What peers need to know of an endpoint to find it, to be let in, and to be sure that it is the one."""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.channels.messages import Block


@dataclass(frozen=True, slots=True)
class Card:
    """One endpoint. Travels through Ray's calls only.

    `address`, `public`: where it listens for other machines, and its CURVE key. `name`, `secret`: its socket for peers
    on this machine, and what they prove to know. `probe`: a block with `content`, to find out whether its memory can be
    shared.
    """

    peer: int
    device: str
    address: str
    public: bytes
    process: int
    probe: Block
    content: bytes = field(repr=False)
    name: str
    secret: bytes = field(repr=False)
