"""Runs one program on one child: finds or builds the sections for the inputs' specs, calls them, collects outputs."""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.errors import HeteroError
from hetero.kernels.base import Compiled
from hetero.options import RuntimeOptions
from hetero.program.program import NO_SLOT, Dispatch, Program
from hetero.providers.base import Provider
from hetero.runtime.analysis import analyse
from hetero.runtime.arena import Arena
from hetero.runtime.builder import Builder
from hetero.runtime.kernel_cache import KernelCache
from hetero.runtime.section import Key, Section, locate, value_spec
from hetero.runtime.slots import Kind, Liveness, Slot, Table
from hetero.types import (
    ABSENT,
    HostArray,
    SequenceValue,
    Spec,
    TensorSpec,
    TensorType,
    ValueType,
    numpy_dtype,
)

if TYPE_CHECKING:
    from hetero.runtime.control_flow import ControlFlow

_VALUE_LIMIT = 64
"""Elements of an input whose value may take part in the signature."""
Signature = tuple[Key, tuple[bytes | None, ...]]
"""Specs of all inputs, and the values of those that decide shapes."""
BODY_SPECIALIZATIONS = 4
"""Input signatures that a body of control flow keeps bound."""


@dataclass(slots=True)
class Statistics:
    """Counters of one child."""

    runs: int = 0
    sections_built: int = 0
    sections_reused: int = 0
    sections_evicted: int = 0
    folded: int = 0
    views: int = 0
    view_copies: int = 0
    in_place: int = 0
    contiguous_copies: int = 0
    volatile_steps: int = 0
    peak_live_bytes: int = 0
    body_runs: int = 0
    bodies_built: int = 0


@dataclass(slots=True)
class Context:
    """What all programs of one child share. `host` computes shape arithmetic; it is `provider` where that is a host."""

    provider: Provider
    host: Provider
    options: RuntimeOptions
    kernels: KernelCache
    weights: Mapping[str, HostArray]
    statistics: Statistics = field(default_factory=Statistics)
    arenas: list[Arena] = field(default_factory=list)
    constants: dict[str, Slot] = field(default_factory=dict)

    def arena(self, depth: int) -> Arena:
        """The arena of a nesting level."""
        while len(self.arenas) <= depth:
            self.arenas.append(Arena(self.provider))
        return self.arenas[depth]

    def weight(self, name: str) -> Slot:
        """The constant slot of an initializer, one for all programs, so that its device copy is shared too."""
        slot = self.constants.get(name)
        if slot is None:
            value = self.weights[name]
            array = value if self.provider.is_host else None
            spec = TensorSpec(value.dtype, value.shape)
            slot = self.constants[name] = Slot(Kind.CONSTANT, spec, -1, False, array, value)
        return slot


