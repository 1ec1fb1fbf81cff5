"""Fusion, the bound part: a run of elementwise instructions becomes one call of a tape, where all of it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.errors import HeteroError
from hetero.kernels.base import Call
from hetero.kernels.tape import MovableCall, Tape, TapeWriter, address
from hetero.kernels.tape_ops import LOWERINGS
from hetero.program.program import NO_SLOT, Instruction
from hetero.providers.base import Buffer, Provider
from hetero.runtime.capture.reasons import SeamReason
from hetero.runtime.operands import contiguous_copy
from hetero.runtime.slots import NOTHING, Kind, Slot
from hetero.types import Array, HostArray, Spec, TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.builder import Builder

MOST_INSTRUCTIONS = 64
"""Of one tape: beyond it a call more costs nothing that one could see."""
_FLOAT32 = np.dtype(np.float32)


def bind_run(builder: Builder, stop: int) -> int:
    """Bind as many of the instructions from `builder.at` to `stop` as one tape takes, at least two; returns where they
    end: at `builder.at` where it takes none. What is read of theirs outside is defined then."""
    start = builder.at
    plan = _plan(builder, start, min(stop, start + MOST_INSTRUCTIONS))
    while plan is not None and not plan.writer.fits():
        plan = _plan(builder, start, start + (plan.stop - start) // 2)
    if plan is None or not _Binding(builder, plan).bind():
        return start
    statistics = builder.runner.statistics
    statistics.fused_calls += 1
    statistics.fused_instructions += plan.stop - start
    return plan.stop


@dataclass(slots=True, eq=False)
class _Plan:
    """Instructions up to `stop` on one tape: the slots that it reads, in the writer's order, and what it makes."""

    writer: TapeWriter
    stop: int
    reads: dict[int, int] = field(default_factory=dict)
    """Slot -> the writer's value, for both."""
    made: dict[int, int] = field(default_factory=dict)
    specs: dict[int, TensorSpec] = field(default_factory=dict)
    """Of what is made."""


def _plan(builder: Builder, start: int, stop: int) -> _Plan | None:
    """The longest plan from `start` on; None where that is not even two instructions."""
    plan = _Plan(TapeWriter(()), start)
    for at in range(start, stop):
        instruction = builder.runner.program.instructions[at]
        spec = _result(builder, at, instruction, plan)
        if spec is None or (plan.specs and _core(spec.shape) != _core(plan.writer.shape)):
            break
        plan.writer.shape = max(spec.shape, plan.writer.shape, key=len)
        value = _write(builder, instruction, plan)
        if value is None:  # what the writer got of it must go again
            return _plan(builder, start, at)
        plan.made[instruction.outputs[0]] = value
        plan.specs[instruction.outputs[0]] = spec
        plan.stop = at + 1
    return plan if plan.stop - start >= 2 else None


