"""Children as Ray actors: started all or none, called with references, watched, and stopped in a fixed order."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import ray.exceptions as rex
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.child import CONCURRENCY_GROUPS, ChildActor
from actors.cluster import RayLease, ensure_ray
from actors.failures import dead_actor, is_death, translated
from actors.parcels import pack, unpack
from actors.resources import RayOptions, Wish, reserve, wish
from actors.weights import SharedWeights, share_weights
from hetero.errors import ChildDiedError, ClosedError, TransportError
from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan
from hetero.providers.base import ProviderConfig
from hetero.runtime.child import Value, value_bytes
from hetero.runtime.children import Children, ParcelRef
from hetero.runtime.device_buffers import BufferChange
from hetero.runtime.pins import Binding
from hetero.runtime.state import StateChange, StateSpec
from hetero.trace import Span
from hetero.types import HostArray

INLINE_BYTES = 64 << 10
"""A parcel of the caller's up to this size travels inside the call; an object of its own would cost 1 ms more."""
DRAIN_S = 5.0
"""How long `close` lets a child finish what it is doing."""
_GONE_S = 2.0
_STATS_S = 1.0
_OPEN_STEPS = 1024
"""Steps whose acknowledgements are kept; a step of which nothing is ever fetched leaves its own behind."""

_remote: Any = ray.remote  # whose types leave these options out
_Actor = _remote(concurrency_groups=CONCURRENCY_GROUPS, max_restarts=0, max_task_retries=0)(ChildActor)


