"""Children as Ray actors: called with references, and brought back when they die."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np
import ray
import ray.exceptions as rex

from actors import refs
from actors.bringing_up import bring_up
from actors.channels.driver import DriverChannel
from actors.child import ChildActor
from actors.cluster import ensure_ray
from actors.elements import Elements, brought, senders_of
from actors.failures import is_death, translated
from actors.health import Health
from actors.journal import Call, Journal, RayParcel, StateBound, StateChanged
from actors.members import Held
from actors.mending import Mending
from actors.parcels import INLINE_BYTES, NewBank, pack, unpack
from actors.relocation import Relocation
from actors.replaying import issue
from actors.resources import RayOptions
from actors.roads import Roads, Transport
from actors.underway import Underway
from actors.whole_step import WholeStep
from hetero.errors import ClosedError, HeteroError, StepTimeoutError, TransportError
from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan
from hetero.providers.base import ProviderConfig
from hetero.routes import Routes
from hetero.runtime.child import Value, value_bytes
from hetero.runtime.children import Attend, Children, Ended, ParcelRef, Planner, T
from hetero.runtime.device_buffers import BufferChange
from hetero.runtime.pins import Binding
from hetero.runtime.state import StateChange, StateSpec
from hetero.trace import Span
from hetero.types import HostArray

DRAIN_S = 5.0
"""How long `close` lets a child finish what it is doing."""


class _Reported(logging.Filter):
    """Keeps from the log what Ray says of errors that nobody fetched, where they are of our own calls.

    The failure of one partition fails all that depend on it; the caller gets the first, and the others say no more.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return not (message.startswith("Unhandled error") and f"{ChildActor.__name__}." in message)


logging.getLogger("ray._private.worker").addFilter(_Reported())


class _OtherPlanError(TransportError):
    """A child was asked for what it had to do by a plan that is no more."""


def _close_in_background(held: Held) -> None:
    """For executors that were never closed: called while garbage is collected, where waiting is not allowed."""
    threading.Thread(target=held.close, args=(0.0,), name="hetero-close", daemon=True).start()


class _Launching:
    """Around the calls of one step, as `Children.launching` says; a generator would cost every step twice as much."""

    __slots__ = ("_children", "_mending", "_step")

    def __init__(self, children: RayChildren, step: int) -> None:
        self._children, self._mending, self._step = children, children.mending, step

    def __enter__(self) -> None:
        self._mending.lock.acquire()
        try:
            self._children.begin(self._step)
        except BaseException:
            self._mending.lock.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._mending.checkpoints.due is not None:
                self._mending.checkpoints.launched(self._step)
        finally:
            self._mending.lock.release()


