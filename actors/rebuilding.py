"""State that is made again, by restoring it and replaying steps: how that went is asked before anything rests on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions as rex

from actors.journal import Journal
from actors.members import Member

SETTLE_S = 3.0
"""How long a death may take to be known that so far only shows in a lost object, and a call to end that must have."""


@dataclass(frozen=True, slots=True)
class NotRestored:
    """A child could not be brought to the state that it had."""

    member: Member
    error: rex.RayError


@dataclass(frozen=True, slots=True)
class NotReplayed:
    """A step that had ended well did not do so again."""

    step: int
    error: rex.RayError


class Rebuilding:
    """Calls that make the children's states again. Not thread-safe."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._calls: list[tuple[Member, Any]] = []
        self.asked = True
        """Whether `outcome` knows already: it has nothing to wait for."""

    def begin(self) -> None:
        """All states are made again from here on; what was begun before is of no interest any more."""
        self._calls.clear()

    def called(self, member: Member, ref: Any) -> None:
        """A child was told to restore or to change what it keeps."""
        self._calls.append((member, ref))

    def replayed(self) -> None:
        """The journal's steps were given to the children."""
        self.asked = False

    def outcome(self) -> bool | NotRestored | NotReplayed:
        """True: the states are what the finished steps have led to. False: that is not known yet, ask again."""
        if self.asked:
            return True
        for member, ref in self._calls:
            failed = _outcome(ref)
            if failed is not None:
                return NotRestored(member, failed) if isinstance(failed, rex.RayError) else False
        self._calls.clear()
        for record in self._journal.kept_records():
            for call in record.calls:
                failed = None if call.done is None else _outcome(call.done)
                if failed is not None:
                    return NotReplayed(record.step, failed) if isinstance(failed, rex.RayError) else False
        self.asked = True
        return True


def _outcome(ref: Any) -> rex.RayError | bool | None:
    """None: the call ended well. False: it has not ended in some seconds."""
    try:
        ray.get(ref, timeout=SETTLE_S)
    except rex.GetTimeoutError:
        return False
    except rex.RayError as error:
        return error
    return None
