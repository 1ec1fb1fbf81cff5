"""Which children of one executor live, and what is said of those that do not."""

from __future__ import annotations

from typing import Any

import ray
import ray.exceptions as rex

from actors.child import node_id
from actors.failures import dead_actor, is_death, translated
from actors.members import GONE_S, Held, Member
from actors.mending import Mending
from hetero.errors import ChildDiedError, ClosedError, HeteroError, TransportError
from hetero.options import RuntimeOptions

_STATS_S = 1.0


class Health:
    """Looks at what `held` and `mending` know. Without recovery it remembers who has died, and all later calls raise
    that. `closed`: no more calls are made. Thread-safe."""

    def __init__(self, held: Held, mending: Mending, options: RuntimeOptions) -> None:
        self.closed = False
        self._held, self._mending, self._options = held, mending, options
        self._dead: dict[str, ChildDiedError] = {}

    def check(self, *, open_only: bool = False) -> None:
        """Raises: ClosedError; ChildDiedError where a child has died, unless it is brought back, or is `open_only`."""
        lease = self._held.lease
        if self.closed or lease is None:
            raise ClosedError("these children were closed, or never started", phase="transport")
        lease.check()
        if open_only or self._options.recover:
            return
        for member in self._held.members.values():
            if member.ended() and member.device not in self._dead:
                error = member.end.exception() if member.end is not None else None
                if error is not None:
                    self.failure(error)
        for died in self._dead.values():
            raise ChildDiedError(died.message, device=died.device) from died.__cause__

    def failure(self, error: BaseException) -> Exception:
        """The error to raise; remembers a death, and makes sure of it."""
        failure = translated(error, self._held.devices())
        if is_death(error) and not self._options.recover:
            actor_id = dead_actor(error)
            dead = [m for m in self._held.members.values() if m.actor_id == actor_id]
            dead = dead or [m for m in self._held.members.values() if m.ended()]
            for member in dead:
                if isinstance(failure, ChildDiedError):
                    failure.at(device=member.device)
                    self._dead.setdefault(member.device, failure)
                # "unavailable" may mean that it still runs: nobody must hear of it again
                if not member.ended():
                    ray.kill(member.actor, no_restart=True)
        return failure

    def confirmed(self, error: HeteroError) -> Exception:
        """The error; of a child that was lost with its channel, what Ray knows, once it is known to have ended."""
        if not isinstance(error, ChildDiedError):
            return error
        for member in self._held.members.values():
            if member.device == error.device and member.end is not None:
                try:
                    told = member.end.exception(timeout=GONE_S)
                except TimeoutError:
                    told = None
                if told is not None:
                    return self.failure(told)
                self._dead.setdefault(member.device, error)
                member.kill()
        return error

    def alive(self) -> dict[str, bool]:
        """Which children live, by provider name; does not wait, and does not disturb them."""
        members = self._held.members.values()
        gone = {*self._dead, *self._mending.lost}
        return {m.device: not m.ended() and m.device not in gone for m in members}

    def pid(self, device: str) -> int:
        """The process of a child. Raises: TransportError where it is on another machine, or there is none."""
        for member in self._held.members.values():
            if member.device == device and member.facts.get("node_id") == node_id():
                return int(member.facts["pid"])
        raise TransportError(f"there is no child {device} on this machine", device=device)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Each child's counters, by provider name, with pid, node_id, threads (as set) and library_threads (as found).

        Of a dead child, why it is dead. `answered` is False, and the counters are those of the last answer, where a
        child does not answer in time: Ray holds any call back while an earlier one of ours waits for its parcels.
        """
        self.check(open_only=True)
        members = list(self._held.members.values())
        asked = [m.actor.stats.remote() for m in members]
        ready = set(ray.wait(asked, num_returns=len(asked), timeout=_STATS_S)[0]) if asked else set()
        for member, ref in zip(members, asked, strict=True):
            if ref in ready:
                try:
                    member.counters = ray.get(ref)
                except rex.RayError as error:
                    self.failure(error)
        return {m.device: self._facts(m, answered=r in ready) for m, r in zip(members, asked, strict=True)}

    def _facts(self, member: Member, *, answered: bool) -> dict[str, Any]:
        died = self._dead.get(member.device)
        lost = died or self._mending.lost.get(member.device)
        why = None if lost is None else lost.message
        alive = why is None and not member.ended()
        out = {"alive": alive, "answered": answered and alive, **member.facts, **member.counters}
        return out if why is None else {**out, "error": why}
