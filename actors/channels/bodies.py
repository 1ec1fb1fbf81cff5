"""The bytes of parcels: small ones inside the message, large ones in shared memory or frames, against credit."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from actors.channels.blocks import Mappings, Pool
from actors.channels.ledger import Ledger
from actors.channels.messages import Block, Packed, Settled
from actors.channels.wire import ALIGNMENT, Bytes, Encoded, decode
from hetero.errors import TransportError

SMALL_BYTES = 32 << 10
"""A body up to this size travels with its message and needs no credit: the steps in flight bound how many there are."""


@dataclass(slots=True)
class Limits:
    """`credit_bytes`: large bodies that one process may have out; `idle_bytes`: blocks that it keeps for the next."""

    credit_bytes: int = 256 << 20
    idle_bytes: int = 256 << 20


class Outgoing:
    """What one process sends, and its receivers still hold. Thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._ledger = Ledger(limits.credit_bytes)
        self._pool = Pool(limits.idle_bytes)
        self._credit = threading.Condition()

    def wait_allowed(
        self, attempt: int, nbytes: int, give_up: Callable[[], bool], timeout_s: float | None
    ) -> bool:
        """Wait until a body of this size may be sent; False where `give_up()` or the time is over."""
        if nbytes <= SMALL_BYTES:
            return True
        with self._credit:
            self._credit.wait_for(lambda: self._ledger.allows(attempt, nbytes) or give_up(), timeout_s)
            return self._ledger.allows(attempt, nbytes)

    def allowed(self, attempt: int, nbytes: int) -> bool:
        """Whether a body of this size may be sent now."""
        if nbytes <= SMALL_BYTES:
            return True
        with self._credit:
            return self._ledger.allows(attempt, nbytes)

    def pack(
        self, parcel: int, encoded: Encoded, attempt: int, near: Sequence[int], far: Sequence[int]
    ) -> tuple[Packed, Packed]:
        """The parcel for receivers that share this machine's memory, and for those that do not.

        Where no block can be made, both are the same frame.
        """
        specs, nbytes = encoded.specs, encoded.nbytes
        if nbytes <= SMALL_BYTES:
            packed = Packed(parcel, specs, nbytes, body=encoded.joined() if nbytes else None)
            return packed, packed
        with self._credit:
            ticket = self._ledger.issue(attempt, nbytes, [*near, *far])
            try:
                block = self._pool.take(nbytes) if near else None
            except OSError:
                block = None
            if block is not None:
                self._pool.lend(ticket, block)
        framed = Packed(parcel, specs, nbytes, ticket)
        try:
            framed.body = body = np.empty(nbytes, np.uint8) if block is None else block.body()[:nbytes]
            encoded.fill(body)
            if block is None:
                return framed, framed
            if far:
                framed.body = body.copy()
        except BaseException:
            for receiver in (*near, *far):
                self.take_back(receiver, framed)
            raise
        return Packed(parcel, specs, nbytes, ticket, block.handle), framed

    def take_back(self, receiver: int, packed: Packed) -> None:
        """A parcel that was packed for this receiver is not sent."""
        if packed.ticket:
            self.settle(receiver, Settled(released=(packed.ticket,)))

    def settle(self, receiver: int, settled: Settled) -> None:
        """A receiver has let go of bodies, or has taken them over."""
        with self._credit:
            for tickets, kept in ((settled.released, False), (settled.kept, True)):
                for ticket in tickets:
                    end = self._ledger.settle(ticket, receiver, kept=kept)
                    if end is not None:
                        self._pool.settled(ticket, kept=end)
            self._credit.notify_all()

    def notify(self) -> None:
        """Have waiters look again whether they should give up."""
        with self._credit:
            self._credit.notify_all()

    def statistics(self) -> dict[str, int]:
        """Bytes that are out, were out at most, and of all blocks; how many blocks were made."""
        with self._credit:
            return {
                "bytes_out": self._ledger.bytes_out,
                "peak_bytes_out": self._ledger.peak_bytes,
                "block_bytes": self._pool.nbytes,
                "blocks_made": self._pool.made,
            }

    def close(self) -> None:
        """Give up all blocks; what receivers have mapped stays theirs."""
        with self._credit:
            self._pool.close()


class Incoming:
    """What one process has received and still reads. `open` and the ends of arrays may come from any thread."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._mappings = Mappings((limits or Limits()).idle_bytes)
        self._out: dict[tuple[int, int], tuple[int, int, Block | None]] = {}
        """(sender, ticket) -> attempt, the sender's process, the block. Whoever comes first pops an entry: the arrays'
        end, or the attempt's."""
        self.reading = self._out
        """Not empty while bodies are being read."""
        self.released: deque[tuple[int, int]] = deque()
        """Not empty where `take_released` has something to take."""

    def open(self, sender: int, process: int, attempt: int, packed: Packed) -> list[Any]:
        """The values of a parcel; arrays are read-only, and the body is settled when the last of them is gone.

        Raises: TransportError for a malformed one, which is settled at once.
        """
        if not packed.ticket:
            return decode(packed.specs, packed.body)
        key = sender, packed.ticket
        try:
            body, base = self._body(process, packed)
        except BaseException:
            self.refuse(sender, packed)
            raise
        self._out[key] = attempt, process, packed.block
        weakref.finalize(base, self._ended, key).atexit = False
        return decode(packed.specs, body)

    def refuse(self, sender: int, packed: Packed) -> None:
        """Settle a parcel that will not be opened."""
        if packed.ticket:
            self.released.append((sender, packed.ticket))

    def end(self, attempt: int) -> dict[int, list[int]]:
        """The attempt is over here: sender -> tickets of bodies that are still read, and are taken over."""
        kept: dict[int, list[int]] = {}
        if not self._out:
            return kept
        for key, (of, process, block) in list(self._out.items()):
            if of == attempt and self._out.pop(key, None) is not None:
                kept.setdefault(key[0], []).append(key[1])
                if block is not None:
                    self._mappings.forget(process, block)
        return kept

    def take_released(self) -> dict[int, list[int]]:
        """Sender -> tickets of bodies that nobody reads any more, each once."""
        released: dict[int, list[int]] = {}
        while self.released:
            sender, ticket = self.released.popleft()
            released.setdefault(sender, []).append(ticket)
        return released

    def __len__(self) -> int:
        """Bodies that are being read."""
        return len(self._out)

    def _ended(self, key: tuple[int, int]) -> None:
        if self._out.pop(key, None) is not None:
            self.released.append(key)

    def _body(self, process: int, packed: Packed) -> tuple[Bytes, Bytes]:
        """The body, and the array whose end is the end of all arrays over it."""
        if packed.block is not None:
            base = self._mappings.borrow(process, packed.block, packed.nbytes)
        elif not isinstance(packed.body, np.ndarray):
            raise TransportError("a malformed parcel: a ticket for what needs none")
        elif packed.body.ctypes.data % ALIGNMENT:
            base = np.empty(packed.nbytes + ALIGNMENT, np.uint8)
            start = -base.ctypes.data % ALIGNMENT
            view = base[start : start + packed.nbytes]
            view[:] = packed.body
            view.flags.writeable = False
            return view, base
        else:
            base, packed.body = packed.body, None  # whoever still has the message holds no body
        view = base[:]
        view.flags.writeable = False
        return view, base
