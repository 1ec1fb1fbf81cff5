"""The actors of one executor: where they are reserved, how one is started and prepared, how all are stopped."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ray
import ray.exceptions as rex
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors import chaos
from actors.child import CONCURRENCY_GROUPS, ChildActor, node_id
from actors.cluster import RayLease
from actors.resources import Wish
from actors.roads import Roads
from actors.weights import SharedWeights
from hetero.options import RuntimeOptions

GONE_S = 2.0
"""How long a death may take to be known."""

_remote: Any = ray.remote  # whose types leave these options out
_Actor = _remote(concurrency_groups=CONCURRENCY_GROUPS, max_restarts=0, max_task_retries=0)(ChildActor)


Home: TypeAlias = tuple[PlacementGroup, int]
"""A bundle: a placement group, and its number there."""


@dataclass(slots=True, eq=False)
class Member:
    """One incarnation of a child: its actor, and the call that ends when the actor does."""

    device: str
    actor: Any
    home: Home
    generation: int = 1
    end: Future[None] | None = None
    over: bool = False
    """Whether `end` is done, which takes a lock to ask."""
    ended_too: list[Member] = field(default_factory=list)
    """Where it puts itself then."""
    beats: Any = None
    heard: int = 0
    """Beats so far."""
    facts: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=dict)
    runs: dict[int, Any] = field(default_factory=dict)

    @property
    def actor_id(self) -> str:
        return str(self.actor._actor_id.hex())

    def run(self, n_sends: int) -> Any:
        """The actor's `run` with as many return values."""
        method = self.runs.get(n_sends)
        if method is None:
            method = self.runs[n_sends] = self.actor.run.options(num_returns=max(1, n_sends))
        return method

    def watch(self, facts: dict[str, Any], beat_s: float = 0.0) -> None:
        """It is there, and says so: from now on its end is noticed, and a beat comes every `beat_s` seconds."""
        self.facts = facts
        if self.end is None:
            self.end = self.actor.wait_closed.remote().future()
            self.end.add_done_callback(self._note_end)
        if self.beats is None and beat_s:
            self.beats = self.actor.beats.remote(beat_s)

    def _note_end(self, _: Future[None]) -> None:
        self.over = True
        self.ended_too.append(self)

    def ended(self) -> bool:
        return self.over

    def kill(self) -> None:
        """End its process. Ray alone takes 5 s for one that is stopped, and has its resources wait so long."""
        ended = self.ended()
        ray.kill(self.actor, no_restart=True)
        if not ended and self.facts.get("node_id") == node_id():
            self.end_process()

    def end_process(self) -> None:
        """SIGKILL: it is a process of this machine. Its end is noticed as any other."""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.facts["pid"], signal.SIGKILL)


class Held:
    """What an executor holds of Ray, apart from the object that callers see, so that both can be let go of.

    `plan` (its bytes) and `weights` are what children are prepared from: Ray does not keep an actor's arguments.
    `numbers`: of children, by device. `homes`: the bundle of each child.
    """

    def __init__(self, roads: Roads) -> None:
        self.roads = roads
        self.lease: RayLease | None = None
        self.groups: list[PlacementGroup] = []
        self.numbers: dict[str, int] = {}
        self.homes: dict[int, Home] = {}
        self.members: dict[int, Member] = {}
        self.standbys: dict[str, list[Member]] = {}
        """Spare actors that are started, by the kind of child that they can become; ready or not."""
        self.ended: list[Member] = []
        """Those that have ended since last somebody looked."""
        self.over = threading.Event()
        self.wishes: dict[int, Wish] = {}
        self.threads: dict[int, int] = {}
        self.plan: Any = None
        self.gates = chaos.directory()
        self.weights: SharedWeights | None = None
        self._lock = threading.Lock()

    def start(self, wish: Wish, home: Home) -> Member:
        """Start an actor in a bundle; it is not prepared."""
        group, bundle = home
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        actor = _Actor.options(scheduling_strategy=strategy, **wish.actor_options()).remote()
        return Member(wish.device, actor, home, ended_too=self.ended)

    def prepare(self, child: int, options: RuntimeOptions) -> Any:
        """Have the actor of a child become it; returns the reference to what it says of itself."""
        assert self.weights is not None, "weights are shared before children are prepared"
        names, refs = self.weights.of(child)
        member = self.members[child]
        return member.actor.prepare.remote(
            member.generation,
            self.plan,
            child,
            options,
            self.threads[child],
            self.gates,
            names,
            *refs,
        )

    def prepared_again(self, child: int, prepared: Any, options: RuntimeOptions) -> Any:
        """`prepared`, what `prepare` returned; or, where that has failed because the child is on a machine without the
        files of its weights, what a second call, with the weights themselves, returns."""
        assert self.weights is not None, "weights are shared before children are prepared"
        if ray.wait([prepared], timeout=0)[0]:
            try:
                ray.get(prepared)
            except rex.RayError as error:
                if self.weights.cannot_map(child, error):
                    return self.prepare(child, options)
        return prepared

    def member(self, device: str) -> Member | None:
        """The present incarnation of the child on this device, or the last; None before the first."""
        return self.members.get(self.numbers[device])

    def devices(self) -> Mapping[str, str]:
        """Actor id -> device."""
        return {m.actor_id: m.device for m in self.members.values()}

    def close(self, drain_s: float) -> None:
        """Drain, kill, remove the group, let go of Ray; bounded in time whatever state the actors are in."""
        with self._lock:
            lease, self.lease = self.lease, None
        self.over.set()
        self.roads.close()
        if lease is None:
            return
        try:
            if lease.usable():
                self._stop_actors(drain_s, wait=not lease.ours)
        finally:
            self.members.clear()
            self.standbys.clear()
            self.plan = None
            self.weights = None
            lease.release()

    def _stop_actors(self, drain_s: float, *, wait: bool) -> None:
        members = [*self.members.values(), *(m for ready in self.standbys.values() for m in ready)]
        closing = [m.actor.close.remote() for m in members if not m.ended()]
        if closing and drain_s > 0:
            ray.wait(closing, num_returns=len(closing), timeout=drain_s, fetch_local=False)
        for member in members:
            ray.kill(member.actor, no_restart=True)
        while self.groups:
            remove_placement_group(self.groups.pop())
        if (
            wait and members
        ):  # a Ray that stays: a call on a killed actor fails once the actor is known to be dead
            gone = [m.actor.ping.remote() for m in members]
            ray.wait(gone, num_returns=len(gone), timeout=GONE_S, fetch_local=False)
