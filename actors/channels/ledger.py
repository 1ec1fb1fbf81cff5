"""Credits of one sender: how many bytes its receivers may hold, and who holds which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Ticket:
    attempt: int
    nbytes: int
    holders: set[int]
    kept: bool = False


class Ledger:
    """Large bodies that were sent and that receivers have not let go of. Pure; not thread-safe.

    A body of attempt n may be sent while all that is out stays within the limit, or nothing older is out: the oldest
    attempt can always go on, so that waiting for credit never blocks itself. What is out is therefore bounded by the
    limit or by what one attempt sends, whichever is more.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._tickets: dict[int, _Ticket] = {}
        self._last = 0
        self.bytes_out = 0
        self.peak_bytes = 0

    def allows(self, attempt: int, nbytes: int) -> bool:
        """Whether a body of this attempt may be sent now."""
        return self.bytes_out + nbytes <= self._limit or all(
            t.attempt >= attempt for t in self._tickets.values()
        )

    def issue(self, attempt: int, nbytes: int, receivers: Sequence[int]) -> int:
        """A ticket for a body that goes to these receivers, each of whom settles it once."""
        self._last += 1
        self._tickets[self._last] = _Ticket(attempt, nbytes, set(receivers))
        self.bytes_out += nbytes
        self.peak_bytes = max(self.peak_bytes, self.bytes_out)
        return self._last

    def settle(self, ticket: int, receiver: int, *, kept: bool) -> bool | None:
        """A receiver settles a ticket. Once the last one has: whether any of them keeps the body; until then, None.

        What was not issued to this receiver, or settled by it before, changes nothing.
        """
        entry = self._tickets.get(ticket)
        if entry is None or receiver not in entry.holders:
            return None
        entry.holders.discard(receiver)
        entry.kept |= kept
        if entry.holders:
            return None
        del self._tickets[ticket]
        self.bytes_out -= entry.nbytes
        return entry.kept

    def __len__(self) -> int:
        return len(self._tickets)
