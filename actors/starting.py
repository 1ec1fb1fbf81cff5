"""Children that are being started anew, and standbys; what has come of them is told as events."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions as rex

from actors.events import ChildPrepared, Event, RestartFailed, StandbyLost, StandbyReady
from actors.failures import how_it_went, is_death, root_cause
from actors.heartbeats import period_s
from actors.members import Held, Home, Member
from actors.resources import lacking
from hetero.options import RuntimeOptions

log = logging.getLogger("hetero.recovery")

_POLL_S = 0.1
_LOOK_S = 1.0
"""Between two looks at what the cluster has."""


@dataclass(slots=True)
class _Coming:
    """An incarnation that is being started: not before `at_s`, and it must be ready by `until_s`."""

    generation: int
    at_s: float
    until_s: float
    standby: Member | None = None
    ready: Any = None


class Starting:
    """Starts and prepares the actors of one executor. Not thread-safe."""

    def __init__(self, held: Held, options: RuntimeOptions) -> None:
        self._held, self._options = held, options
        self._patience_s = options.start_timeout_s or 1e9
        self._beat_s = period_s(options.heartbeat_timeout_s)
        self.coming: dict[str, _Coming] = {}
        """The children that are being started."""
        self._warming: dict[Any, tuple[str, Member]] = {}
        self._free: dict[str, list[Home]] = {}
        self._looked_s = 0.0

    def begin(self, spare: Mapping[str, list[Home]]) -> None:
        """The first children are prepared. `spare`: bundles for standbys, by the kind of child they can become."""
        for member in self._held.members.values():
            member.watch(member.facts, self._beat_s)
        self._free = {kind: list(homes) for kind, homes in spare.items()}
        for kind, homes in spare.items():
            for _ in homes:
                self.start_standby(kind)

    # -- children ------------------------------------------------------------------------------------------------
    def ask(self, device: str, generation: int, at_s: float) -> None:
        """Start a child in its bundle, not before `at_s`."""
        self.coming[device] = _Coming(generation, at_s, at_s + self._patience_s)

    def promote(self, device: str, generation: int, kind: str) -> None:
        """Make a standby that is ready the child."""
        ready = self._held.standbys[kind]
        standby = next(m for m in ready if m.end is not None)
        ready.remove(standby)
        now = time.monotonic()
        self.coming[device] = _Coming(generation, now, now + self._patience_s, standby)

    def prepare_anew(self, device: str, generation: int) -> None:
        """Make the child that is there the next incarnation."""
        member, now = self._held.member(device), time.monotonic()
        self.coming[device] = _Coming(generation, now, now + self._patience_s, member)

    def forget(self, device: str | None = None) -> None:
        """Do not wait for a child any more; None: for any."""
        for name in list(self.coming) if device is None else [device]:
            self.coming.pop(name, None)

    def wait_next(self) -> Event | None:
        """Begin what is due, and wait a moment for one of those that are coming: it is there, or has failed."""
        now = time.monotonic()
        for device, coming in self.coming.items():
            if coming.ready is None and coming.at_s <= now:
                self._start(device, coming)
        pending = {c.ready: device for device, c in self.coming.items() if c.ready is not None}
        if pending:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=_POLL_S)
            if ready:
                return self._arrived(pending[ready[0]])
        else:
            time.sleep(max(0.0, min(_POLL_S, min(c.at_s for c in self.coming.values()) - now)))
        return self._too_late()

    def _start(self, device: str, coming: _Coming) -> None:
        held, child = self._held, self._held.numbers[device]
        home = held.homes[child]
        member = coming.standby or held.start(held.wishes[child], home)
        if coming.standby is not None and coming.standby.home != home:
            self._free.setdefault(held.wishes[child].kind, []).append(home)
            held.homes[child] = coming.standby.home
        self._looked_s = time.monotonic()  # most are there before it is time for a look
        member.device, member.generation = device, coming.generation
        held.members[child] = member
        coming.ready = held.prepare(child, self._options)

    def _arrived(self, device: str) -> Event | None:
        held, child = self._held, self._held.numbers[device]
        coming, member = self.coming[device], held.members[child]
        try:
            facts = ray.get(coming.ready)
        except rex.RayError as error:
            again = held.prepared_again(child, coming.ready, self._options)
            if again is not coming.ready:
                coming.ready = again
                return None
            root = root_cause(error)
            return self._failed(device, how_it_went(root) if is_death(error) else str(root))
        del self.coming[device]
        member.watch(facts, self._beat_s)
        log.info("child %s (generation %d) is prepared", device, coming.generation)
        return ChildPrepared(device, coming.generation)

    def _failed(self, device: str, cause: str) -> Event:
        return RestartFailed(device, self.coming.pop(device).generation, time.monotonic(), cause)

    def _too_late(self) -> Event | None:
        """One whose time is up, or for which the cluster has no room any more, so that waiting would be in vain."""
        now = time.monotonic()
        for device, coming in self.coming.items():
            if now > coming.until_s:
                return self._failed(device, "it was not ready in time")
        if now - self._looked_s >= _LOOK_S:
            self._looked_s = now
            for device, coming in self.coming.items():
                missing = lacking([self._held.wishes[self._held.numbers[device]]])
                if missing and coming.ready is not None:
                    return self._failed(device, f"the cluster has too little {missing} left")
        return None

    # -- standbys ------------------------------------------------------------------------------------------------
    def start_standby(self, kind: str) -> None:
        """Start a spare actor in a bundle that is free; it counts once it is ready."""
        held = self._held
        wish = next(w for w in held.wishes.values() if w.kind == kind)
        member = held.start(wish, self._free[kind].pop())
        member.device = "standby"
        held.standbys.setdefault(kind, []).append(member)
        self._warming[member.actor.warm_up.remote(self._options)] = kind, member

    def muster(self) -> list[Event]:
        """Which standbys have become ready since the last time, and which are gone: those are started anew."""
        events: list[Event] = []
        warming = list(self._warming)
        for ref in ray.wait(warming, num_returns=len(warming), timeout=0)[0] if warming else []:
            kind, member = self._warming.pop(ref)
            try:
                member.watch(ray.get(ref))
                events.append(StandbyReady(kind))
            except rex.RayError:
                self._replace(kind, member)
        for kind, members in self._held.standbys.items():
            for member in [m for m in members if m.ended()]:
                events.append(StandbyLost(kind))
                self._replace(kind, member)
        return events

    def _replace(self, kind: str, member: Member) -> None:
        member.kill()
        self._held.standbys[kind].remove(member)
        self._free[kind].append(member.home)
        self.start_standby(kind)