class RayChildren(Children):
    """One actor per provider instance that has partitions. Thread-safe.

    A child that dies or hangs is replaced, and the steps in flight are given out again (docs/recovery.md). Without
    `options.recover` it takes the executor's further steps with it: every later call raises ChildDiedError.
    """

    def __init__(
        self,
        configs: Sequence[ProviderConfig],
        options: RuntimeOptions,
        ray_options: RayOptions,
        transport: Transport = "auto",
    ) -> None:
        self._configs = tuple(configs)
        self._options = options
        self._ray_options = ray_options
        self._held = Held(Roads(transport))
        self._journal = Journal()
        self._mending = self.mending = Mending(self._held, self._journal, options)
        self.health = Health(self._held, self._mending, options)
        self._current = threading.local()
        """`step`: what this thread is at."""
        self._elements = Elements()
        self._routes: Routes | None = None
        """Of a step that goes whole; None where none does."""
        finalizer = weakref.finalize(self, _close_in_background, self._held)
        finalizer.atexit = False  # leaving Ray, which happens at exit, ends actors and placement groups too

    # -- starting ------------------------------------------------------------------------------------------------
    def start(self, plan: Plan, weights: Mapping[str, HostArray], planner: Planner | None = None) -> None:
        """As Children says.

        Raises: TransportError where Ray cannot be started, has no room for all children, or takes longer than
        options.start_timeout_s; what a child's `prepare` raises. Nothing is left running then.
        """
        options = self._ray_options
        held = self._held
        if planner is not None:
            self._mending.relocation = Relocation(
                held, self._journal, self._options, options, planner, self._drive
            )
        held.lease = ensure_ray(
            address=options.address, store_bytes=options.store_bytes, log_to_driver=options.log_to_driver
        )
        try:
            if plan.children:
                spare = bring_up(held, plan, weights, self._options, options, ours=held.lease.ours)
                if self._options.recover:
                    self._mending.begin(spare)
                self._drive(plan)
                held.roads.start(lambda: {k: m.actor for k, m in held.members.items()})
        except rex.RayError as error:
            failure = translated(error, held.devices())
            held.close(0.0)
            raise failure  # noqa: B904 - `translated` has set the cause
        except BaseException:
            held.close(0.0)
            raise

    def _drive(self, plan: Plan) -> None:
        """Steps go by this plan from now on."""
        roads, routes = self._held.roads, Routes(plan.sections[0])
        self._elements.senders = senders_of(plan)
        by_value = self._elements.senders and roads.transport == "auto"  # as sequences would travel
        asked = roads.transport != "objects" and routes.taken  # else nobody would wait for its end
        self._routes = routes if asked and not by_value else None
        roads.plan = plan

    # -- running -------------------------------------------------------------------------------------------------
    def launching(self, step: int) -> AbstractContextManager[object]:
        return _Launching(self, step)

    def begin(self, step: int) -> None:
        """A step's calls follow. Raises: ClosedError, ChildDiedError."""
        self.health.check()
        self._mending.ready()
        self._mending.launched(step)
        self._journal.record(step)
        self._current.step = step

    def put(self, values: Sequence[Value]) -> ParcelRef:
        self.health.check()
        bank = NewBank()
        wire = pack(values, bank)
        aside = sum(a.nbytes for a in bank.arrays)
        small = sum(map(value_bytes, values)) - aside <= INLINE_BYTES
        content = wire if small else ray.put(wire)
        elements = ray.put(bank.arrays) if bank.arrays else None
        return RayParcel(self._current.step, content, given=True, bank=elements)

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
        self.health.check()
        member = self._held.members.get(child)
        if member is None:
            raise TransportError(f"the plan has no child {child}", step=step)
        sends = tuple(RayParcel(step, None) for _ in range(n_sends))
        on_device = None if binding is None else binding.on_device
        banked = self._elements.senders.get(partition, ())
        call = Call(child, partition, graph_slot, tuple(parcels), sends, on_device=on_device, banked=banked)
        issue(member, step, call)
        self._journal.record(step).calls.append(call)
        return sends

    def run_whole(
        self, step: int, values: Mapping[str, Value], graph_slot: str, timeout_s: float | None
    ) -> dict[str, Value] | None:
        # The steady road, in as few calls as it goes: between two steps other processes had the caches, and what is
        # called for the first time since takes ten times as long as the next time.
        roads = self._held.roads
        if self._routes is None or (roads.channel is None and roads.objects):
            return None
        plain = True
        for value in values.values():
            if value.__class__ is not np.ndarray:
                plain = False
        mending, record, channel, flight = self._mending, None, None, None
        try:
            with mending.lock:
                record = self._begun(step, values, graph_slot, wait=True)
                if record is None:
                    return None
                channel, machine = roads.channel, mending.machine
                epoch = 0 if machine is None else machine.epoch
                assert channel is not None, "it has just begun"
                given = record.given if plain else brought(record.given)
                flight = channel.launch(step, given, graph_slot, timeout_s)
                record.way = channel, flight
                if mending.checkpoints.due is not None:
                    mending.checkpoints.launched(step)
            arrived = channel.get(flight, timeout_s)
        except HeteroError as error:
            if record is None or channel is None or (flight is None and channel.broken is None):
                raise
            self._mend(step, epoch, error, channel)
        else:
            with mending.lock:
                finished = mending.finished(step, epoch)
            if finished:
                return record.named(arrived)
        return self.awaited(step, timeout_s)

    def launch_nowait(
        self, step: int, values: Mapping[str, Value], graph_slot: str, ended: Ended
    ) -> Attend | None:
        mending = self._mending
        if self._elements.senders or self._options.step_timeout_s:
            return None  # sequences may have to be brought; or somebody has to look at the time
        if not mending.lock.acquire(blocking=False):
            return None
        try:
            record = self._begun(step, values, graph_slot, wait=False)
            if record is None:
                return None
            channel, flight = self._held.roads.channel, None
            assert channel is not None, "it has just begun"
            with suppress(HeteroError):  # whoever tries again is told
                flight = channel.launch_nowait(step, record.given, graph_slot)
            if flight is None:
                mending.dropped(step)
                return None
            record.way = channel, flight
            underway = Underway(mending, record, channel, flight, ended)
            flight.when_over(underway.over)
            return underway.attend
        finally:
            mending.lock.release()

    def _begun(
        self, step: int, values: Mapping[str, Value], graph_slot: str, *, wait: bool
    ) -> WholeStep | None:
        """The record of a step that goes whole, which its launch follows; None, and nothing has happened, where it has
        to be called partition by partition. `wait`: what has to be done before is done, else that is a None as well."""
        mending, channel = self._mending, self._held.roads.channel
        if not mending.quiet() or channel is None or channel.broken is not None:
            channel = self._opened() if wait else None
        routes = self._routes
        if routes is None or channel is None:
            return None
        if mending.machine is not None:
            mending.machine.launched(step)
        given: dict[int, list[Value]] = {}
        # what is spelled out finds the interpreter warm, unlike map and zip
        for parcel, names in routes.given:
            contents = given[parcel] = []
            for name in names:
                contents.append(values[name])  # noqa: PERF401
        record = self._journal.open[step] = WholeStep(step, routes, given, graph_slot)
        return record

    def _opened(self) -> DriverChannel | None:
        """The channels, once all children are there and they are open; they may have ended by themselves. None: steps
        go over objects."""
        self.health.check()
        self._mending.ready()
        try:
            return self._held.roads.choice()
        except rex.RayError as error:  # a child was gone when channels were to be opened
            if not self._options.recover or not is_death(error):
                raise self.health.failure(error)  # noqa: B904 - `translated` has set the cause
            self._mending.died(error)
            return None

    def awaited(self, step: int, timeout_s: float | None) -> dict[str, Value]:
        while True:
            with self._mending.lock:
                self._mending.check(step)
                record, epoch = self._journal.open[step], self._mending.epoch
                assert isinstance(record, WholeStep), "it was begun as one"
                way = record.way
            if way is None:  # given out again, over objects
                back = self.get(record.back, timeout_s)
                return record.named({k: b for (k, _), b in zip(record.routes.taken, back, strict=True)})
            channel, flight = way
            try:
                arrived = channel.get(flight, timeout_s)
            except HeteroError as error:
                self._mend(step, epoch, error, channel)
                continue
            with self._mending.lock:
                if self._mending.finished(step, epoch):
                    return record.named(arrived)

    def get(self, parcels: Sequence[ParcelRef], timeout_s: float | None) -> list[list[Value]]:
        """As Children says; arrays are the caller's own, so that keeping them holds nothing in the object store."""
        step = parcels[0].step if parcels else self._current.step
        while True:
            with self._mending.lock:
                self._mending.check(step)
                self.health.check(open_only=True)
                epoch = self._mending.epoch
                sources = [parcel.sources() for parcel in parcels]
                awaited = self._awaited(step, {id(p): p for each in sources for p, _ in each})
            try:
                wires = ray.get(list(awaited.values()), timeout=timeout_s)
            except (rex.RayError, HeteroError) as error:
                self._mend(step, epoch, error)
                continue
            with self._mending.lock:
                if self._mending.finished(step, epoch):
                    break
        self._held.roads.succeeded()
        found = dict(zip(awaited, wires, strict=True))
        del wires
        arrived: dict[int, list[Value]] = {}
        for parcel in (p for each in sources for p, _ in each):
            if id(parcel) not in arrived:  # each leaves the store as soon as it is copied
                awaited.pop(id(parcel), None)
                content = found.pop(id(parcel), parcel.content)
                arrived[id(parcel)] = unpack(content, own=True, bank=parcel.bank)
        out = [
            arrived[id(each[0][0])]
            if each[0][1] is None
            else [arrived[id(p)][k] for p, k in each if k is not None]
            for each in sources
        ]
        self._elements.lent(out)
        return out

    def _awaited(self, step: int, sources: Mapping[int, RayParcel]) -> dict[int, Any]:
        """The references to wait for, by the parcel's id; below 0 those of calls from which nothing comes back, but
        a step is only good when they have ended well."""
        arriving = {k: p.content for k, p in sources.items() if isinstance(p.content, ray.ObjectRef)}
        silent = [call.done for call in self._journal.record(step).calls if not call.sends]
        return {**arriving, **{-1 - k: ref for k, ref in enumerate(silent)}}

    def _mend(
        self, step: int, epoch: int, error: rex.RayError | HeteroError, channel: DriverChannel | None = None
    ) -> None:
        """Have the step go on after `error`, or raise it as the caller's."""
        theirs = isinstance(error, rex.RayError)  # then it may be of a class of ours as well
        late = isinstance(error, rex.GetTimeoutError if theirs else StepTimeoutError)
        lost = is_death(error) if theirs else channel is not None and channel.broken is not None
        if not (late or lost) or not self._options.recover:
            with self._mending.lock:
                if not self._mending.led_here():
                    return  # it may be of a state that was not restored
            if isinstance(error, rex.RayError):
                raise self.health.failure(error)
            raise self.health.confirmed(error) if lost else error
        with self._mending.lock:
            self.health.check(open_only=True)
            if self._mending.epoch != epoch:
                return  # it is of a child, or of a launch, that is no more
            if late:
                self._mending.passed_deadline(step)
            elif isinstance(error, rex.RayError):
                self._mending.died(error)
            else:
                self._mending.cut_off(error.device, error.message)

    def drop(self, step: int) -> None:
        with self._mending.lock:
            record = self._journal.open.get(step)
            if record is not None and record.way is not None:
                channel, flight = record.way
                channel.drop(flight)
            self._mending.dropped(step)
            lease = self._held.lease
            if lease is None or not lease.usable():
                return
            for member in tuple(self._held.members.values()):  # a close may empty it meanwhile
                if not member.ended():
                    member.actor.drop.remote(member.generation, step)

    def bind_state(self, child: int, specs: Sequence[StateSpec], withheld: Sequence[tuple[int, str]]) -> None:
        bound = StateBound(child, tuple(specs), tuple(withheld))
        with self._mending.lock:
            self._ask(child, "bind_state", bound.specs, bound.withheld)
            self._mending.bound(bound)

    def change_state(self, child: int, change: StateChange) -> dict[str, HostArray]:
        with self._mending.lock:
            if not change.reset:
                self._mending.check_state()
            try:
                changed: dict[str, HostArray] = self._ask(child, "change_state", change)
                while not (change.reset or self._mending.led_here()):
                    self._mending.check_state()
                    changed = self._ask(child, "change_state", change)
            except (ClosedError, TransportError):
                raise
            except HeteroError:  # a part of it may have happened, and happens again in a replay
                self._mending.changed(StateChanged(child, change))
                raise
            if change != StateChange(read=True):
                self._mending.changed(StateChanged(child, change))
        return {name: array.copy() for name, array in changed.items()}  # not the object store's

    def change_buffer(self, child: int, change: BufferChange) -> HostArray | None:
        found: HostArray | None = self._ask(child, "change_buffer", change, by_plan=False)
        return None if found is None else found.copy()  # not the object store's

    def placed(self, act: Callable[[], T]) -> T:
        with self._mending.lock:
            while True:
                plans = self._mending.plans
                try:
                    return act()
                except _OtherPlanError:
                    if plans == self._mending.plans:
                        raise

    def _ask(self, child: int, method: str, *arguments: Any, by_plan: bool = True) -> Any:
        """Call a child between steps, and wait. `by_plan`: it is the child to ask under the plan as it is now.

        Raises: what the child raised; ChildDiedError; _OtherPlanError where the plan has become another.
        """
        plans = self._mending.plans
        while True:
            self.health.check()
            self._mending.check(0)
            epoch, member = self._mending.epoch, self._held.members.get(child)
            if member is None or (by_plan and plans != self._mending.plans):
                name = self._configs[child].name
                raise _OtherPlanError(f"{name} is lost, and its nodes are elsewhere", device=name)
            try:
                return ray.get(getattr(member.actor, method).remote(member.generation, *arguments))
            except rex.RayError as error:
                self._mend(0, epoch, error)

    # -- looking and ending --------------------------------------------------------------------------------------
    def stats(self) -> dict[str, dict[str, Any]]:
        return self.health.stats()

    def recovery(self) -> dict[str, Any]:
        return self._mending.statistics()

    def transport(self) -> dict[str, Any]:
        return {**self._held.roads.statistics(), **refs.statistics()}

    def take_spans(self) -> list[Span]:
        self.health.check(open_only=True)
        asked = [m.actor.take_spans.remote() for m in self._held.members.values() if not m.ended()]
        spans = self._mending.take_spans()
        for ref in asked:
            try:
                spans += ray.get(ref)
            except rex.RayError as error:
                if not is_death(error):
                    raise self.health.failure(error)  # noqa: B904 - `translated` has set the cause
        return spans

    def abandon(self) -> None:
        """Stop every child at once, whatever it is doing, and let go of the cluster."""
        self.health.closed = True
        self._mending.shut()
        self._held.close(0.0)

    def close(self) -> None:
        if not self.health.closed:
            self._elements.bring()
        self.health.closed = True
        self._mending.shut()  # which ends what is being started
        with self._mending.lock:
            self._mending.close()
        self._held.close(DRAIN_S)


def start_children(
    configs: Sequence[ProviderConfig],
    options: RuntimeOptions,
    transport: Transport = "auto",
    /,
    **ray_options: Any,
) -> RayChildren:
    """Children of an executor on Ray, still to be started; `ray_options` are those of RayOptions.

    Raises: OptionError for an unknown option or a value that cannot be meant.
    """
    return RayChildren(configs, options, RayOptions.of(ray_options), transport)
