"""Runs one program on one child: finds or builds the sections for the inputs' specs, calls them, collects outputs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hetero.errors import HeteroError
from hetero.kernels.base import Compiled
from hetero.kernels.jit import enabled
from hetero.kernels.limits import check_declared
from hetero.kernels.tape import load_tapes
from hetero.program.program import NO_SLOT, Dispatch, Program
from hetero.providers.base import Provider
from hetero.runtime.analysis import analyse, escaping_from, may_view
from hetero.runtime.attending import join_attention
from hetero.runtime.biases import join_biases
from hetero.runtime.builder import Builder
from hetero.runtime.capture.replay import call_section
from hetero.runtime.context import Context as Context
from hetero.runtime.elements import arrived, deferred
from hetero.runtime.frames import Frames, Iteration, escaping_outputs
from hetero.runtime.fusion import Fused, fuse, uses_tapes
from hetero.runtime.memory_plan import MemoryPlan, memory_plan
from hetero.runtime.pins import Pins
from hetero.runtime.repeats import share_repeats
from hetero.runtime.results import collected
from hetero.runtime.roots import Roots, Signature
from hetero.runtime.section import Key, Section, locate
from hetero.runtime.slots import Kind, Liveness, Slot, Table
from hetero.runtime.state import State
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
        if self.options.share_repeats and self.provider.is_host:
            program = join_attention(share_repeats(program))
        taped = uses_tapes(program)
        if taped:
            load_tapes()  # half a second, once per process, which no step should take
        fuses = taped and self.options.fuse_elementwise and self.provider.fuses and enabled()
        if fuses:
            program = join_biases(program, _specs(program, context))
        fused = fuse(program) if fuses else Fused(program)
        self.program = program = fused.program
        self.runs = fused.until
        self.analysis = analyse(program)
        self.table = Table(program.n_slots)
        self.folded: dict[int, tuple[HostArray | None, ...]] = {}
        self._constants = {p.slot: context.weight(p.name) for p in program.constants}
        self._fixed = dict(constants or {})
        self.moving = tuple(k for k in range(len(program.inputs)) if k not in self._fixed)
        values = tuple(k for k in self.analysis.value_inputs if k not in self._fixed)
        limit = context.options.max_specializations if depth == 0 else BODY_SPECIALIZATIONS
        self.roots = Roots(self, values, limit)
        self.frames: Frames | None = None
        self._escaping = self.analysis.escaping
        self._rearranged: frozenset[int] = frozenset()
        self._outputs = frozenset(p.slot for p in program.outputs)
        self.iterated = iteration is not None
        limit_bytes = self.options.frame_bytes if self.iterated else self._stage_bytes()
        if limit_bytes and (self.iterated or depth == 0):
            iteration = iteration or Iteration({}, frozenset())
            self._escaping = _escaping(program, iteration) if self.iterated else self.analysis.lent
            self._rearranged = frozenset() if self.iterated else self.analysis.rearranged
            self.frames = Frames(program, self.provider, iteration, self._escaping, limit_bytes)
        self._flows: dict[int, ControlFlow] = {}
        self._pins: Pins | None = None
        self._states: dict[int, State] = {}
        self.kept: dict[int, State] = {}
        """Output slot -> the state that its value becomes."""
        self.appended: dict[int, State] = {}
        """Instruction -> the state behind which it writes its second operand."""
        self.preparing = False
        self._on_host: dict[int, bool] = {}
        self._types: dict[int, ValueType | None] = {
            p.slot: p.type for p in (*program.inputs, *program.constants)
        }
        for instruction in program.instructions:
            self._types.update(zip(instruction.outputs, instruction.types, strict=True))

    def _stage_bytes(self) -> int:
        """The largest value that an outermost program copies; on a device, to which all are copied anyway, any."""
        if not self.options.stage_bytes or self.provider.is_host:
            return self.options.stage_bytes
        return sys.maxsize

    # -- what sections ask for -----------------------------------------------------------------------------------
    def compile(self, at: int, provider: Provider, specs: Sequence[Spec]) -> Compiled:
        """The kernel of instruction `at` on `provider` for `specs`, from the child's cache.

        Unless the kernel is `strided`, it asks for contiguous operands throughout (but for its `blocks`, and those that
        it takes `as_they_lie`): its bits must not depend on whether a value is a view here or came as a copy from
        another child.
        """
        compiled = partial(self._compiled, at, provider, specs)
        return self.context.kernels.get((id(self), at, provider.name), specs, compiled)

    def _compiled(self, at: int, provider: Provider, specs: Sequence[Spec]) -> Compiled:
        instruction, definition = self.program.instructions[at], self.analysis.kernels[at]
        op = instruction.op
        if instruction.dispatch is Dispatch.EXTENSION and self.context.extensions is not None:
            kernel = self.context.extensions.compile(op, specs, provider)
        else:
            kernel = provider.compile(op, specs)
        check_declared(op, kernel)
        if kernel.view is not None and not may_view(instruction, definition):
            kernel = replace(kernel, view=None)
        if kernel.view is not None or (definition is not None and definition.strided):
            return kernel
        tensors = frozenset([k for k, spec in enumerate(specs) if isinstance(spec, TensorSpec)])
        blocks = kernel.blocks & tensors if provider.is_host else frozenset()
        contiguous = tensors - blocks
        if provider.is_host:
            contiguous -= kernel.as_they_lie
        if kernel.contiguous == contiguous and kernel.blocks == blocks:
            return kernel
        return replace(kernel, contiguous=contiguous, blocks=blocks)

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
        if self.pinned(index, spec) is not None:
            return False
        if index in self._escaping:
            return True
        if self.frames is None or index in self.kept:
            return False
        if index not in self._outputs and index not in self._rearranged:
            return False
        return not self.frames.fits(spec)

    def leaves(self, index: int) -> bool:
        """Whether slot `index` is a result of the run, or lies in the memory of one."""
        return index in self._outputs or index in self._escaping or index in self._rearranged

    def pinned(self, index: int, spec: Spec | None) -> HostArray | None:
        """The caller's array to write slot `index` into, where it is of this spec."""
        array = None if self._pins is None else self._pins.outputs.get(index)
        fits = (
            array is not None
            and isinstance(spec, TensorSpec)
            and spec == TensorSpec(array.dtype, array.shape)
        )
        return array if fits else None

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

    # -- state ---------------------------------------------------------------------------------------------------
    def bind_states(self, states: Sequence[State]) -> None:
        """From now on these states are read where the program has their inputs, and kept where it has their outputs.

        `run` gets `State.value()` for such inputs, or its spec alone, and returns Resident for what is in a state's
        buffer.
        """
        self.drop_sections()
        by_input, by_output = {s.spec.input: s for s in states}, {s.spec.output: s for s in states}
        ports = enumerate(self.program.inputs)
        self._states = {k: by_input[p.name] for k, p in ports if p.name in by_input}
        self.kept = {p.slot: by_output[p.name] for p in self.program.outputs if p.name in by_output}
        self.appended = {}
        past = {self.program.inputs[k].slot: state for k, state in self._states.items()}
        for at, i in enumerate(self.program.instructions):
            state = past.get(i.inputs[0]) if i.op.id == "Concat" and len(i.inputs) == 2 else None
            if state is None or self.kept.get(i.outputs[0]) is not state or state.spec.axis is None:
                continue
            rank = len(state.spec.spec.shape)
            if int(i.op.attr("axis", 0)) % rank == state.spec.axis and i.inputs[1] != i.inputs[0]:
                self.appended[at] = state

    # -- running -------------------------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Bind now, without a call, where the declared inputs fix every shape up to the first that depends on data. On
        a device, only what needs no weight: those are uploaded when something runs.

        What cannot be bound is left to the first run, whose error then belongs to a step.
        """
        specs = [_declared_spec(port.type) for port in self.program.inputs]
        if self.roots.value_inputs or None in specs:
            return
        key = tuple(s for s in specs if s is not None)
        self.preparing = True
        try:
            with suppress(HeteroError):
                self.roots.keep(
                    self.roots.sections,
                    Signature((key, (), b"")),
                    self.build(0, self.entry(key, {}), None, ()),
                )
        finally:
            self.preparing = False

    def run(self, inputs: Sequence[Any], pins: Pins | None = None) -> list[Any]:
        """Outputs for inputs, both in the program's order: arrays of the provider (or host arrays, which a device
        provider uploads), SequenceValue, or None. Outputs are the caller's; inputs are only borrowed. The caller holds
        np.errstate(all="ignore"), so that no kernel has to. `pins`: memory to read and write in place, on a host."""
        self._pins = pins
        try:
            section, inputs, ran = self.roots.choose(inputs, pins)
            if not ran:
                self._load(section, inputs)
                call_section(self.program, section, self.context)
            while section.tail is not None:
                section = self._next(section)
            self.statistics.runs += 1
            return self._collect(section) if self.iterated else collected(self, section)
        finally:
            self.table.clear()

    def _load(self, section: Section, inputs: Sequence[Any]) -> None:
        """Put the inputs where the section's calls look for them."""
        arriving = section.arriving
        if arriving is None:
            ports, elsewhere = self.program.inputs, {*section.frames, *self._states}
            if self._pins is not None:
                elsewhere.update(self._pins.inputs)
            places = ((k, ports[k].slot, ports[k].name) for k in self.moving if k not in elsewhere)
            arriving = section.arriving = tuple(places)
        for k, slot, name in arriving:
            value = inputs[k]
            if value is not None:
                self.table.values[slot] = self._arrive(name, value)
        if self.frames is not None:
            self.frames.fill(section, inputs)

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

    def entry(self, specs: Sequence[Spec], values: Mapping[int, HostArray]) -> Liveness:
        """What is live when the program starts: constants, and inputs of these specs and values."""
        live = Liveness()
        for index, slot in self._constants.items():
            live.define(index, slot)
        for k, constant in self._fixed.items():
            live.define(self.program.inputs[k].slot, constant)
        for index, slot in self.moving_slots(specs, values).items():
            live.define(index, slot)
        return live

    def moving_slots(self, specs: Sequence[Spec], values: Mapping[int, HostArray]) -> dict[int, Slot]:
        """The inputs of these specs and values that are not constant, by slot."""
        slots: dict[int, Slot] = {}
        ports, states = self.program.inputs, self._states
        pinned = {} if self._pins is None else self._pins.inputs
        for k, spec in zip(self.moving, specs, strict=True):
            index, array = ports[k].slot, pinned.get(k)
            state = None if array is not None else states.get(k)
            kind = Kind.BORROWED if spec.__class__ is TensorSpec else Kind.SEQUENCE
            if state is not None:
                array = state.value()
            elif array is None and spec == ABSENT:
                kind = Kind.NOTHING
            slots[index] = Slot(kind, spec, index, array is None, array, values.get(k), state is not None)
        return slots

    def _next(self, section: Section) -> Section:
        instruction = self.program.instructions[section.stop - 1]
        assert section.tail is not None
        ops = self.context.ops
        try:
            key = section.tail() if ops is None else ops.tail(self.program, section)
        except Exception as error:
            ours = locate(error, instruction, self.provider)
            raise ours from ours.__cause__
        following = section.next.get(key)
        if following is not None:
            self._call(following)
            if len(section.next) > 1:
                section.next.move_to_end(key)
            return following
        following = self.build(section.stop, section.exit.copy(), section, key)
        self.roots.keep(section.next, key, following)
        return following

    def _call(self, section: Section) -> None:
        call_section(self.program, section, self.context)

    def build(
        self,
        start: int,
        live: Liveness,
        previous: Section | None,
        key: Key,
        inputs: Sequence[Any] | None = None,
        before: Mapping[int, Slot] | None = None,
    ) -> Section:
        """Build the section from instruction `start` on, and run it; the first one without `inputs` is not run."""
        arena = self.context.arena(self.depth)
        lease = arena.lease(live.buffers.values(), reuse=self.options.reuse_buffers)
        call = previous is not None or inputs is not None
        builder = Builder(self, start, live, lease, call=call, before=before)
        try:
            if previous is not None:
                builder.enter(previous, key)
            else:
                if self.frames is not None:
                    self.frames.lay_out(builder.section, live, lease, before)
                if inputs is not None:
                    self._load(builder.section, inputs)
            section = builder.build()
            section.warm = call
        except BaseException:
            lease.close()
            raise
        self.statistics.sections_built += 1
        if call and self.context.graph_slot is not None:
            self.context.graph_slot.eager_runs += 1
        self.statistics.peak_live_bytes = max(self.statistics.peak_live_bytes, lease.peak_bytes)
        return section

    def _collect(self, last: Section) -> list[Any]:
        outputs = collected(self, last)
        if self.frames is not None:
            self.frames.lend(last)
        return outputs

    def memory_plan(self) -> MemoryPlan | None:
        """The memory plan of shapes that were run lately; None where nothing is bound."""
        if not self.roots.sections:
            return None
        path = [next(reversed(self.roots.sections.values()))]
        while path[-1].next:
            path.append(next(reversed(path[-1].next.values())))
        return memory_plan(self.program, path)

    def drop_sections(self) -> None:
        """Drop every section and give its buffers back; of what was recorded before, nothing is replayed any more."""
        if self.roots.sections:
            self.context.recorder.artifacts.advance()
        self.roots.drop()

    def close(self) -> None:
        """Drop every section and give their buffers back."""
        self.roots.drop()
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


def _declared_spec(type_: ValueType | None) -> TensorSpec | None:
    """The spec that a declared type fixes, if it does."""
    if not isinstance(type_, TensorType) or type_.dtype is None or type_.shape is None:
        return None
    extents = tuple(d for d in type_.shape if isinstance(d, int))
    return TensorSpec(numpy_dtype(type_.dtype), extents) if len(extents) == len(type_.shape) else None


def _specs(program: Program, context: Context) -> dict[int, TensorSpec]:
    """Of the program's constants, by slot."""
    specs = {p.slot: context.weight(p.name).spec for p in program.constants}
    return {slot: spec for slot, spec in specs.items() if isinstance(spec, TensorSpec)}
