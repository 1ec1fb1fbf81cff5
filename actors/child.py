"""One child executor as a Ray actor: runs in turn, and answers `ping` and `stats` while it does."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias

import ray

from actors import chaos
from actors.parcels import Wire, pack, unpack
from actors.threads import set_threads, thread_counts
from hetero.errors import ProgramError, TransportError
from hetero.extensions.registry import load_modules
from hetero.kernels import load_all
from hetero.kernels.jit import compile_all
from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan
from hetero.providers.registry import create
from hetero.runtime.assignment import assignment
from hetero.runtime.child import ChildExecutor
from hetero.runtime.state import StateChange, StateCopy, StateSpec
from hetero.trace import Span
from hetero.types import HostArray

CONCURRENCY_GROUPS = {"control": 1, "watch": 1, "beats": 1, "copies": 1}
"""Threads besides the one that runs partitions: one answers, one waits for the actor's end, one shows that the process
is alive, one hands out copies of state."""
_REMEMBERED_FAILURES = 64
_STATS_PATIENCE_S = 0.05


StateParts: TypeAlias = tuple[tuple[StateSpec, ...], tuple[tuple[int, str], ...], tuple[str, ...], Wire]
"""A StateCopy on the wire: specs, withheld, the values' names, and these."""


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
        self._child: ChildExecutor | None = None
        self._turn = threading.Lock()
        self._running: tuple[int, int, float] | None = None
        self._last_stats: dict[str, Any] = {}
        self._failed: OrderedDict[int, Exception] = OrderedDict()
        self._over = threading.Event()
        self._generation = 0
        self._copies: SimpleQueue[StateParts | Exception] = SimpleQueue()

    def warm_up(self, options: RuntimeOptions) -> dict[str, Any]:
        """Load what any child may need, compiled kernels included, and wait for `prepare`. Returns pid and node_id."""
        load_all()
        compile_all()
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
        *weights: Wire,
    ) -> dict[str, Any]:
        """Become child `index` of the plan, in its incarnation `generation`.

        `weights[k]` holds the arrays of `weight_names[k]`, which stay shared. `gates`: what
        `chaos.join` takes. Returns where and how it runs: pid, node_id, threads, library_threads, and counters.
        Raises: PlanError, ProviderError, ProgramError.
        """
        chaos.join(gates)
        set_threads(threads)
        plan = Plan.from_bytes(plan_bytes.tobytes())
        chaos.reach(f"prepare {plan.providers[index].name}")
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
        self._child, self._last_stats, self._generation = child, child.stats(), generation
        return {
            **self._last_stats,
            "pid": os.getpid(),
            "node_id": node_id(),
            "threads": threads,
            "library_threads": thread_counts(),
        }

    def run(self, generation: int, partition: int, step: int, graph_slot: str, *parcels: Wire) -> Any:
        """Run a partition; returns its one parcel, a tuple of several, or None where it sends nothing.

        After a partition of a step has failed, the step's later ones raise the same error: they cannot run without
        its values, and the first error is the one to report.
        """
        child = self._ready(generation)
        if step in self._failed:
            raise self._failed[step]
        try:
            with self._turn:
                self._running = (partition, step, time.perf_counter())
                chaos.reach(f"partition {partition}, before run", step)
                sent = [pack(p) for p in child.run(partition, step, [unpack(p) for p in parcels], graph_slot)]
                chaos.reach(f"partition {partition}, before send", step)
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
        self._ready(generation).bind_state(specs, withheld)

    def change_state(self, generation: int, change: StateChange) -> dict[str, HostArray]:
        """Apply `change` to the states; copies of their values where it asks for them."""
        return self._ready(generation).change_state(change)

    def copy_state(self, generation: int) -> None:
        """Copy the state as it is now, for `take_copy`. The next step waits for this, not for what happens to it."""
        chaos.reach("checkpoint")
        try:
            copied = self._ready(generation).copy_state()
            values = copied.values
            self._copies.put((copied.specs, copied.withheld, tuple(values), pack([*values.values()])))
        except Exception as error:
            self._copies.put(error)
            raise

    @ray.method(concurrency_group="copies")
    def take_copy(self) -> StateParts:
        """The copy that the `copy_state` of the same turn made."""
        copied = self._copies.get()
        chaos.reach("take copy")
        if isinstance(copied, Exception):
            raise copied
        return copied

    def restore_state(self, generation: int, parts: StateParts) -> None:
        """Keep what `take_copy` returned, and nothing that came after."""
        chaos.reach("restore")
        specs, withheld, names, wire = parts
        values = dict(zip(names, unpack(wire), strict=True))
        self._ready(generation).restore_state(StateCopy(specs, withheld, values))

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
