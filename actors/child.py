"""One child executor as a Ray actor: runs in turn, and answers `ping` and `stats` while it does."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import ray

from actors.channels.child import ChildChannel
from actors.channels.endpoint import Card
from actors.channels.routes import ChildRoutes, child_routes
from actors.parcels import Wire, pack, unpack
from actors.threads import set_threads, thread_counts
from hetero.errors import ProgramError, TransportError
from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan
from hetero.providers.registry import create
from hetero.runtime.assignment import assignment
from hetero.runtime.child import ChildExecutor
from hetero.runtime.state import StateChange, StateSpec
from hetero.trace import Span
from hetero.types import HostArray

CONCURRENCY_GROUPS = {"control": 1, "watch": 1}
"""Threads besides the one that runs partitions: one answers, one waits for the actor's end."""
_REMEMBERED_FAILURES = 64
_STATS_PATIENCE_S = 0.05


def node_id() -> str:
    """The id of the Ray node that this process belongs to."""
    return str(ray.get_runtime_context().get_node_id())


class ChildActor:
    """One provider instance: its partitions' programs, their values, captured graphs and weights.

    Methods of the default group (prepare, run, drop, take_spans, close) run one after the other in the order of the
    calls, on one thread. Errors are those of ChildExecutor, with all attributes.
    """

    def __init__(self) -> None:
        self._child: ChildExecutor | None = None
        self._turn = threading.Lock()
        self._running: tuple[int, int, float] | None = None
        self._last_stats: dict[str, Any] = {}
        self._failed: OrderedDict[int, Exception] = OrderedDict()
        self._over = threading.Event()
        self._routes: ChildRoutes | None = None
        self._place: tuple[int, str, int] = (0, "", 1)
        self._channel: ChildChannel | None = None
        self._swapping = threading.Lock()

    def prepare(
        self,
        plan_bytes: HostArray,
        index: int,
        options: RuntimeOptions,
        threads: int,
        weight_names: Sequence[Sequence[str]],
        *weights: Wire,
    ) -> dict[str, Any]:
        """Become child `index` of the plan; `weights[k]` holds the arrays of `weight_names[k]`, which stay shared.

        Returns where and how it runs: pid, node_id, threads, library_threads, and counters.
        Raises: PlanError, ProviderError, ProgramError.
        """
        set_threads(threads)
        plan = Plan.from_bytes(plan_bytes.tobytes())
        named = {
            name: array
            for names, wire in zip(weight_names, weights, strict=True)
            for name, array in zip(names, unpack(wire), strict=True)
        }
        child = ChildExecutor(create(plan.providers[index]), options)
        try:
            child.prepare(assignment(plan, index), named)
        except BaseException:
            child.close()
            raise
        set_threads(threads)  # once more, for the libraries that the kernels have brought in
        self._child, self._last_stats = child, child.stats()
        self._routes, self._place = child_routes(plan, index), (index, plan.providers[index].name, threads)
        return {
            **self._last_stats,
            "pid": os.getpid(),
            "node_id": node_id(),
            "threads": threads,
            "library_threads": thread_counts(),
        }

    def run(self, partition: int, step: int, graph_slot: str, *parcels: Wire) -> Any:
        """Run a partition; returns its one parcel, a tuple of several, or None where it sends nothing.

        After a partition of a step has failed, the step's later ones raise the same error: they cannot run without
        its values, and the first error is the one to report.
        """
        if step in self._failed:
            raise self._failed[step]
        try:
            sent = [pack(p) for p in self._compute(partition, step, [unpack(p) for p in parcels], graph_slot)]
        except Exception as error:
            self._failed[step] = error
            if len(self._failed) > _REMEMBERED_FAILURES:
                self._failed.popitem(last=False)
            raise
        if len(sent) > 1:
            return tuple(sent)
        return sent[0] if sent else None

    def _compute(
        self, partition: int, step: int, parcels: Sequence[Sequence[Any]], graph_slot: str
    ) -> list[list[Any]]:
        """Run a partition, whichever road its parcels came on."""
        child = self._ready()
        with self._turn:
            self._running = (partition, step, time.perf_counter())
            try:
                return child.run(partition, step, parcels, graph_slot)
            finally:
                self._running = None

    @ray.method(concurrency_group="control")
    def open_channels(self, generation: int) -> Card:
        """Listen for peers, in place of channels of an earlier generation. Raises: TransportError."""
        self.close_channels()
        child = self._ready()
        assert self._routes is not None, "a child that is ready has its routes"
        index, device, threads = self._place
        known: Any = ray.util  # it has no types
        address = str(known.get_node_ip_address())
        self._channel = channel = ChildChannel(
            index,
            device,
            generation,
            address,
            self._routes,
            self._compute,
            child.drop,
            begin=lambda: set_threads(threads),  # Numba's setting holds for the calling thread
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

    def drop(self, step: int) -> None:
        """Forget a step that failed, here or elsewhere."""
        self._failed.pop(step, None)
        self._ready().drop(step)

    def bind_state(self, specs: Sequence[StateSpec], withheld: Sequence[tuple[int, str]]) -> None:
        """Keep these values between steps."""
        self._ready().bind_state(specs, withheld)

    def change_state(self, change: StateChange) -> dict[str, HostArray]:
        """Apply `change` to the states; copies of their values where it asks for them."""
        return self._ready().change_state(change)

    def take_spans(self) -> list[Span]:
        """The spans recorded since the last call."""
        return self._ready().take_spans()

    @ray.method(concurrency_group="control")
    def ping(self) -> float:
        """Seconds that the current run has taken so far; 0 when idle."""
        running = self._running
        return 0.0 if running is None else time.perf_counter() - running[2]

    @ray.method(concurrency_group="control")
    def stats(self) -> dict[str, Any]:
        """The child's counters.

        While a partition runs, the counters are those of the last time that none did, and `running` says which runs
        (partition, step, for_s): a provider is used from one thread at a time.
        """
        if self._turn.acquire(timeout=_STATS_PATIENCE_S):
            try:
                self._last_stats = self._ready().stats()
            finally:
                self._turn.release()
        out = dict(self._last_stats)
        if self._channel is not None:
            out["channels"] = self._channel.statistics()
        running = self._running
        if running is not None:
            partition, step, started = running
            out["running"] = {"partition": partition, "step": step, "for_s": time.perf_counter() - started}
        return out

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

    def _ready(self) -> ChildExecutor:
        if self._child is None:
            raise ProgramError("this child was not prepared, or is closed")
        return self._child
