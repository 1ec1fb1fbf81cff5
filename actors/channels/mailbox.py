"""What has arrived for one child, and which partition runs next: a pure state machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MAX_AHEAD = 1 << 20
"""How many attempts beyond the current one may send parcels: more than a driver ever has under way, in threads."""


class Arrival(StrEnum):
    """What became of a parcel, or of a message that begins an attempt."""

    KEPT = "kept"
    DUPLICATE = "duplicates"
    """Of its attempt there is one like it already."""
    LATE = "late"
    """Its attempt is over here."""
    UNKNOWN = "unknown"
    """No partition here wants it, or its attempt cannot be under way."""


@dataclass(slots=True, eq=False)
class Work:
    """A partition that may run now. `contents`: what it receives, in the order of its task; `last` of its attempt."""

    step: int
    attempt: int
    partition: int
    graph_slot: str
    contents: list[Any]
    last: bool


@dataclass(slots=True)
class _Attempt:
    """`step` is None until the driver's message that begins it is here."""

    step: int | None = None
    graph_slot: str = ""
    parcels: dict[int, Any] = field(default_factory=dict)
    position: int = 0


class Mailbox:
    """Collects parcels per attempt; attempts run one after the other, their partitions in the plan's order.

    Attempts are numbered from 1 without gaps; the current one is the lowest that is not over. So the order in which a
    child computes, which states between steps depend on, is that of the driver, whatever order messages arrive in.

    Invariant: every kept attempt has a number from `current` to `current` + MAX_AHEAD.
    """

    def __init__(self, tasks: Sequence[tuple[int, Sequence[int]]]) -> None:
        """`tasks`: each partition in the plan's order, with the parcels that it receives."""
        self._tasks = [(partition, tuple(parcels)) for partition, parcels in tasks]
        self._wanted = frozenset(p for _, parcels in self._tasks for p in parcels)
        self._only = self._tasks[0] if len(self._tasks) == 1 else None
        self._attempts: dict[int, _Attempt] = {}
        self.current = 1

    def begin(self, attempt: int, step: int, graph_slot: str) -> Arrival:
        """The driver's message that begins an attempt has arrived."""
        if attempt != self.current and (refusal := self._refusal(attempt)) is not None:
            return refusal
        entry = self._attempts.get(attempt)
        if entry is None:
            self._attempts[attempt] = _Attempt(step, graph_slot)
            return Arrival.KEPT
        if entry.step is not None:
            return Arrival.DUPLICATE
        entry.step, entry.graph_slot = step, graph_slot
        return Arrival.KEPT

    def deliver(self, attempt: int, parcel: int, content: Any) -> Arrival:
        """A parcel has arrived; it may come before its attempt begins. Only a kept one's content is looked after."""
        if parcel not in self._wanted:
            return Arrival.UNKNOWN
        if attempt != self.current and (refusal := self._refusal(attempt)) is not None:
            return refusal
        entry = self._attempts.get(attempt)
        if entry is None:
            entry = self._attempts[attempt] = _Attempt()
        if parcel in entry.parcels or (entry.position and parcel in self._used(entry)):
            return Arrival.DUPLICATE
        entry.parcels[parcel] = content
        return Arrival.KEPT

    def straight(self, attempt: int, step: int, graph_slot: str, parcels: tuple[int, ...]) -> Work | None:
        """These parcels have arrived at once. Where they are all that the one partition receives, and nothing else has
        arrived or must run before, it may run now, with them. None: nothing has happened."""
        only = self._only
        if only is None or parcels != only[1] or attempt != self.current or self._attempts:
            return None
        return Work(step, attempt, only[0], graph_slot, [], True)

    def next(self) -> Work | None:
        """The partition to run now, with what it receives, which is the caller's from here on; None: none is ready.

        Call `done` or `end` before the next call.
        """
        entry = self._attempts.get(self.current)
        if entry is None or entry.step is None:
            return None
        partition, parcels = self._tasks[entry.position]
        there = entry.parcels
        for p in parcels:
            if p not in there:
                return None
        contents = [there.pop(p) for p in parcels]
        last = entry.position == len(self._tasks) - 1
        return Work(entry.step, self.current, partition, entry.graph_slot, contents, last)

    def done(self, work: Work) -> None:
        """The partition ended well."""
        if work.last:
            self.end(work.attempt)
        elif not self.is_over(work.attempt):
            self._attempts[work.attempt].position += 1

    def end(self, attempt: int) -> list[Any]:
        """The attempt is over, here or altogether. Returns the contents that nobody has taken.

        One that has not begun is over as well; it is skipped when its turn comes.
        """
        if attempt == self.current and not self._attempts:
            self.current += 1  # as after `straight`
            return []
        if attempt != self.current and self._refusal(attempt) is not None:
            return []
        entry = self._attempts.get(attempt, _OVER)
        dropped = list(entry.parcels.values()) if entry.parcels else []
        self._attempts[attempt] = _OVER
        while self._attempts.get(self.current) is _OVER:
            del self._attempts[self.current]
            self.current += 1
        return dropped

    def is_over(self, attempt: int) -> bool:
        """Whether nothing of this attempt will run any more."""
        return attempt < self.current or self._attempts.get(attempt) is _OVER

    @property
    def empty(self) -> bool:
        """Whether nothing has arrived for any attempt that is not over."""
        return not self._attempts

    def __len__(self) -> int:
        """Parcels that wait; another thread may ask."""
        return sum(len(entry.parcels) for entry in list(self._attempts.values()))

    def _refusal(self, attempt: int) -> Arrival | None:
        if attempt == self.current:  # which is never over
            return None
        if self.is_over(attempt):
            return Arrival.LATE
        return Arrival.UNKNOWN if attempt > self.current + MAX_AHEAD else None

    def _used(self, entry: _Attempt) -> set[int]:
        return {p for _, parcels in self._tasks[: entry.position] for p in parcels}


_OVER = _Attempt()
