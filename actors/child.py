"""One child executor as a Ray actor: runs in turn, and answers `ping` and `stats` while it does."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import ray

from actors.devices import hide_devices
from actors.parcels import Wire, pack, unpack
from actors.threads import set_threads, thread_counts
from hetero.errors import ProgramError
from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan
from hetero.providers.registry import create
from hetero.runtime.assignment import assignment
from hetero.runtime.child import ChildExecutor
from hetero.runtime.device_buffers import BufferChange
from hetero.runtime.pins import Binding, OnDevice
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
        self._devices = hide_devices()
        self._child: ChildExecutor | None = None
        self._turn = threading.Lock()
        self._running: tuple[int, int, float] | None = None
        self._last_stats: dict[str, Any] = {}
        self._failed: OrderedDict[int, Exception] = OrderedDict()
        self._over = threading.Event()

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

        Returns where and how it runs: pid, node_id, visible_devices, threads, library_threads, and counters.
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
        return {
            **self._last_stats,
            "pid": os.getpid(),
            "node_id": node_id(),
            "visible_devices": self._devices,
            "threads": threads,
            "library_threads": thread_counts(),
        }

    def run(
        self, partition: int, step: int, graph_slot: str, on_device: OnDevice | None, *parcels: Wire
    ) -> Any:
        """Run a partition; returns its one parcel, a tuple of several, or None where it sends nothing.

        After a partition of a step has failed, the step's later ones raise the same error: they cannot run without
        its values, and the first error is the one to report.
        """
        child = self._ready()
        if step in self._failed:
            raise self._failed[step]
        try:
            with self._turn:
                self._running = (partition, step, time.perf_counter())
                binding = None if on_device is None else Binding(on_device=on_device)
                arrived = [unpack(p) for p in parcels]
                sent = [pack(p) for p in child.run(partition, step, arrived, graph_slot, binding)]
        except Exception as error:
            self._failed[step] = error
            if len(self._failed) > _REMEMBERED_FAILURES:
                self._failed.popitem(last=False)
            raise
        finally:
            self._running = None
        if len(sent) > 1:
            return tuple(sent)
        return sent[0] if sent else None

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

    def change_buffer(self, change: BufferChange) -> HostArray | None:
        """Apply `change` to a buffer of the caller's."""
        return self._ready().change_buffer(change)

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
        child, self._child = self._child, None
        self._failed.clear()
        if child is not None:
            child.close()
        self._over.set()

    def _ready(self) -> ChildExecutor:
        if self._child is None:
            raise ProgramError("this child was not prepared, or is closed")
        return self._child