class _Reported(logging.Filter):
    """Keeps from the log what Ray says of errors that nobody fetched, where they are of our own calls.

    The failure of one partition fails all that depend on it; the caller gets the first, and the others say no more.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return not (message.startswith("Unhandled error") and f"{ChildActor.__name__}." in message)


logging.getLogger("ray._private.worker").addFilter(_Reported())


@dataclass(slots=True, eq=False)
class RayParcel:
    """A parcel of one step: a reference to its wire form, or a small one itself."""

    step: int
    content: Any


@dataclass(slots=True, eq=False)
class _Member:
    """One child: its actor, and the call that ends when the actor does."""

    device: str
    actor: Any
    end: Future[None] | None = None
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

    def ended(self) -> bool:
        return self.end is not None and self.end.done()


class _Held:
    """What an executor holds of Ray, apart from the object that callers see, so that both can be let go of."""

    def __init__(self) -> None:
        self.lease: RayLease | None = None
        self.group: PlacementGroup | None = None
        self.members: dict[int, _Member] = {}
        self.weights: SharedWeights | None = None
        self._lock = threading.Lock()

    def close(self, drain_s: float) -> None:
        """Drain, kill, remove the group, let go of Ray; bounded in time whatever state the actors are in."""
        with self._lock:
            lease, self.lease = self.lease, None
        if lease is None:
            return
        try:
            if lease.usable():
                self._stop_actors(drain_s, wait=not lease.ours)
        finally:
            self.members.clear()
            self.weights = None
            lease.release()

    def _stop_actors(self, drain_s: float, *, wait: bool) -> None:
        members = list(self.members.values())
        closing = [m.actor.close.remote() for m in members if not m.ended()]
        if closing and drain_s > 0:
            ray.wait(closing, num_returns=len(closing), timeout=drain_s, fetch_local=False)
        for member in members:
            ray.kill(member.actor, no_restart=True)
        if self.group is not None:
            remove_placement_group(self.group)
            self.group = None
        if (
            wait and members
        ):  # a Ray that stays: a call on a killed actor fails once the actor is known to be dead
            gone = [m.actor.ping.remote() for m in members]
            ray.wait(gone, num_returns=len(gone), timeout=_GONE_S, fetch_local=False)


def _close_in_background(held: _Held) -> None:
    """For executors that were never closed: called while garbage is collected, where waiting is not allowed."""
    threading.Thread(target=held.close, args=(0.0,), name="hetero-close", daemon=True).start()


class RayChildren(Children):
    """One actor per provider instance that has partitions. Thread-safe.

    A child that dies takes the executor's further steps with it: every later call raises ChildDiedError.
    """

    def __init__(
        self, configs: Sequence[ProviderConfig], options: RuntimeOptions, ray_options: RayOptions
    ) -> None:
        self._configs = tuple(configs)
        self._options = options
        self._ray_options = ray_options
        self._held = _Held()
        self._devices: dict[str, str] = {}
        self._dead: dict[str, ChildDiedError] = {}
        self._acknowledged: OrderedDict[int, list[Any]] = OrderedDict()
        self._acknowledging = threading.Lock()
        self._closed = False
        finalizer = weakref.finalize(self, _close_in_background, self._held)
        finalizer.atexit = False  # leaving Ray, which happens at exit, ends actors and placement groups too

    # -- starting ------------------------------------------------------------------------------------------------
    def start(self, plan: Plan, weights: Mapping[str, HostArray]) -> None:
        """As Children says.

        Raises: TransportError where Ray cannot be started, has no room for all children, or takes longer than
        options.start_timeout_s; what a child's `prepare` raises. Nothing is left running then.
        """
        options = self._ray_options
        held = self._held
        held.lease = ensure_ray(
            address=options.address, store_bytes=options.store_bytes, log_to_driver=options.log_to_driver
        )
        try:
            self._bring_up(plan, weights, held.lease.ours)
        except rex.RayError as error:
            failure = translated(error, self._devices)
            held.close(0.0)
            raise failure  # noqa: B904 - `translated` has set the cause
        except BaseException:
            held.close(0.0)
            raise

    def _bring_up(self, plan: Plan, weights: Mapping[str, HostArray], ours: bool) -> None:
        held = self._held
        indices = plan.children
        if not indices:
            return
        deadline = time.monotonic() + (self._options.start_timeout_s or 1e9)
        wishes = {k: wish(self._configs[k], self._ray_options, ours=ours) for k in indices}
        held.group = reserve(list(wishes.values()), self._ray_options, deadline - time.monotonic(), ours=ours)
        for bundle, k in enumerate(indices):
            strategy = PlacementGroupSchedulingStrategy(held.group, placement_group_bundle_index=bundle)
            actor = _Actor.options(scheduling_strategy=strategy, **wishes[k].actor_options()).remote()
            held.members[k] = member = _Member(self._configs[k].name, actor)
            self._devices[member.actor_id] = member.device
        plan_bytes = ray.put(np.frombuffer(plan.to_bytes(), np.uint8))
        held.weights = shared = share_weights({k: plan.weights[k] for k in indices}, weights, ray.put)
        preparing = {}
        for k in indices:
            names, refs = shared.of(k)
            threads = self._threads(k, wishes, ours)
            preparing[k] = held.members[k].actor.prepare.remote(
                plan_bytes, k, self._options, threads, names, *refs
            )
        for k, facts in self._await_ready(preparing, deadline).items():
            member = held.members[k]
            member.facts = facts
            member.end = member.actor.wait_closed.remote().future()

    def _threads(self, child: int, wishes: Mapping[int, Wish], ours: bool) -> int:
        config = self._configs[child]
        wanted = dict(config.options).get("threads") or self._ray_options.threads_per_child
        if wanted is not None:
            return int(wanted)
        if not ours or self._ray_options.cpus_per_child is not None:
            return max(1, int(wishes[child].bundle.get("CPU", 1)))
        if config.name.split(":")[0] != "cpu":
            return 1
        computing = sum(self._configs[k].name.split(":")[0] == "cpu" for k in wishes)
        return max(1, len(os.sched_getaffinity(0)) // computing)

    def _await_ready(self, preparing: Mapping[int, Any], deadline: float) -> dict[int, dict[str, Any]]:
        try:
            facts = ray.get(list(preparing.values()), timeout=max(0.0, deadline - time.monotonic()))
            return dict(zip(preparing, facts, strict=True))
        except rex.GetTimeoutError as cause:
            _, late = ray.wait(list(preparing.values()), num_returns=len(preparing), timeout=0)
            names = [self._configs[k].name for k, ref in preparing.items() if ref in late]
            raise TransportError(
                f"children {names} were not ready within {self._options.start_timeout_s:g} s", phase="prepare"
            ) from cause

    # -- running -------------------------------------------------------------------------------------------------
    def put(self, values: Sequence[Value]) -> ParcelRef:
        self._check()
        wire = pack(values)
        return RayParcel(0, wire if sum(map(value_bytes, values)) <= INLINE_BYTES else ray.put(wire))

    def call(
        self,
        child: int,
        partition: int,
        step: int,
        parcels: Sequence[ParcelRef],
        n_sends: int,
        graph_slot: str,
        binding: Binding | None = None,
    ) -> Sequence[ParcelRef]:
        self._check()
        member = self._held.members.get(child)
        if member is None:
            raise TransportError(f"the plan has no child {child}", step=step)
        on_device = None if binding is None else binding.on_device
        refs = member.run(n_sends).remote(
            partition, step, graph_slot, on_device, *[p.content for p in parcels]
        )
        if n_sends == 0:
            self._keep_acknowledgement(step, refs)
            return []
        return [RayParcel(step, ref) for ref in (refs if n_sends > 1 else [refs])]

    def _keep_acknowledgement(self, step: int, ref: Any) -> None:
        """Nothing comes back from this call, but a step is only good when it has ended well."""
        with self._acknowledging:
            self._acknowledged.setdefault(step, []).append(ref)
            if len(self._acknowledged) > _OPEN_STEPS:
                self._acknowledged.popitem(last=False)

    def get(self, parcels: Sequence[ParcelRef], timeout_s: float | None) -> list[list[Value]]:
        """As Children says; arrays are the caller's own, so that keeping them holds nothing in the object store."""
        self._check(open_only=True)
        with self._acknowledging:
            steps = dict.fromkeys(p.step for p in parcels)
            silent = [ref for step in steps for ref in self._acknowledged.pop(step, ())]
        refs = {k: p.content for k, p in enumerate(parcels) if isinstance(p.content, ray.ObjectRef)}
        try:
            wires = ray.get([*refs.values(), *silent], timeout=timeout_s)
        except rex.RayError as error:
            raise self._failure(error)  # noqa: B904 - `translated` has set the cause
        wires.reverse()  # popped one by one below, so that each leaves the store as soon as it is copied
        return [unpack(wires.pop() if k in refs else p.content, own=True) for k, p in enumerate(parcels)]

    def drop(self, step: int) -> None:
        with self._acknowledging:
            self._acknowledged.pop(step, None)
        lease = self._held.lease
        if lease is None or not lease.usable():
            return
        for member in tuple(self._held.members.values()):  # a close may empty it meanwhile
            if not member.ended():
                member.actor.drop.remote(step)

    def bind_state(self, child: int, specs: Sequence[StateSpec], withheld: Sequence[tuple[int, str]]) -> None:
        self._ask(child, "bind_state", specs, withheld)

    def change_state(self, child: int, change: StateChange) -> dict[str, HostArray]:
        changed: dict[str, HostArray] = self._ask(child, "change_state", change)
        return {name: array.copy() for name, array in changed.items()}  # not the object store's

    def change_buffer(self, child: int, change: BufferChange) -> HostArray | None:
        found: HostArray | None = self._ask(child, "change_buffer", change)
        return None if found is None else found.copy()  # not the object store's

    def _ask(self, child: int, method: str, *arguments: Any) -> Any:
        """Call a child between steps, and wait. Raises: what the child raised, ChildDiedError."""
        self._check()
        try:
            return ray.get(getattr(self._held.members[child].actor, method).remote(*arguments))
        except rex.RayError as error:
            raise self._failure(error)  # noqa: B904 - `translated` has set the cause

    # -- health --------------------------------------------------------------------------------------------------
    def alive(self) -> dict[str, bool]:
        """Which children live, by provider name; does not wait, and does not disturb them."""
        members = self._held.members.values()
        return {m.device: not m.ended() and m.device not in self._dead for m in members}

    def _check(self, *, open_only: bool = False) -> None:
        lease = self._held.lease
        if self._closed or lease is None:
            raise ClosedError("these children were closed, or never started", phase="transport")
        lease.check()
        if open_only:
            return
        for member in self._held.members.values():
            if member.ended() and member.device not in self._dead:
                error = member.end.exception() if member.end is not None else None
                if error is not None:
                    self._failure(error)
        for died in self._dead.values():
            raise ChildDiedError(died.message, device=died.device) from died.__cause__

    def _failure(self, error: BaseException) -> Exception:
        """The error to raise; remembers a death, and makes sure of it."""
        failure = translated(error, self._devices)
        if is_death(error):
            actor_id = dead_actor(error)
            dead = [m for m in self._held.members.values() if m.actor_id == actor_id]
            dead = dead or [m for m in self._held.members.values() if m.ended()]
            for member in dead:
                if isinstance(failure, ChildDiedError):
                    failure.at(device=member.device)
                    self._dead.setdefault(member.device, failure)
                if (
                    not member.ended()
                ):  # "unavailable" may mean that it still runs: nobody must hear of it again
                    ray.kill(member.actor, no_restart=True)
        return failure

    def stats(self) -> dict[str, dict[str, Any]]:
        """Each child's counters, by provider name, with pid, node_id, threads (as set) and library_threads (as found).

        Of a dead child, why it is dead. `answered` is False, and the counters are those of the last answer, where a
        child does not answer in time: Ray holds any call back while an earlier one of ours waits for its parcels.
        """
        self._check(open_only=True)
        members = list(self._held.members.values())
        asked = [m.actor.stats.remote() for m in members]
        ready = set(ray.wait(asked, num_returns=len(asked), timeout=_STATS_S)[0]) if asked else set()
        for member, ref in zip(members, asked, strict=True):
            if ref in ready:
                try:
                    member.counters = ray.get(ref)
                except rex.RayError as error:
                    self._failure(error)
        return {m.device: self._facts(m, answered=r in ready) for m, r in zip(members, asked, strict=True)}

    def _facts(self, member: _Member, *, answered: bool) -> dict[str, Any]:
        died = self._dead.get(member.device)
        out = {
            "alive": died is None,
            "answered": answered and died is None,
            **member.facts,
            **member.counters,
        }
        return out if died is None else {**out, "error": died.message}

    def take_spans(self) -> list[Span]:
        self._check(open_only=True)
        asked = [m.actor.take_spans.remote() for m in self._held.members.values() if not m.ended()]
        spans: list[Span] = []
        for ref in asked:
            try:
                spans += ray.get(ref)
            except rex.RayError as error:
                if not is_death(error):
                    raise self._failure(error)  # noqa: B904 - `translated` has set the cause
        return spans

    def close(self) -> None:
        self._closed = True
        self._held.close(DRAIN_S)


def start_children(
    configs: Sequence[ProviderConfig], options: RuntimeOptions, **ray_options: Any
) -> RayChildren:
    """Children of an executor on Ray, still to be started; `ray_options` are those of RayOptions.

    Raises: OptionError for an unknown option or a value that cannot be meant.
    """
    return RayChildren(configs, options, RayOptions.of(ray_options))