class Runner:
    """A program with its table, its sections and what was derived from it. Not reentrant: one run at a time.

    Raises from `run`: whatever a kernel raises, as a HeteroError that names node, op and device. An error leaves the
    table clear and the sections as they were.
    """

    def __init__(self, program: Program, context: Context, depth: int = 0) -> None:
        self.program = program
        self.context = context
        self.depth = depth
        self.provider = context.provider
        self.host = context.host
        self.options = context.options
        self.statistics = context.statistics
        self.analysis = analyse(program)
        self.table = Table(program.n_slots)
        self.folded: dict[int, tuple[HostArray | None, ...]] = {}
        self._constants = {p.slot: context.weight(p.name) for p in program.constants}
        self._roots: OrderedDict[Signature, Section] = OrderedDict()
        self._limit = context.options.max_specializations if depth == 0 else BODY_SPECIALIZATIONS
        self._value_inputs = self.analysis.value_inputs
        self._value_misses = 0
        self._flows: dict[int, ControlFlow] = {}
        self._on_host: dict[int, bool] = {}
        self._types: dict[int, ValueType | None] = {
            p.slot: p.type for p in (*program.inputs, *program.constants)
        }
        for instruction in program.instructions:
            self._types.update(zip(instruction.outputs, instruction.types, strict=True))

    # -- what sections ask for -----------------------------------------------------------------------------------
    def compile(self, at: int, provider: Provider, specs: Sequence[Spec]) -> Compiled:
        """The kernel of instruction `at` on `provider` for `specs`, from the child's cache.

        Unless the kernel is `strided`, it asks for contiguous operands throughout: its bits must not depend on whether
        a value is a view here or came as a copy from another child.
        """
        op, definition = self.program.instructions[at].op, self.analysis.kernels[at]

        def compiled() -> Compiled:
            kernel = provider.compile(op, specs)
            if kernel.view is not None or (definition is not None and definition.strided):
                return kernel
            tensors = frozenset(k for k, spec in enumerate(specs) if isinstance(spec, TensorSpec))
            return replace(kernel, contiguous=tensors)

        return self.context.kernels.get((id(self), at, provider.name), specs, compiled)

    def on_host(self, at: int) -> bool:
        """Whether instruction `at` is shape arithmetic that this device has no kernel for."""
        instruction = self.program.instructions[at]
        if instruction.dispatch is not Dispatch.HOST:
            return False
        known = self._on_host.get(at)
        if known is None:
            types = [self._types.get(s) for s in instruction.inputs]
            known = self._on_host[at] = not self.provider.supports_native(instruction.op, types).ok
        return known

    def control_flow(self, at: int) -> ControlFlow:
        """The runner of a control-flow instruction."""
        from hetero.runtime.control_flow import control_flow

        flow = self._flows.get(at)
        if flow is None:
            flow = self._flows[at] = control_flow(self.program.instructions[at], self.context, self.depth + 1)
            self.statistics.bodies_built += len(self.program.instructions[at].op.bodies())
        return flow

    # -- running -------------------------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Bind now, without a call, where the declared inputs fix every shape up to the first that depends on data.

        What cannot be bound is left to the first run, whose error then belongs to a step.
        """
        specs = [_declared_spec(port.type) for port in self.program.inputs]
        if self._value_inputs or None in specs:
            return
        key = tuple(s for s in specs if s is not None)
        with suppress(HeteroError):
            self._keep(self._roots, (key, ()), self._build(0, self._entry(key), None, (), call=False))

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Outputs for inputs, both in the program's order: arrays of the provider (or host arrays, which a device
        provider uploads), SequenceValue, or None. Outputs are the caller's; inputs are only borrowed. The caller holds
        np.errstate(all="ignore"), so that no kernel has to."""
        table = self.table.values
        self._watch_values()
        try:
            key = self._signature(inputs)
            for port, value in zip(self.program.inputs, inputs, strict=True):
                table[port.slot] = value if value is None else self._arrive(port.name, value)
            section = self._root(key, inputs)
            while section.tail is not None:
                section = self._next(section)
            self.statistics.runs += 1
            return self._collect(section)
        finally:
            self.table.clear()

    def _arrive(self, name: str, value: Any) -> Any:
        try:
            return self._enter(value)
        except HeteroError as error:
            raise error.at(operand=name) from error.__cause__

    def _enter(self, value: Any) -> Any:
        """The value in this provider's memory; an element that a sequence holds twice is uploaded once."""
        if self.provider.is_host:
            return value
        if isinstance(value, np.ndarray):
            return self.provider.upload(value)
        if isinstance(value, SequenceValue):
            there = {id(v): self._enter(v) for v in {id(v): v for v in value}.values()}
            return SequenceValue([there[id(v)] for v in value], value.dtype)
        return value

    def _signature(self, inputs: Sequence[Any]) -> Signature:
        specs = tuple([value_spec(v) for v in inputs])
        values = tuple([inputs[k].tobytes() if _is_small(inputs[k]) else None for k in self._value_inputs])
        return specs, values

    def _root(self, key: Signature, inputs: Sequence[Any]) -> Section:
        section = self._roots.get(key)
        if section is not None:
            self._roots.move_to_end(key)
            self._call(section)
            return section
        live = self._entry(key[0])
        for k in self._value_inputs:
            if _is_small(inputs[k]):
                live.slots[self.program.inputs[k].slot].value = inputs[k].copy()
        if self._value_inputs and any(known[0] == key[0] for known in self._roots):
            self._value_misses += 1  # shapes that are known, with values that are not
        section = self._build(0, live, None, ())
        self._keep(self._roots, key, section)
        return section

    def _entry(self, specs: Sequence[Spec]) -> Liveness:
        """What is live when the program starts: constants, and inputs of these specs."""
        live = Liveness()
        for index, slot in self._constants.items():
            live.define(index, slot)
        for port, spec in zip(self.program.inputs, specs, strict=True):
            kind = Kind.BORROWED if isinstance(spec, TensorSpec) else Kind.SEQUENCE
            live.define(port.slot, Slot(Kind.NOTHING if spec == ABSENT else kind, spec, port.slot, True))
        return live

    def _next(self, section: Section) -> Section:
        instruction = self.program.instructions[section.stop - 1]
        assert section.tail is not None
        try:
            key = section.tail()
        except Exception as error:
            ours = locate(error, instruction, self.provider)
            raise ours from ours.__cause__
        following = section.next.get(key)
        if following is not None:
            self._call(following)
            if len(section.next) > 1:
                section.next.move_to_end(key)
            return following
        following = self._build(section.stop, section.exit.copy(), section, key)
        self._keep(section.next, key, following)
        return following

    def _call(self, section: Section) -> None:
        self.statistics.sections_reused += 1
        calls = iter(section.calls)
        try:
            deque(map(operator.call, calls), maxlen=0)  # a loop in C: a quarter faster than a for statement
        except Exception as error:
            at = section.nodes[len(section.calls) - operator.length_hint(calls) - 1]
            ours = locate(error, self.program.instructions[at], self.provider)
            raise ours from ours.__cause__

    def _build(
        self, start: int, live: Liveness, previous: Section | None, key: Key, *, call: bool = True
    ) -> Section:
        arena = self.context.arena(self.depth)
        lease = arena.lease(live.buffers.values(), reuse=self.options.reuse_buffers)
        builder = Builder(self, start, live, lease, call=call)
        try:
            if previous is not None:
                builder.enter(previous, key)
            section = builder.build()
        except BaseException:
            lease.close()
            raise
        self.statistics.sections_built += 1
        self.statistics.peak_live_bytes = max(self.statistics.peak_live_bytes, lease.peak_bytes)
        return section

    def _keep(self, cache: OrderedDict[Any, Section], key: Any, section: Section) -> None:
        cache[key] = section
        if len(cache) > self._limit:
            cache.popitem(last=False)[1].close()
            self.statistics.sections_evicted += 1

    def _watch_values(self) -> None:
        """Stop keying on input values that differ in every run: shapes are then computed as data.

        Between runs only: a run under way stands on its sections' buffers.
        """
        if self._value_inputs and self._value_misses > 4 * self._limit:
            self._value_inputs = ()
            self.close()

    def _collect(self, last: Section) -> list[Any]:
        slots, table = last.exit.slots, self.table.values
        outputs: list[Any] = []
        for port in self.program.outputs:
            slot = slots.get(port.slot)
            if slot is None or port.slot == NO_SLOT or slot.kind is Kind.NOTHING:
                outputs.append(None)
            elif slot.volatile:
                outputs.append(table[port.slot])
            elif slot.value is not None:
                outputs.append(slot.value.copy() if slot.kind is Kind.KNOWN else slot.value)
            else:
                outputs.append(slot.array)
        return outputs

    def close(self) -> None:
        """Drop every section and give their buffers back."""
        for section in self._roots.values():
            section.close()
        self._roots.clear()
        for flow in self._flows.values():
            flow.close()


def _is_small(value: Any) -> bool:
    """Whether an input that decides shapes takes part in the signature by its value."""
    return isinstance(value, np.ndarray) and value.size <= _VALUE_LIMIT


def _declared_spec(type_: ValueType | None) -> TensorSpec | None:
    """The spec that a declared type fixes, if it does."""
    if not isinstance(type_, TensorType) or type_.dtype is None or type_.shape is None:
        return None
    extents = tuple(d for d in type_.shape if isinstance(d, int))
    return TensorSpec(numpy_dtype(type_.dtype), extents) if len(extents) == len(type_.shape) else None
