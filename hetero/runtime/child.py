"""The child executor: runs one provider's partitions, step by step, wherever it lives; plain Python, no Ray."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np

from hetero.errors import (
    ClosedError,
    HeteroError,
    MemoryLimitError,
    ProgramError,
    StateError,
    TransportError,
)
from hetero.extensions.registry import load_modules
from hetero.kernels.limits import machine_bytes
from hetero.kernels.randomness import RUN
from hetero.options import RuntimeOptions
from hetero.program.validate import validate
from hetero.providers.base import Provider, ProviderConfig
from hetero.providers.registry import create
from hetero.runtime.assignment import Assignment, Task
from hetero.runtime.child_states import ChildStates
from hetero.runtime.context import artifacts_of
from hetero.runtime.device_buffers import BufferChange, BufferRef, DeviceBuffers
from hetero.runtime.elements import Element
from hetero.runtime.expert_banks import ExpertBank, expert_banks, summary
from hetero.runtime.extensions import Extensions
from hetero.runtime.kernel_cache import KernelCache
from hetero.runtime.pins import Binding, Pins, pins_of
from hetero.runtime.runner import Context, Runner
from hetero.runtime.state import Resident, StateChange, StateSpec
from hetero.runtime.state_copy import StateCopy
from hetero.runtime.steady import Steady, steady
from hetero.runtime.surroundings import Surroundings
from hetero.runtime.weight_uses import weight_uses
from hetero.trace import Span
from hetero.types import HostArray, MapValue, RemoteElement, SequenceValue

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
        self._artifacts = artifacts_of(provider)
        self._banks: dict[str, ExpertBank] | None = None
        self._context: Context | None = None
        self._tasks: dict[int, Task] = {}
        self._runners: dict[int, Runner] = {}
        self._steps: dict[int, dict[str, Value]] = {}
        self._states = ChildStates(provider)
        self._pins: dict[int, tuple[Binding, Pins]] = {}
        self._buffers = DeviceBuffers(provider)
        self._spans: list[Span] = []
        self._closed = False
        self._driven: str | None = None
        self._plain = True
        """Whether nothing is kept here between steps."""
        self._steady: dict[str, dict[int, Steady | None]] = {}
        """By graph slot and partition, the run that comes next."""
        self._next: dict[int, Steady | None] = {}
        """Of the graph slot that is driven."""
        self._surroundings = Surroundings(min(options.max_value_bytes, machine_bytes()), options.seed)
        self._under_way = self._surroundings.under_way
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
            validate(task.program, schemas=False)  # whoever made the plan, or read it, has asked those
        missing = [name for name in assignment.weights if name not in weights]
        if missing:
            raise ProgramError(f"no weights given for {missing[:5]}", device=self.provider.name)
        with self._lock:
            self._check_open()
            kernels = KernelCache(self.options.kernel_cache_size)
            self._extensions.prepare(task.program for task in assignment.tasks.values())
            context = Context(
                self.provider,
                self._host,
                self.options,
                kernels,
                weights,
                extensions=self._extensions,
                artifacts=self._artifacts,
            )
            runners = {k: Runner(task.program, context) for k, task in assignment.tasks.items()}
            if self.options.weight_budget_bytes and not self.provider.is_host:
                with self._surroundings.between():
                    context.device_weights.plan(weight_uses(runners.values()))
            if self._context is not None:
                self._drop_programs()
                for artifacts in self._artifacts:
                    artifacts.advance()
            self._context, self._tasks, self._runners = context, dict(assignment.tasks), runners
            self._banks = None
            self._surroundings.settle(apart=self.provider.is_host and not self._extensions)
            with self._surroundings.between():
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
            steady = self._next.get(partition) if binding is None and graph_slot == self._driven else None
            if steady is None and partition not in self._tasks:
                self._check_open()
                raise TransportError(
                    f"partition {partition} is not this child's", device=self.provider.name, step=step
                )
            started = perf_counter()
            try:
                if steady is not None:
                    run = self._under_way
                    if RUN.get() is run:  # this thread dwells: nothing is to be entered
                        run.step = step
                        run.number += 1
                        sent = steady.run(parcels)
                    else:
                        sent = self._surroundings.run(step, steady.run, parcels)
                if steady is None or sent is None:
                    steady = None
                    sent = self._run_anew(self._tasks[partition], step, parcels, graph_slot, binding)
            except BaseException as error:
                if steady is not None:
                    self._bytes_in += steady.bytes_in
                self._abandon(step)
                if isinstance(error, HeteroError):
                    error.at(device=self.provider.name, step=step)
                elif isinstance(error, MemoryError):  # between kernels, each of which names its own
                    device = self.provider.name
                    raise MemoryLimitError(
                        f"{device} has no memory: {error}", device=device, step=step
                    ) from error
                raise
            ended = perf_counter()
            self._calls += 1
            self._busy_s += ended - started
            if steady is not None:
                self._bytes_in += steady.bytes_in
                self._bytes_out += steady.bytes_out
            if self.options.trace:
                self._spans.append(Span(f"partition {partition}", self.provider.name, step, started, ended))
            return sent

    def dwell(self) -> None:
        """This thread runs nothing but this child from now on: what surrounds each run is entered once, for good."""
        self._surroundings.dwell()

    def _run_anew(
        self,
        task: Task,
        step: int,
        parcels: Sequence[Sequence[Value]],
        graph_slot: str,
        binding: Binding | None,
    ) -> list[list[Value]]:
        """A run that is not known to be like the one before."""
        context = self._context
        if context is not None:
            if graph_slot != self._driven:
                context.drive(graph_slot)
                self._driven = graph_slot
                self._next = self._steady.setdefault(graph_slot, {})
            if context.ops is not None:
                context.ops.step = step
        inputs: Sequence[Value] | None = None
        if task.straight and self._plain and binding is None and len(parcels) == len(task.receives):
            inputs = parcels[0] if len(parcels) == 1 else list(itertools.chain(*parcels))
        if inputs is not None and len(inputs) == len(task.input_names):
            return self._surroundings.run(step, self._run_straight, task, inputs)
        return self._surroundings.run(step, self._run, task, step, parcels, binding)

    def _run(
        self, task: Task, step: int, parcels: Sequence[Sequence[Value]], binding: Binding | None
    ) -> list[list[Value]]:
        values = {} if task.alone else self._steps.setdefault(step, {})
        if len(parcels) != len(task.receives):
            raise TransportError(
                f"partition {task.partition} wants {len(task.receives)} parcels, got {len(parcels)}"
            )
        for receive, parcel in zip(task.receives, parcels, strict=True):
            if len(parcel) != len(receive.values):
                raise TransportError(
                    f"parcel {receive.parcel} holds {len(parcel)} of {len(receive.values)} values"
                )
            for name, value in zip(receive.values, parcel, strict=True):
                values[name] = value
                self._bytes_in += value.nbytes if type(value) is np.ndarray else value_bytes(value)
        program, states = task.program, self._states if self._states else None
        if states is not None:
            states.settle(step)
        results = self._called(task, values, binding, states)
        values.update(zip(task.output_names, results, strict=True))
        if states is not None:
            states.leave(
                step,
                program,
                values,
                read=not task.alone or (binding is not None and binding.on_device is not None),
            )
        on_device = None if binding is None else binding.on_device
        if on_device is not None:
            self._buffers.leave(on_device.outputs, task.output_names, values)
        sent = []
        for send in task.sends:
            parcel = []
            for name in send.values:
                value = values[name]
                if type(value) is np.ndarray and states is None and on_device is None:
                    parcel.append(value)
                    self._bytes_out += value.nbytes
                    continue
                stand_in = None if states is None else states.stands_for(send.parcel, name, values)
                if on_device is not None and (send.parcel, name) in on_device.withheld:
                    stand_in = Resident(tuple(value.shape))
                if stand_in is None and states is not None:
                    value = values[name] = states.real(name, value)
                value = self._to_host(value) if stand_in is None else stand_in
                self._bytes_out += value_bytes(value)
                parcel.append(value)
            sent.append(parcel)
        if not task.alone:
            for name in task.drops:
                values.pop(name, None)
            if task.last:
                self._steps.pop(step, None)
        # errors of enqueued work belong to this step, not to one that another thread runs next
        self.provider.synchronize()
        return sent

    def _run_straight(self, task: Task, arrived: Sequence[Value]) -> list[list[Value]]:
        """As `_run`, of a program that takes what arrives and whose results leave: most are."""
        for value in arrived:
            self._bytes_in += value.nbytes if type(value) is np.ndarray else value_bytes(value)
        inputs: list[Value] = [None] * len(arrived)
        for k, value in zip(task.arriving, arrived, strict=True):
            inputs[k] = value
        runner = self._runners[task.partition]
        made = runner.run(inputs)
        sent = []
        for numbers in task.leaving:
            for k in numbers:
                made[k] = value = self._to_host(made[k])
                self._bytes_out += value_bytes(value)
            sent.append([made[k] for k in numbers])
        self.provider.synchronize()
        known = self._next.get(task.partition)
        if known is None or not known.holds():
            self._next[task.partition] = steady(runner, task)
        return sent

    def _called(
        self, task: Task, values: dict[str, Value], binding: Binding | None, states: ChildStates | None
    ) -> list[Value]:
        """Run the task's program; where a state has no room and may grow, it does, and the program is run again."""
        runner = self._runners[task.partition]
        if self._buffers:
            self._buffers.enter(task.input_names, values)
        while True:
            if states is not None:
                states.enter(task.program, values)
            try:
                inputs = [values[name] for name in task.input_names]
            except KeyError as cause:
                raise TransportError(
                    f"partition {task.partition} reads a value that no parcel and no earlier partition brought",
                    operand=str(cause.args[0]),
                ) from cause
            pins = None if binding is None else self._pinned(task, inputs, binding)
            try:
                return runner.run(inputs, pins)
            except StateError as error:
                if states is None or not states.grown(error, self._runners.values()):
                    raise
                RUN.get().number += 1  # what is run again draws again what it drew

    def _pinned(self, task: Task, inputs: Sequence[Value], binding: Binding) -> Pins | None:
        """What the program reads and writes in place; the same object as long as nothing has changed."""
        if not self.provider.is_host:
            return None
        known = self._pins.get(task.partition)
        if (
            known is not None
            and known[0] is binding
            and all(inputs[k] is a for k, a in known[1].inputs.items())
        ):
            return known[1]
        pins = pins_of(task.program, inputs, binding)
        self._pins[task.partition] = binding, pins
        return pins

    # -- state ---------------------------------------------------------------------------------------------------
    def bind_state(self, specs: Sequence[StateSpec], withheld: Iterable[tuple[int, str]]) -> None:
        """Keep these values here between steps, from nothing (zeros where they do not grow) on.

        `withheld`: (parcel, name) pairs that leave as Resident. Raises: StateError for a name that is not this child's.
        """
        with self._lock:
            self._check_open()
            try:
                self._states.bind(specs, withheld, self._runners.values())
            finally:
                self._note_kept()

    def change_state(self, change: StateChange) -> dict[str, HostArray]:
        """Between steps: apply `change` to every state. Returns copies of the values where it asks for them."""
        with self._lock:
            self._check_open()
            return self._states.change(change)

    def change_buffer(self, change: BufferChange) -> HostArray | None:
        """Between steps: apply `change` to a buffer of the caller's. Raises: InputError, MemoryLimitError."""
        with self._lock:
            self._check_open()
            try:
                return self._buffers.change(change)
            finally:
                self._note_kept()

    def copy_state(self, number: int = 0, since: int | None = None) -> StateCopy:
        """Between steps: a copy of everything that is kept here between them; of rows that stay, only those that have
        come since copy `since`, if that was the last one. `number`: what it is called in later calls."""
        with self._lock:
            self._check_open()
            return self._states.copied(number, since)

    def restore_state(self, copied: StateCopy) -> None:
        """Keep what was copied, whole, and nothing that came after."""
        with self._lock:
            self._check_open()
            try:
                self._states.restore(copied, self._runners.values())
            finally:
                self._note_kept()

    def _note_kept(self) -> None:
        self._plain = not self._states and not self._buffers
        self._forget_steady()

    def _forget_steady(self) -> None:
        self._driven = None
        self._steady.clear()
        self._next = {}

    def _to_host(self, value: Value) -> Value:
        if type(value) is np.ndarray:  # which it mostly is, and which takes far less time to tell
            return value
        if value is None or isinstance(value, np.ndarray | MapValue | RemoteElement):
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
        self._states.abandon(step)
        with suppress(HeteroError):  # the step has its error already
            self.provider.synchronize()

    def expert_banks(self) -> dict[str, ExpertBank]:
        """The expert banks among the weights here, with each expert's bytes or why they cannot be told apart."""
        with self._lock:
            if self._banks is None:
                weights = {} if self._context is None else self._context.weights
                self._banks = expert_banks([t.program for t in self._tasks.values()], weights)
            return self._banks

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
                out["weights"] = context.device_weights.statistics()
                out["weights"]["expert_banks"] = summary(self.expert_banks())
                graphs, uploaded = self._artifacts
                out["artifacts"] = {"graphs": graphs.statistics(), "weights": uploaded.statistics()}
                out["graph_slots"] = {name: s.statistics() for name, s in context.graph_slots.items()}
                out |= self._states.statistics()
                out["device_buffer_bytes"] = self._buffers.nbytes
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
        self._states.clear()
        self._note_kept()
        self._pins.clear()
        self._banks = None
        self._steps.clear()
        if self._context is not None:
            self._context.device_weights.close()
        self._context = None

    def close(self) -> None:
        """Free everything. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._drop_programs()
            self._buffers.clear()
            self._extensions.close()
            self.provider.close()
            if self._host is not self.provider:
                self._host.close()


def value_bytes(value: Value) -> int:
    """Bytes of a value's arrays that are here, and of what a map holds as numbers (of text, its references)."""
    if type(value) is np.ndarray:
        return value.nbytes
    if type(value) is Resident:  # of which a decoder has dozens
        return 0
    if value is None or isinstance(value, Resident | BufferRef | RemoteElement):
        return 0
    if isinstance(value, MapValue):
        return len(value) * (8 + value.value_dtype.itemsize)
    if isinstance(value, SequenceValue):
        return sum(map(value_bytes, value))
    return int(value.nbytes)
