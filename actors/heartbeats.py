"""Signs of life: each child gives one every few seconds, and one that gives none for too long is taken for dead.

A beat is an item of a call that runs as long as the child does. A ping would not do: Ray holds it back while an earlier
call of ours waits for its parcels, so that a child that waits could not be told from one that hangs.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions as rex

from hetero.errors import HeteroError

if TYPE_CHECKING:
    from actors.members import Member
    from actors.mending import Mending

log = logging.getLogger("hetero.recovery")

LONGEST_S = 5.0
"""Between two beats."""


def period_s(timeout_s: float) -> float:
    """Between two beats, where a child may be silent for `timeout_s`."""
    return min(LONGEST_S, timeout_s / 4)


class Silence:
    """How long each incarnation has been silent, as far as we have listened. Pure.

    Listening is what counts: where this process was stopped itself, or had no time, nobody else is to blame.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._silent_s: dict[Any, float] = {}

    def heard(self, beats: dict[Any, int], since_s: float) -> dict[Any, float]:
        """`since_s` after the last time, so many beats came of each; returns how long each has been silent."""
        listened = min(since_s, 2 * self._period)
        before, self._silent_s = self._silent_s, {}
        for who, count in beats.items():
            self._silent_s[who] = 0.0 if count or who not in before else before[who] + listened
        return dict(self._silent_s)


def listen(mending: Mending, timeout_s: float, over: threading.Event) -> None:
    """Until `over` is set, or nobody else holds `mending`: notice children that die idle or fall silent."""
    threading.Thread(
        target=_listen, args=(weakref.ref(mending), timeout_s, over), name="hetero-heartbeats", daemon=True
    ).start()


def _listen(known: weakref.ref[Mending], timeout_s: float, over: threading.Event) -> None:
    period = period_s(timeout_s)
    silence, last = Silence(period), time.monotonic()
    while not over.wait(period):
        mending = known()
        if mending is None or mending.closed:
            return
        now = time.monotonic()
        since, last = now - last, now
        try:
            with mending.lock:
                mending.notice()
                beating = {m: _beats(m) for m in mending.members() if m.beats is not None}
                for member, silent_s in silence.heard(beating, since).items():
                    if silent_s >= timeout_s:
                        mending.heart_stopped(member)
        except (HeteroError, rex.RayError):
            if mending.closed or not ray.is_initialized():
                return
            log.exception("children could not be looked after; it is tried again")
        del mending


def _beats(member: Member) -> int:
    """How many have come since the last time."""
    before = member.heard
    try:
        while ray.wait([member.beats], timeout=0, fetch_local=False)[0]:
            next(member.beats)
            member.heard += 1
    except (rex.RayError, StopIteration):
        member.beats = None  # its end is noticed elsewhere
    return member.heard - before
