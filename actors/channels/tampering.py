"""Chaos on the road: an endpoint whose messages are held back, come twice, swapped, or as of an earlier generation."""

from __future__ import annotations

import threading

from actors import chaos
from actors.channels.endpoint import Endpoint
from actors.channels.messages import Message

SWAP_S = 0.01
"""How long a message waits for the one that overtakes it; the last of all would wait for ever."""


def make_endpoint(me: int, device: str, generation: int, address: str) -> Endpoint:
    """An endpoint; where chaos is enabled, one that does to its messages what `chaos.messages` says.

    Raises: TransportError where it cannot listen.
    """
    kind = Tampered if chaos.active() else Endpoint
    return kind(me, device, generation, address)


class Tampered(Endpoint):
    """What it holds back is sent in the order in which it was given, and is lost with the endpoint."""

    def __init__(self, me: int, device: str, generation: int, address: str) -> None:
        self._device = device
        self._behind: list[tuple[int, Message | bytes]] = []
        self._holding = False
        self._overtaken: dict[int, Message | bytes] = {}
        self._tampering = threading.RLock()
        super().__init__(me, device, generation, address)

    def send(self, peer: int, message: Message | bytes, generation: int | None = None) -> bool:
        """As Endpoint, in a way; True as well where the message is sent later."""
        what = chaos.tampering(self._device)
        with self._tampering:
            if self._holding or what == "hold":
                self._behind.append((peer, message))
                if not self._holding:
                    self._holding = True
                    threading.Thread(target=self._release, name="hetero-held", daemon=True).start()
                return True
            first = self._overtaken.pop(peer, None)
            if first is None and what == "reorder":
                self._overtaken[peer] = message
                timer = threading.Timer(SWAP_S, self._catch_up, (peer, message))
                timer.daemon = True
                timer.start()
                return True
            if what == "stale":
                super().send(peer, message, self.generation - 1)
            sent = super().send(peer, message, generation)
            if what == "duplicate":
                super().send(peer, message, generation)
            if first is not None:
                super().send(peer, first, generation)
            return sent

    def _release(self) -> None:
        chaos.wait_messages(self._device)
        with self._tampering:
            self._holding = False
            behind, self._behind = self._behind, []
            for peer, message in behind:
                super().send(peer, message)

    def _catch_up(self, peer: int, message: Message | bytes) -> None:
        with self._tampering:
            if self._overtaken.get(peer) is message:
                del self._overtaken[peer]
                super().send(peer, message)
