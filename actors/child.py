"""One child executor as a Ray actor: runs in turn, and answers `ping` and `stats` while it does."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import ray

from actors.parcels import Wire, pack, unpack
from actors.threads import set_threads, thread_counts
from hetero.errors import ProgramError
from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan
from hetero.providers.registry import create
from hetero.runtime.assignment import assignment
from hetero.runtime.child import ChildExecutor
from hetero.trace import Span
from hetero.types import HostArray

CONCURRENCY_GROUPS = {"control": 1, "watch": 1}
"""Threads besides the one that runs partitions: one answers, one waits for the actor's end."""
_REMEMBERED_FAILURES = 64


class ChildActor:
    """One provider instance: its partitions' programs, their values, captured graphs and weights.

    Methods of the default group (prepare, run, drop, take_spans, close) run one after the other in the order of the
    calls, on one thread. Errors are those of ChildExecutor, with all attributes.
    """

    def __init__(self) -> None:
        self._child: ChildExecutor | None = None
        self._threads = 0
        self._running: tuple[int, int, float] | None = None
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

        Returns where it runs: pid, node_id. Raises: PlanError, ProviderError, ProgramError.
        """
        set_threads(threads)
        self._threads = threads
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
        self._child = child
        return {"pid": os.getpid(), "node_id": ray.get_runtime_context().get_node_id()}

    def run(self, partition: int, step: int, graph_slot: str, *parcels: Wire) -> Any:
        """Run a partition; returns its one parcel, a tuple of several, or None where it sends nothing.

        After a partition of a step has failed, the step's later ones raise the same error: they cannot run without
        its values, and the first error is the one to report.
        """
        child = self._ready()
        if step in self._failed:
            raise self._failed[step]
        self._running = (partition, step, time.perf_counter())
        try:
            sent = [pack(p) for p in child.run(partition, step, [unpack(p) for p in parcels], graph_slot)]
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
        """The child's counters, what it is running (partition, step, seconds) and the threads of its libraries."""
        running = self._running
        out = self._ready().stats()
        out["pid"] = os.getpid()
        out["threads"] = self._threads
        out["library_threads"] = thread_counts()
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
