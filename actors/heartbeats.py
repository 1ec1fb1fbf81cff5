"""Signs of life: each child gives one every few seconds, and one that gives none for too long is taken for dead.

A beat is an item of a call that runs as long as the child does. A ping would not do: Ray holds it back while an earlier
call of ours waits for its parcels, so that a child that waits could not be told from one that hangs.

A process of this machine that is stopped (SIGSTOP) is seen to be so, in /proc, and need not be waited for so long. One
that runs, sleeps or waits is never taken for stopped, whatever it computes and however long it keeps the interpreter.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions as rex

from actors.child import node_id
from hetero.errors import HeteroError

if TYPE_CHECKING:
    from actors.members import Member
    from actors.mending import Mending

log = logging.getLogger("hetero.recovery")

LONGEST_S = 5.0
"""Between two beats."""
LOOK_S = 1.0
"""Between two looks at processes of this machine."""
STOPPED_S = 4.0
"""How long one of them may be stopped."""


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


class Stopped:
    """How many looks in a row have found a process stopped. Pure."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._looks: dict[Any, int] = {}

    def seen(self, stopped: dict[Any, bool]) -> list[Any]:
        """Each of those that were looked at, and whether it was stopped; returns those that have been for too long."""
        self._looks = {who: self._looks.get(who, 0) + 1 for who, now in stopped.items() if now}
        return [who for who, looks in self._looks.items() if looks > self._most]


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine is stopped by a signal; one that a debugger holds is not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # it has ended, or there is no /proc
        return False
    return text[text.rindex(b")") + 2 :][:1] == b"T"


def listen(mending: Mending, timeout_s: float, over: threading.Event) -> None:
    """Until `over` is set, or nobody else holds `mending`: notice children that die idle or fall silent."""
    threading.Thread(
        target=_listen, args=(weakref.ref(mending), timeout_s, over), name="hetero-heartbeats", daemon=True
    ).start()


def _listen(known: weakref.ref[Mending], timeout_s: float, over: threading.Event) -> None:
    period, here = period_s(timeout_s), node_id()
    look_s = min(LOOK_S, period)
    silence, last = Silence(period), time.monotonic()
    stopped = Stopped(int(min(STOPPED_S, timeout_s) / look_s))
    while not over.wait(look_s):
        mending = known()
        if mending is None or mending.closed:
            return
        # Without the lock: whoever holds it may be waiting for the very child.
        theirs = {m: is_stopped(m.facts["pid"]) for m in mending.members() if _is_here(m, here)}
        for member in stopped.seen(theirs):
            log.warning(
                "child %s is stopped (SIGSTOP): its process %d is ended", member.device, member.facts["pid"]
            )
            member.end_process()
        mending.looks += 1
        now = time.monotonic()
        if now - last >= period:
            since, last = now - last, now
            if not _heard(mending, silence, since, timeout_s):
                return
        del mending


def _is_here(member: Member, here: str) -> bool:
    return member.facts.get("node_id") == here and not member.ended()


def _heard(mending: Mending, silence: Silence, since_s: float, timeout_s: float) -> bool:
    """Notice who died idle or is silent; False where nobody is to be listened to any more."""
    try:
        with mending.lock:
            mending.notice()
            beating = {m: _beats(m) for m in mending.members() if m.beats is not None}
            for member, silent_s in silence.heard(beating, since_s).items():
                if silent_s >= timeout_s:
                    mending.heart_stopped(member)
    except (HeteroError, rex.RayError):
        if mending.closed or not ray.is_initialized():
            return False
        log.exception("children could not be looked after; it is tried again")
    return True


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
