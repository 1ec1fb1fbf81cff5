"""The child executor: runs one provider's partitions, step by step, wherever it lives; plain Python, no Ray."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from hetero.errors import ClosedError, HeteroError, ProgramError, StateError, TransportError
from hetero.extensions.registry import load_modules
from hetero.kernels.limits import limited, machine_bytes
from hetero.kernels.randomness import drawing
from hetero.options import RuntimeOptions
from hetero.program.program import Program
from hetero.program.validate import validate
from hetero.providers.base import Provider, ProviderConfig
from hetero.providers.registry import create
from hetero.runtime.assignment import Assignment, Task
from hetero.runtime.elements import Element
from hetero.runtime.extensions import Extensions
from hetero.runtime.kernel_cache import KernelCache
from hetero.runtime.pins import Binding, Pins, writable_in_place
from hetero.runtime.runner import Context, Runner
from hetero.runtime.state import NO_STEP, Resident, State, StateChange, StateSpec
from hetero.trace import Span
from hetero.types import HostArray, MapValue, SequenceValue

Value = Any
"""What crosses between children: a host array, a MapValue, a SequenceValue of them, or None."""


class ChildExecutor:
    """One provider instance with its programs, weights and values. Thread-safe: calls take turns.

    A step's values live in a table of its own from the step's first partition on this child to its last (or `drop`).
    """

    def __init__(self, provider: Provider, options: RuntimeOptions) -> None:
        self.provider = provider
        self.options = options
        self._host = provider if provider.is_host else create(ProviderConfig("cpu"))
        self._lock = threading.RLock()
        self._extensions = Extensions(provider)
        self._context: Context | None = None
        self._tasks: dict[int, Task] = {}
        self._runners: dict[int, Runner] = {}
        self._steps: dict[int, dict[str, Value]] = {}
        self._states: dict[str, State] = {}
        self._withheld: frozenset[tuple[int, str]] = frozenset()
        self._spans: list[Span] = []
        self._closed = False
        self._busy_s = 0.0
        self._bytes_in = 0
        self._bytes_out = 0
        self._calls = 0

    def prepare(self, assignment: Assignment, weights: Mapping[str, HostArray]) -> None:
        """Take over an assignment; validates every program before anything else happens.

        `weights` has at least the assignment's initializers, as host arrays; they are read, never written.
        Raises: ProgramError; OptionError and KernelError for extensions that are not there, or do not prepare.
        """
        load_modules(self.options.extensions)
        for task in assignment.tasks.values():
            validate(task.program)
        missing = [name for name in assignment.weights if name not in weights]
        if missing:
            raise ProgramError(f"no weights given for {missing[:5]}", device=self.provider.name)
        with self._lock:
            self._check_open()
            kernels = KernelCache(self.options.kernel_cache_size)
            self._extensions.prepare(task.program for task in assignment.tasks.values())
            context = Context(
                self.provider, self._host, self.options, kernels, weights, extensions=self._extensions
            )
            runners = {k: Runner(task.program, context) for k, task in assignment.tasks.items()}
            self._drop_programs()
            self._context, self._tasks, self._runners = context, dict(assignment.tasks), runners
            with self._bounds():
                for runner in runners.values():
                    runner.prepare()

    def run(
        self,
        partition: int,
        step: int,
        parcels: Sequence[Sequence[Value]],
        graph_slot: str = "primary",
        binding: Binding | None = None,
    ) -> list[list[Value]]:
        """Run one partition of one step. `parcels`: what it receives; returns what it sends (host values).

        `binding`: what a host provider reads and writes in place; an output that is not written there is sent as ever.

        An error leaves the child usable; the step's values on this child are dropped.
        """
        with self._lock:
            self._check_open()
            task = self._tasks.get(partition)
            if task is None:
                raise TransportError(
                    f"partition {partition} is not this child's", device=self.provider.name, step=step
                )
            started = time.perf_counter()
            try:
                if self._context is not None:
                    self._context.drive(graph_slot)
                    if self._context.ops is not None:
                        self._context.ops.step = step
                with self._bounds(), drawing(self.options.seed, step):
                    sent = self._run(task, step, parcels, binding)
            except BaseException as error:
                self._abandon(step)
                if isinstance(error, HeteroError):
                    error.at(device=self.provider.name, step=step)
                raise
            ended = time.perf_counter()
            self._calls += 1
            self._busy_s += ended - started
            if self.options.trace:
                self._spans.append(Span(f"partition {partition}", self.provider.name, step, started, ended))
            return sent

    @contextmanager
    def _bounds(self) -> Iterator[None]:
        """What holds while kernels compile and run: IEEE arithmetic without warnings, values within bounds."""
        with np.errstate(all="ignore"), limited(min(self.options.max_value_bytes, machine_bytes())):
            yield

    def _run(
        self, task: Task, step: int, parcels: Sequence[Sequence[Value]], binding: Binding | None
    ) -> list[list[Value]]:
        values = self._steps.setdefault(step, {})
        if len(parcels) != len(task.receives):
            raise TransportError(
                f"partition {task.partition} wants {len(task.receives)} parcels, got {len(parcels)}"
            )
        for receive, parcel in zip(task.receives, parcels, strict=True):
            if len(parcel) != len(receive.values):
                raise TransportError(
                    f"parcel {receive.parcel} holds {len(parcel)} of {len(receive.values)} values"
                )
            values.update(zip(receive.values, parcel, strict=True))
            self._bytes_in += sum(map(value_bytes, parcel))
        program = task.program
        for state in self._states.values():
            state.settle(step)
            if any(p.name == state.spec.input for p in program.inputs):
                values[state.spec.input] = state.value()
        try:
            inputs = [values[p.name] for p in program.inputs]
        except KeyError as cause:
            raise TransportError(
                f"partition {task.partition} reads a value that no parcel and no earlier partition brought",
                operand=str(cause.args[0]),
            ) from cause
        results = self._run_with_room(task.partition, inputs, self._pins(program, inputs, binding))
        values.update(zip([p.name for p in program.outputs], results, strict=True))
        shapes = self._propose(step, program, values)
        sent = [
            [
                Resident(shapes[name])
                if (send.parcel, name) in self._withheld
                else self._to_host(values[name])
                for name in send.values
            ]
            for send in task.sends
        ]
        self._bytes_out += sum(value_bytes(v) for parcel in sent for v in parcel)
        for name in task.drops:
            values.pop(name, None)
        if task.last:
            self._steps.pop(step, None)
        # errors of enqueued work belong to this step, not to one that another thread runs next
        self.provider.synchronize()
        return sent

    # -- state ---------------------------------------------------------------------------------------------------
    def bind_state(self, specs: Sequence[StateSpec], withheld: Iterable[tuple[int, str]]) -> None:
        """Keep these values here between steps, from nothing (zeros where they do not grow) on.

        `withheld`: (parcel, name) pairs that leave as Resident. Raises: StateError for a name that is not this child's.
        """
        with self._lock:
            self._check_open()
            read = {p.name for t in self._tasks.values() for p in t.program.inputs}
            made = {p.name for t in self._tasks.values() for p in t.program.outputs}
            for spec in specs:
                if spec.input not in read or spec.output not in made:
                    raise StateError(
                        f"{spec.input} and {spec.output} are not both here", device=self.provider.name
                    )
            self._states = {spec.input: State(self.provider, spec) for spec in specs}
            self._withheld = frozenset(withheld)
            for runner in self._runners.values():
                runner.bind_states(list(self._states.values()))

    def change_state(self, change: StateChange) -> dict[str, HostArray]:
        """Between steps: apply `change` to every state. Returns copies of the values where it asks for them."""
        with self._lock:
            self._check_open()
            for state in self._states.values():
                state.settle(NO_STEP)
            return change.apply(self._states)

    def _pins(self, program: Program, inputs: Sequence[Value], binding: Binding | None) -> Pins | None:
        if binding is None or not self.provider.is_host:
            return None
        read = {
            k: value
            for k, (port, value) in enumerate(zip(program.inputs, inputs, strict=True))
            if port.name in binding.inputs and isinstance(value, np.ndarray)
        }
        written = {
            port.slot: array
            for port in program.outputs
            if (array := binding.outputs.get(port.name)) is not None and writable_in_place(array)
        }
        return Pins(read, written) if read or written else None

    def _run_with_room(self, partition: int, inputs: list[Value], pins: Pins | None) -> list[Value]:
        """Run a partition; states that are full and may grow do so first, as often as it takes."""
        runner = self._runners[partition]
        while True:
            try:
                return runner.run(inputs, pins)
            except StateError as error:
                full = [s for s in self._states.values() if s.spec.elastic and s.spec.output == error.operand]
                if not full:
                    raise
                for state in full:
                    state.grow()
                for bound in self._runners.values():
                    bound.drop_sections()
                ports = self._tasks[partition].program.inputs
                inputs = [
                    self._states[p.name].value() if p.name in self._states else value
                    for p, value in zip(ports, inputs, strict=True)
                ]

    def _propose(self, step: int, program: Program, values: dict[str, Value]) -> dict[str, tuple[int, ...]]:
        """Hand what the step made of its states to them; returns the shapes, by output name."""
        made = {s.spec.output: s for s in self._states.values()}
        shapes: dict[str, tuple[int, ...]] = {}
        for port in program.outputs:
            state, value = made.get(port.name), values[port.name]
            if state is None:
                continue
            shapes[port.name] = shape = tuple(value.shape)
            if isinstance(value, Resident):
                state.propose(step, shape)
                axis = state.spec.axis
                values[port.name] = state.value() if axis is None else state.rows(0, shape[axis])
            else:
                here = self.provider.upload(value) if isinstance(value, np.ndarray) else value
                state.propose(step, shape, here)
        return shapes

    def _to_host(self, value: Value) -> Value:
        if value is None or isinstance(value, np.ndarray | MapValue):
            return value
        if isinstance(value, SequenceValue):
            return value.mapped(self._to_host)
        if isinstance(value, Element):
            return value.source
        return self.provider.download(value)

    def drop(self, step: int) -> None:
        """Forget a step that failed elsewhere."""
        with self._lock:
            if not self._closed:
                self._abandon(step)

    def _abandon(self, step: int) -> None:
        """Drop a failed step's values, and what it left on the stream: neither its memory nor its errors may meet the
        next step."""
        self._steps.pop(step, None)
        for state in self._states.values():
            state.abandon(step)
        with suppress(HeteroError):  # the step has its error already
            self.provider.synchronize()

    def take_spans(self) -> list[Span]:
        """The spans recorded since the last call."""
        with self._lock:
            spans, self._spans = self._spans, []
            if self._context is not None and self._context.ops is not None:
                spans += self._context.ops.spans
                self._context.ops.spans = []
            return spans

    def stats(self) -> dict[str, Any]:
        """Counters: runs, kernel cache, sections, memory, bytes in and out; `memory_plans` by partition, of the shapes
        that were run lately (`memory_plan.MemoryPlan`)."""
        with self._lock:
            out: dict[str, Any] = {
                "provider": self.provider.name,
                "calls": self._calls,
                "busy_s": round(self._busy_s, 6),
                "bytes_in": self._bytes_in,
                "bytes_out": self._bytes_out,
                "resident_steps": len(self._steps),
                "extensions": len(self._extensions),
            }
            if self._context is not None:
                context = self._context
                out |= dataclasses.asdict(context.statistics)
                out["kernel_hits"] = context.kernels.hits
                out["kernel_misses"] = context.kernels.misses
                out["graph_slots"] = {name: s.statistics() for name, s in context.graph_slots.items()}
                out["state_bytes_copied"] = sum(s.copied_bytes for s in self._states.values())
                out["state_bytes"] = sum(s.nbytes for s in self._states.values())
                out["arena_bytes"] = sum(a.nbytes for a in context.arenas)
                plans = ((k, runner.memory_plan()) for k, runner in self._runners.items())
                out["memory_plans"] = {
                    k: {**dataclasses.asdict(plan), "reuse_ratio": plan.reuse_ratio}
                    for k, plan in plans
                    if plan is not None
                }
            out["memory"] = self.provider.stats()
            return out

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this child is closed", device=self.provider.name)

    def _drop_programs(self) -> None:
        for runner in self._runners.values():
            runner.close()
        self._runners, self._tasks = {}, {}
        self._states = {}
        self._steps.clear()
        self._context = None

    def close(self) -> None:
        """Free everything. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._drop_programs()
            self._extensions.close()
            self.provider.close()
            if self._host is not self.provider:
                self._host.close()


def value_bytes(value: Value) -> int:
    """Bytes of a value's arrays, and of what a map holds as numbers (of text, of the references to it)."""
    if value is None or isinstance(value, Resident):
        return 0
    if isinstance(value, MapValue):
        return len(value) * (8 + value.value_dtype.itemsize)
    if isinstance(value, SequenceValue):
        return sum(map(value_bytes, value))
    return int(value.nbytes)
