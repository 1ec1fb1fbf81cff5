"""Runs one program on one child: finds or builds the sections for the inputs' specs, calls them, collects outputs."""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.errors import HeteroError
from hetero.kernels.base import Compiled
from hetero.kernels.jit import enabled
from hetero.kernels.limits import check_declared
from hetero.program.program import NO_SLOT, Dispatch, Program
from hetero.providers.base import Provider
from hetero.runtime.analysis import analyse, escaping_from
from hetero.runtime.builder import Builder
from hetero.runtime.context import Context as Context
from hetero.runtime.elements import arrived, deferred
from hetero.runtime.frames import Frames, Iteration, escaping_outputs
from hetero.runtime.fusion import Fused, fuse
from hetero.runtime.operands import contiguous_copy
from hetero.runtime.section import Key, Result, Section, locate, value_spec
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


class Runner:
    """A program with its table, its sections and what was derived from it. Not reentrant: one run at a time.

    Raises from `run`: whatever a kernel raises, as a HeteroError that names node, op and device. An error leaves the
    table clear and the sections as they were.

    `constants`: inputs (by position) that never change; what is passed there is not looked at. `iteration`: how a loop
    drives this body; its results may then lie in memory that the next run overwrites (`frames` tells which).
    """

    def __init__(
        self,
        program: Program,
        context: Context,
        depth: int = 0,
        constants: Mapping[int, Slot] | None = None,
        iteration: Iteration | None = None,
    ) -> None:
        self.context = context
        self.depth = depth
        self.provider = context.provider
        self.host = context.host
        self.options = context.options
        self.statistics = context.statistics
        fused = fuse(program) if self.options.fuse_elementwise and self.provider.fuses else Fused(program)
        if fused.until and not enabled():  # asked last, since that imports numba
            fused = Fused(program)
        self.program = program = fused.program
        self.runs = fused.until
        self.analysis = analyse(program)
        self.table = Table(program.n_slots)
        self.folded: dict[int, tuple[HostArray | None, ...]] = {}
        self._constants = {p.slot: context.weight(p.name) for p in program.constants}
        self._roots: OrderedDict[Signature, Section] = OrderedDict()
        self._limit = context.options.max_specializations if depth == 0 else BODY_SPECIALIZATIONS
        self._fixed = dict(constants or {})
        self._moving = tuple(k for k in range(len(program.inputs)) if k not in self._fixed)
        self._value_inputs = tuple(k for k in self.analysis.value_inputs if k not in self._fixed)
        self._value_misses = 0
        self._last: tuple[Signature, Section] | None = None
        self.frames: Frames | None = None
        self._escaping = self.analysis.escaping
        self._outputs = frozenset(p.slot for p in program.outputs)
        if iteration is not None and self.options.frame_bytes:
            self._escaping = _escaping(program, iteration)
            self.frames = Frames(program, self.provider, iteration, self._escaping, self.options.frame_bytes)
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
        instruction, definition = self.program.instructions[at], self.analysis.kernels[at]
        op = instruction.op

        def compiled() -> Compiled:
            if instruction.dispatch is Dispatch.EXTENSION and self.context.extensions is not None:
                kernel = self.context.extensions.compile(op, specs, provider)
            else:
                kernel = provider.compile(op, specs)
            check_declared(op, kernel)
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

    def escapes(self, index: int, spec: Spec | None) -> bool:
        """Whether slot `index`, of this spec, must have memory of its own, since that outlives the run."""
        return index in self._escaping or (
            self.frames is not None and index in self._outputs and not self.frames.fits(spec)
        )

    def control_flow(self, at: int, operands: Sequence[Slot]) -> ControlFlow:
        """The runner of a control-flow instruction. `operands`: of them, those that are constant are so for good."""
        from hetero.runtime.flows import control_flow  # which needs runners for the bodies

        flow = self._flows.get(at)
        if flow is None:
            instruction = self.program.instructions[at]
            constants = {
                k: Slot(Kind.CONSTANT, o.spec, NO_SLOT, False, o.array, o.value)
                for k, o in enumerate(operands)
                if o.kind is Kind.CONSTANT
            }
            flow = self._flows[at] = control_flow(instruction, self.context, self.depth + 1, constants)
            self.statistics.bodies_built += len(instruction.op.bodies())
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
            self._keep(self._roots, (key, ()), self._build(0, self._entry(key), None, ()))

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Outputs for inputs, both in the program's order: arrays of the provider (or host arrays, which a device
        provider uploads), SequenceValue, or None. Outputs are the caller's; inputs are only borrowed. The caller holds
        np.errstate(all="ignore"), so that no kernel has to."""
        try:
            section = self._start(inputs)
            while section.tail is not None:
                section = self._next(section)
            self.statistics.runs += 1
            return self._collect(section)
        finally:
            self.table.clear()

    def _start(self, inputs: Sequence[Any]) -> Section:
        """Run the first section: the last one again where the specs still hold, else another, or a new one."""
        if self._last is not None and not self._value_inputs and self._holds(self._last[0][0], inputs):
            section = self._last[1]
        else:
            if self.frames is not None:
                inputs = self.frames.detached(inputs)
            self._watch_values()
            key = self._signature(inputs)
            found = self._roots.get(key)
            if found is None:
                return self._first(key, inputs)
            self._roots.move_to_end(key)
            self._last = key, found
            section = found
        self._load(section, inputs)
        self._call(section)
        return section

    def _load(self, section: Section, inputs: Sequence[Any]) -> None:
        """Put the inputs where the section's calls look for them."""
        table, ports, frames = self.table.values, self.program.inputs, section.frames
        for k in self._moving:
            value = inputs[k]
            if value is not None and k not in frames:
                table[ports[k].slot] = self._arrive(ports[k].name, value)
        if self.frames is not None:
            self.frames.fill(section, inputs)

    def _holds(self, key: Key, inputs: Sequence[Any]) -> bool:
        """Whether the inputs have the specs of `key`."""
        for k, spec in zip(self._moving, key, strict=True):
            value = inputs[k]
            if spec.__class__ is not TensorSpec:
                if value_spec(value) != spec:
                    return False
            elif getattr(value, "shape", None) != spec.shape or value.dtype != spec.dtype:
                return False
        return True

    def _arrive(self, name: str, value: Any) -> Any:
        """The value in this provider's memory; the elements of a sequence come when they are read."""
        if self.provider.is_host:
            return value
        if isinstance(value, SequenceValue):
            return (
                value if self.depth else deferred(value)
            )  # a body gets what arrived with the program around it
        try:
            return arrived(self.provider, value)
        except HeteroError as error:
            raise error.at(operand=name) from error.__cause__

    def _signature(self, inputs: Sequence[Any]) -> Signature:
        specs = tuple([value_spec(inputs[k]) for k in self._moving])
        values = tuple([inputs[k].tobytes() if _is_small(inputs[k]) else None for k in self._value_inputs])
        return specs, values

    def _first(self, key: Signature, inputs: Sequence[Any]) -> Section:
        """Build the first section for these inputs, and run it."""
        live = self._entry(key[0])
        for k in self._value_inputs:
            if _is_small(inputs[k]):
                live.slots[self.program.inputs[k].slot].value = inputs[k].copy()
        if self._value_inputs and any(known[0] == key[0] for known in self._roots):
            self._value_misses += 1  # shapes that are known, with values that are not
        section = self._build(0, live, None, (), inputs)
        self._keep(self._roots, key, section)
        self._last = key, section
        return section

    def _entry(self, specs: Sequence[Spec]) -> Liveness:
        """What is live when the program starts: constants, and inputs of these specs."""
        live = Liveness()
        for index, slot in self._constants.items():
            live.define(index, slot)
        for k, constant in self._fixed.items():
            live.define(self.program.inputs[k].slot, constant)
        for k, spec in zip(self._moving, specs, strict=True):
            port = self.program.inputs[k]
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
        self,
        start: int,
        live: Liveness,
        previous: Section | None,
        key: Key,
        inputs: Sequence[Any] | None = None,
    ) -> Section:
        """Build the section from instruction `start` on, and run it; the first one without `inputs` is not run."""
        arena = self.context.arena(self.depth)
        lease = arena.lease(live.buffers.values(), reuse=self.options.reuse_buffers)
        builder = Builder(self, start, live, lease, call=previous is not None or inputs is not None)
        try:
            if previous is not None:
                builder.enter(previous, key)
            elif inputs is not None:
                if self.frames is not None:
                    builder.section.frames = self.frames.lay_out(live, lease)
                self._load(builder.section, inputs)
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
            cache.popitem(last=False)[1].close()  # never the one that `_last` names: it was used last
            self.statistics.sections_evicted += 1

    def _watch_values(self) -> None:
        """Stop keying on input values that differ in every run: shapes are then computed as data.

        Between runs only: a run under way stands on its sections' buffers.
        """
        if self._value_inputs and self._value_misses > 4 * self._limit:
            self._value_inputs = ()
            self._drop_sections()

    def _collect(self, last: Section) -> list[Any]:
        if last.results is None:
            last.results = [self._result(last, k) for k in range(len(self.program.outputs))]
        table = self.table.values
        outputs = [
            table[slot] if slot != NO_SLOT else self._copied(value) if copied else value
            for slot, value, copied in last.results
        ]
        if self.frames is not None:
            self.frames.lend(last)
        return outputs

    def _result(self, last: Section, output: int) -> Result:
        """Where output number `output` is found once `last` ran."""
        slot = last.exit.slots.get(self.program.outputs[output].slot)
        if slot is None or slot.kind is Kind.NOTHING:
            return NO_SLOT, None, False
        if slot.volatile:
            return self.program.outputs[output].slot, None, False
        if slot.kind in (Kind.CONSTANT, Kind.KNOWN):
            if self.depth and not self.provider.is_host:  # what encloses the body computes with it
                if slot.array is None and slot.value is not None:
                    slot.array = self.provider.upload(slot.value)
                return NO_SLOT, slot.array, False
            value = slot.array if slot.value is None else slot.value
            return NO_SLOT, value, slot.kind is Kind.KNOWN
        assert self.frames is not None, "results of a program that is not iterated have memory of their own"
        copied = self.frames.clobbered(output, slot)
        if not copied and slot.array is not None:
            last.lent[id(slot.array)] = slot.array
        return NO_SLOT, slot.array, copied

    def _copied(self, value: Any) -> Any:
        return value.copy() if isinstance(value, np.ndarray) else contiguous_copy(self.provider, value)

    def _drop_sections(self) -> None:
        self._last = None
        for section in self._roots.values():
            section.close()
        self._roots.clear()

    def close(self) -> None:
        """Drop every section and give their buffers back."""
        self._drop_sections()
        for flow in self._flows.values():
            flow.close()


def _escaping(program: Program, iteration: Iteration) -> frozenset[int]:
    """The slots of an iterated body whose memory outlives an iteration."""
    escaping = escaping_from(program, ())
    while True:
        wider = escaping_from(program, escaping_outputs(program, iteration, escaping))
        if wider == escaping:
            return escaping
        escaping = wider


def _is_small(value: Any) -> bool:
    """Whether an input that decides shapes takes part in the signature by its value."""
    return isinstance(value, np.ndarray) and value.size <= _VALUE_LIMIT


def _declared_spec(type_: ValueType | None) -> TensorSpec | None:
    """The spec that a declared type fixes, if it does."""
    if not isinstance(type_, TensorType) or type_.dtype is None or type_.shape is None:
        return None
    extents = tuple(d for d in type_.shape if isinstance(d, int))
    return TensorSpec(numpy_dtype(type_.dtype), extents) if len(extents) == len(type_.shape) else None