def _core(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without leading ones."""
    first = next((k for k, extent in enumerate(shape) if extent != 1), len(shape))
    return shape[first:]


def _result(builder: Builder, at: int, instruction: Instruction, plan: _Plan) -> TensorSpec | None:
    """The spec of the result of instruction `at`, where a tape may compute it; else None."""
    runner = builder.runner
    if runner.analysis.kernels[at] is None or instruction.outputs[0] == NO_SLOT:
        return None
    specs: list[Spec] = []
    known = True
    for index in instruction.inputs:
        if index in plan.specs:
            specs.append(plan.specs[index])
            known = False
            continue
        slot = _operand(builder, index)
        known = known and (slot.kind is Kind.NOTHING or slot.value is not None)
        specs.append(slot.known_spec())
    if known:
        return None  # to be folded
    exponent = instruction.op.op_type == "Pow"
    for k, spec in enumerate(specs):
        if isinstance(spec, TensorSpec) and spec.dtype != _FLOAT32 and not (exponent and k == 1):
            return None
    try:
        (result,) = runner.compile(at, builder.provider, specs).outputs
    except HeteroError:
        return None  # the ordinary road says what is wrong
    if not isinstance(result, TensorSpec) or result.dtype != _FLOAT32 or not result.size:
        return None
    return result


def _write(builder: Builder, instruction: Instruction, plan: _Plan) -> int | None:
    """Write the instruction down; None where a tape cannot hold it."""
    values: list[int | None] = []
    known: list[HostArray | None] = []
    for k, index in enumerate(instruction.inputs):
        slot = _operand(builder, index) if index not in plan.made else None
        spec = None if slot is None else slot.spec
        known.append(None if slot is None else slot.value)
        if index in plan.made:
            values.append(plan.made[index])
        elif not isinstance(spec, TensorSpec) or (k == 1 and instruction.op.op_type == "Pow"):
            values.append(None)
        else:
            if index not in plan.reads:
                plan.reads[index] = plan.writer.input(spec.shape)
            values.append(plan.reads[index])
    lower = LOWERINGS[instruction.op.domain, instruction.op.op_type]
    return lower(plan.writer, instruction.op, values, known)


class _Binding:
    """Gives a plan its memory and its call."""

    def __init__(self, builder: Builder, plan: _Plan) -> None:
        self.builder = builder
        self.plan = plan
        runner = builder.runner
        dying = [index for at in range(builder.at, plan.stop) for index in runner.analysis.dying[at]]
        self.dying = frozenset(dying)
        self.outputs = [index for index in plan.made if index not in self.dying]
        self.escapes = [runner.escapes(index, plan.specs[index]) for index in self.outputs]
        self.taken: list[Buffer | None] = []
        self.shared: list[int] = []
        self.grows = False

    def bind(self) -> bool:
        """False where nobody reads any result; nothing is changed then."""
        builder, plan = self.builder, self.plan
        values = [plan.made[index] for index in self.outputs]
        if not values:
            return False
        operands = [_operand(builder, index) for index in plan.reads]
        self._take()
        tape = plan.writer.finish(values, self.shared)
        assert tape is not None, "its broadcasts were looked at"
        outputs = [
            builder.runner.pinned(index, plan.specs[index])
            if buffer is None
            else builder.provider.array(buffer, plan.specs[index])
            for index, buffer in zip(self.outputs, self.taken, strict=True)
        ]
        scratch: list[Buffer] = []
        self.grows = any(map(builder._grows, plan.specs, plan.specs.values()))
        workspace = builder._scratch(tape.scratch_bytes, scratch, self.grows)
        if any(o.volatile for o in operands) or any(self.escapes):
            call = self._moving_call(tape, operands, outputs, workspace, scratch)
            builder._step(call, SeamReason.CALLERS_MEMORY)
            builder.runner.statistics.volatile_steps += 1
        else:
            inputs = [self._stable(o, scratch) for o in operands]
            arrays = [*inputs, *(o for o in outputs if o is not None)]
            builder._step(tape.bind(arrays, [address(x) for x in arrays], workspace))
        for buffer in scratch:
            builder.lease.release(buffer)
        for index, escapes, array, owned in zip(self.outputs, self.escapes, outputs, self.taken, strict=True):
            builder._define(index, Slot(Kind.OWNED, plan.specs[index], index, escapes, array), owned)
        return True

    def _take(self) -> None:
        """A buffer for every output that stays in the arena: that of an input which dies here, or another one."""
        builder, specs = self.builder, self.plan.specs
        for k, (index, escapes) in enumerate(zip(self.outputs, self.escapes, strict=True)):
            buffer, spec = None, specs[index]
            if not escapes and builder.runner.pinned(index, spec) is None:
                buffer = self._overwritten(spec)
                if buffer is not None:
                    self.shared.append(k)
                else:
                    buffer = builder._take(spec.nbytes, grows=builder._grows(index, spec))
            self.taken.append(buffer)

    def _overwritten(self, spec: TensorSpec) -> Buffer | None:
        builder = self.builder
        if not builder.runner.options.in_place:
            return None
        for index in self.plan.reads:
            if index in self.dying and not _operand(builder, index).volatile:
                buffer = builder._reuse(index, spec.nbytes)
                if buffer is not None:
                    return buffer
        return None

    def _stable(self, operand: Slot, scratch: list[Buffer]) -> Array:
        """An operand's array, contiguous and aligned: else a copy, made in each run unless constant."""
        builder, provider = self.builder, self.builder.provider
        array = builder._array(operand)
        assert array is not None, "a stable tensor has an array"
        if _is_plain(provider, array):
            return array
        spec = TensorSpec(array.dtype, tuple(array.shape))
        builder.runner.statistics.contiguous_copies += 1
        if operand.kind in (Kind.CONSTANT, Kind.KNOWN):
            operand.array = contiguous_copy(provider, array)
            return operand.array
        scratch.append(builder._take(spec.nbytes, grows=self.grows))
        copy = provider.array(scratch[-1], spec)
        builder._step(provider.copy(array, copy))
        return copy

    def _moving_call(
        self,
        tape: Tape,
        operands: Sequence[Slot],
        outputs: Sequence[Array | None],
        workspace: Array | None,
        scratch: list[Buffer],
    ) -> Call:
        """A call that looks up, in each run, what has other memory than in the run before."""
        builder, plan = self.builder, self.plan
        table, provider = builder.table, builder.provider
        slots = list(plan.reads)
        moving = [(k, index) for k, index in enumerate(slots) if operands[k].volatile]
        fresh = [
            (len(slots) + k, index, plan.specs[index])
            for k, index in enumerate(self.outputs)
            if outputs[k] is None
        ]
        fixed = [None if o.volatile else self._stable(o, scratch) for o in operands]
        bound = MovableCall(tape, [*fixed, *outputs], workspace)
        loose = [k for k, _ in moving] + [k for k, _, _ in fresh]

        def step() -> None:
            for k, index in moving:
                bound.point(k, _plain(provider, table[index]))
            for k, index, spec in fresh:
                table[index] = array = provider.empty(spec)
                bound.point(k, array)
            bound.call()
            for k in loose:
                bound.point(k, None)  # whose memory is the run's

        return step


def _operand(builder: Builder, index: int) -> Slot:
    return NOTHING if index == NO_SLOT else builder.live.slots[index]


def _is_plain(provider: Provider, array: Any) -> bool:
    """Whether a tape takes the array as it is."""
    return provider.is_contiguous(array) and bool(array.flags.aligned)


def _plain(provider: Provider, array: Any) -> Any:
    """The array, or a copy that a tape takes."""
    return array if _is_plain(provider, array) else contiguous_copy(provider, array)
