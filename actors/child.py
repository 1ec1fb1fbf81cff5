"""One child executor as a Ray actor: runs in turn, and answers `ping` and `stats` while it does."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import ray

from actors import chaos, refs
from actors.arrivals import Content, arrived
from actors.channels.routes import ChildRoutes, child_routes
from actors.devices import hide_devices
from actors.parcels import NewBank, Wire, pack, unpack
from actors.threads import set_threads, thread_counts
from actors.timers import wake_on_time
from actors.turn import Turn
from actors.unneeded import keep_out, let_in
from hetero.errors import ProgramError, TransportError
from hetero.extensions.registry import load_modules
from hetero.kernels import load_all
from hetero.kernels.jit import load_compiled
from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan
from hetero.providers.lookup import failure
from hetero.providers.registry import create
from hetero.runtime.assignment import assignment
from hetero.runtime.child import ChildExecutor
from hetero.runtime.device_buffers import BufferChange
from hetero.runtime.pins import Binding, OnDevice
from hetero.runtime.state import StateChange, StateSpec
from hetero.runtime.state_copy import StateCopy
from hetero.trace import Span
from hetero.types import HostArray

if TYPE_CHECKING:
    from actors.channels.cards import Card
    from actors.channels.child import ChildChannel

CONCURRENCY_GROUPS = {"control": 1, "watch": 1, "beats": 1, "copies": 1}
"""Threads besides the one that runs partitions: one answers, one waits for the actor's end, one shows that the process
is alive, one hands out copies of state."""
_REMEMBERED_FAILURES = 64
_STATS_PATIENCE_S = 0.05


def node_id() -> str:
    """The id of the Ray node that this process belongs to."""
    return str(ray.get_runtime_context().get_node_id())


class ChildActor:
    """One provider instance: its partitions' programs, their values, captured graphs and weights.

    Methods of the default group (prepare, run, drop, take_spans, close) run one after the other in the order of the
    calls, on one thread. Errors are those of ChildExecutor, with all attributes. What changes a child carries the
    generation that is meant; another's is refused with a TransportError.
    """

    def __init__(self) -> None:
        keep_out()
        self._devices = hide_devices()
        self._child: ChildExecutor | None = None
        self._turn = Turn()
        self._last_stats: dict[str, Any] = {}
        self._failed: OrderedDict[int, Exception] = OrderedDict()
        self._over = threading.Event()
        self._generation = 0
        self._due: tuple[int, int | None] | None = None
        self._copied: tuple[int, StateCopy | Exception] | None = None
        self._copying = threading.RLock()
        self._routes: ChildRoutes | None = None
        self._place: tuple[int, str, int] = (0, "", 1)
        self._channel: ChildChannel | None = None
        self._swapping = threading.Lock()

    def warm_up(self, options: RuntimeOptions) -> dict[str, Any]:
        """Load what any child may need, compiled kernels included, and wait for `prepare`. Returns pid and node_id.

        That takes a tenth of a second; what this machine has not compiled yet is left to the child that needs it.
        """
        let_in()
        import_module("hetero.planner.codec")
        import_module("hetero.providers.cpu")
        import_module("actors.channels.child")
        load_all()
        load_compiled()
        load_modules(options.extensions)
        return {"pid": os.getpid(), "node_id": node_id()}

    def prepare(
        self,
        generation: int,
        plan_bytes: HostArray,
        index: int,
        options: RuntimeOptions,
        threads: int,
        gates: str | None,
        weight_names: Sequence[Sequence[str]],
        *weights: Content,
    ) -> dict[str, Any]:
        """Become child `index` of the plan, in its incarnation `generation`. One that is it already keeps its device,
        and the caller's buffers there, alone.

        `weights[k]` leads to the arrays of `weight_names[k]`, which stay shared. `gates`: what `chaos.join` takes.
        Returns where and how it runs: pid, node_id, visible_devices, threads, library_threads, and counters.
        Raises: PlanError, ProviderError, ProgramError; NotHereError where files of weights cannot be reached.
        """
        let_in()
        chaos.join(gates)
        self._turn.watched = chaos.active()
        set_threads(threads)
        plan = Plan.from_bytes(plan_bytes.tobytes(), checked=True)
        chaos.reach(f"prepare {plan.providers[index].name}")
        named = arrived(weight_names, weights)
        self.close_channels()
        self._forget_copies()
        self._failed.clear()
        child, self._child = self._child or ChildExecutor(create(plan.providers[index]), options), None
        try:
            child.prepare(assignment(plan, index), named)
        except BaseException:
            child.close()
            raise
        set_threads(threads)  # once more, for the libraries that the kernels have brought in
        self._child, self._last_stats, self._generation = child, child.stats(), generation
        self._routes, self._place = child_routes(plan, index), (index, plan.providers[index].name, threads)
        return {
            **self._last_stats,
            "pid": os.getpid(),
            "node_id": node_id(),
            "visible_devices": self._devices,
            "threads": threads,
            "library_threads": thread_counts(),
        }

    def run(
        self,
        generation: int,
        partition: int,
        step: int,
        graph_slot: str,
        *parcels: Wire,
        on_device: OnDevice | None = None,
        banks: Sequence[Any] = (),
        banked: Sequence[int] = (),
    ) -> Any:
        """Run a partition; returns its one parcel, a tuple of several, or None where it sends nothing.

        `banks`: for each parcel the reference to the elements that its sequences put aside, or None. The parcels that
        are `banked` by number are followed by the elements that they put aside.

        After a partition of a step has failed, the step's later ones raise the same error: they cannot run without
        its values, and the first error is the one to report.
        """
        child = self._ready(generation)
        if step in self._failed:
            raise self._failed[step]
        try:
            binding = None if on_device is None else Binding(on_device=on_device)
            homes = banks or [None] * len(parcels)
            arrived = [unpack(p, bank=bank) for p, bank in zip(parcels, homes, strict=True)]
            aside = {k: NewBank() for k in banked}
            made = self._turn.compute(child, partition, step, arrived, graph_slot, binding)
            sent: list[Any] = [pack(p, aside.get(k)) for k, p in enumerate(made)]
            sent += [aside[k].arrays for k in banked]
        except Exception as error:
            # Memory for what it receives or sends; a kernel's error is of our kind already.
            if isinstance(error, MemoryError):
                error = failure(error, None, self._place[1])
            self._failed[step] = error
            if len(self._failed) > _REMEMBERED_FAILURES:
                self._failed.popitem(last=False)
            raise error
        if len(sent) > 1:
            return tuple(sent)
        return sent[0] if sent else None

    @ray.method(concurrency_group="control")
    def open_channels(self, generation: int) -> Card:
        """Listen for peers, in place of channels of an earlier generation. Raises: TransportError."""
        from actors.channels.child import ChildChannel  # not needed before: the first steps come as objects

        self.close_channels()
        child = self._ready(self._generation)
        assert self._routes is not None, "a child that is ready has its routes"
        index, device, threads = self._place
        known: Any = ray.util  # it has no types
        address = str(known.get_node_ip_address())

        def begin() -> None:
            set_threads(threads)  # Numba's setting holds for the calling thread
            wake_on_time()
            child.dwell()

        self._channel = channel = ChildChannel(
            index,
            device,
            generation,
            address,
            self._routes,
            partial(self._turn.compute, child),
            child.drop,
            begin=begin,
        )
        return channel.card

    @ray.method(concurrency_group="control")
    def connect_channels(self, cards: Sequence[Card], timeout_s: float) -> None:
        """Let these in and connect to them. Raises: TransportError."""
        if self._channel is None:
            raise TransportError("channels were not opened, or are closed")
        self._channel.connect(cards, timeout_s)

    def close_channels(self, generation: int | None = None) -> None:
        """End the channels (of this generation, and no later one), after the partition that they run. Repeatable.

        In the default group: once this is done, calls made after it meet nothing that came over them.
        """
        with self._swapping:
            channel = self._channel
            if channel is None or (generation is not None and channel.generation > generation):
                return
            self._channel = None
        channel.close()

    def drop(self, generation: int, *steps: int) -> None:
        """Forget steps that failed, here or elsewhere, or that will be run again."""
        child = self._ready(generation)
        for step in steps:
            self._failed.pop(step, None)
            child.drop(step)

    # -- state ---------------------------------------------------------------------------------------------------
    def bind_state(
        self, generation: int, specs: Sequence[StateSpec], withheld: Sequence[tuple[int, str]]
    ) -> None:
        """Keep these values between steps."""
        child = self._ready(generation)
        self._forget_copies()
        child.bind_state(specs, withheld)

    def change_state(self, generation: int, change: StateChange) -> dict[str, HostArray]:
        """Apply `change` to the states; copies of their values where it asks for them."""
        child = self._ready(generation)
        self._copy_due()
        return child.change_state(change)

    @ray.method(concurrency_group="control")
    def copy_state(self, generation: int, step: int, since: int | None) -> None:
        """When `step` is over, its state is to be copied, for `take_copy`: before a later step begins, which waits for
        this and not for what happens to the copy, or whatever else comes. `since`: as ChildExecutor.copy_state."""
        self._ready(generation)
        self._due = step, since
        self._turn.before = self._copy_due

    def _copy_due(self, step: int | None = None) -> None:
        """Make the copy that is due before this step, or before something else happens to the state."""
        with self._copying:
            due = self._due
            if due is None or (step is not None and step <= due[0]):
                return
            self._due = self._turn.before = None
            try:
                chaos.reach("checkpoint")
                self._copied = due[0], self._ready().copy_state(*due)
            except Exception as error:
                self._copied = due[0], error

    @ray.method(concurrency_group="copies")
    def take_copy(self, step: int) -> StateCopy:
        """The copy of the state after `step`, which is over. Raises: TransportError where there is none."""
        with self._copying:
            self._copy_due()
            copied, self._copied = self._copied, None
        chaos.reach("take copy")
        if copied is None or copied[0] != step:
            raise TransportError(f"there is no copy of the state after step {step}", step=step)
        if isinstance(copied[1], Exception):
            raise copied[1]
        return copied[1]

    def restore_state(self, generation: int, copied: StateCopy) -> None:
        """Keep what was copied, whole, and nothing that came after."""
        chaos.reach("restore")
        child = self._ready(generation)
        self._forget_copies()
        child.restore_state(copied)

    def _forget_copies(self) -> None:
        """Other states come, of which nothing was asked: first, or a copy would be of them."""
        with self._copying:
            self._due = self._copied = self._turn.before = None

    def change_buffer(self, generation: int, change: BufferChange) -> HostArray | None:
        """Apply `change` to a buffer of the caller's."""
        return self._ready(generation).change_buffer(change)

    def take_spans(self) -> list[Span]:
        """The spans recorded since the last call."""
        return self._ready().take_spans()

    @ray.method(concurrency_group="control")
    def ping(self) -> float:
        """Seconds that the current run has taken so far; 0 when idle."""
        return self._turn.running_s()

    @ray.method(concurrency_group="control")
    def stats(self) -> dict[str, Any]:
        """The child's counters.

        While a partition runs, the counters are those of the last time that none did, and `running` says which runs
        (partition, step, for_s): a provider is used from one thread at a time.
        """
        if self._turn.lock.acquire(timeout=_STATS_PATIENCE_S):
            try:
                self._last_stats = self._ready().stats()
            finally:
                self._turn.lock.release()
        out = dict(self._last_stats)
        if self._channel is not None:
            out["channels"] = self._channel.statistics()
        out["elements"] = refs.statistics()
        running = self._turn.running()
        if running is not None:
            out["running"] = running
        return out

    @ray.method(concurrency_group="beats", num_returns="streaming")
    def beats(self, every_s: float) -> Iterator[int]:
        """A number every `every_s` seconds, for as long as the process runs. A call like any other could not tell: Ray
        holds it back while an earlier one waits for its parcels."""
        count = 0
        while not self._over.wait(every_s):
            yield count
            count += 1

    @ray.method(concurrency_group="watch")
    def wait_closed(self) -> None:
        """Return once the child was closed; until then this call tells its caller of the actor's death."""
        self._over.wait()

    def close(self) -> None:
        """Free everything. Calls made before have ended by then. A second call does nothing."""
        self.close_channels()
        child, self._child = self._child, None
        self._failed.clear()
        if child is not None:
            child.close()
        self._over.set()

    def _ready(self, generation: int | None = None) -> ChildExecutor:
        if self._child is None:
            raise ProgramError("this child was not prepared, or is closed")
        if generation is not None and generation != self._generation:
            raise TransportError(
                f"this is generation {self._generation} of the child, and the call is for {generation}",
                device=self._child.provider.name,
            )
        return self._child
