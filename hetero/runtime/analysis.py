"""What a child derives from a program alone, once, before any shapes are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hetero.kernels.base import KernelDef
from hetero.program.program import NO_SLOT, Dispatch, Instruction, Program
from hetero.providers.lookup import find
from hetero.types import DataType, OptionalType, SequenceType, TensorType

_INTEGERS = frozenset({DataType.INT64, DataType.INT32, DataType.BOOL})


@dataclass(frozen=True, slots=True)
class Analysis:
    """Facts about a program's slots.

    escaping: slots whose memory outlives the run (program outputs, what is viewed or kept by them): never in the arena.
    lent: of them, those that must have memory of their own even where results are copied for the caller: what is kept
    by handle, or widened by a view.
    rearranged: of them, those that need it only where results are not copied: results that are views, and what they are
    views of, which is no smaller.
    dying: per instruction, the slots that nobody reads after it (each slot dies exactly once).
    value_inputs: positions of program inputs from which shapes are derived; their values take part in the signature.
    kernels: per instruction, the kernel definition, if there is one of ours.
    readers: for each slot of `value_inputs` that is no program output, the instructions that read it.
    """

    escaping: frozenset[int]
    lent: frozenset[int]
    rearranged: frozenset[int]
    dying: tuple[tuple[int, ...], ...]
    value_inputs: tuple[int, ...]
    kernels: tuple[KernelDef | None, ...]
    readers: dict[int, frozenset[int]]


def analyse(program: Program) -> Analysis:
    """Linear in the number of instructions."""
    kernels = tuple(find(i.op) for i in program.instructions)
    outputs = {p.slot for p in program.outputs}
    escaping = escaping_from(program, outputs)
    handed_on = outputs & {p.slot for p in program.inputs}
    viewed = escaping_from(program, outputs & _views(program, "") | handed_on)
    lent = escaping_from(program, viewed & _views(program, "Expand") | handed_on)
    value_inputs = _value_inputs(program, kernels)
    return Analysis(
        escaping, lent, viewed - lent, _dying(program), value_inputs, kernels, _readers(program, value_inputs)
    )


def keeps_handles(instruction: Instruction) -> bool:
    """Whether outputs may hold handles to the inputs' memory (sequences, optionals, control flow)."""
    if instruction.dispatch is Dispatch.CONTROL:
        return True
    if any(isinstance(t, SequenceType | OptionalType) for t in instruction.types):
        return True
    op = instruction.op.op_type
    return op.startswith(("Sequence", "Optional")) or op in ("SplitToSequence", "ConcatFromSequence")


def escaping_from(program: Program, outputs: Iterable[int]) -> frozenset[int]:
    """The slots whose memory outlives the run where that of the slots `outputs` does."""
    escaping = set(outputs)
    for instruction in reversed(program.instructions):
        if keeps_handles(instruction):
            escaping.update(s for s in _kept(instruction) if s != NO_SLOT)
        elif instruction.dispatch is Dispatch.VIEW and not escaping.isdisjoint(instruction.outputs):
            escaping.add(instruction.inputs[0])
    return frozenset(escaping)


def may_view(instruction: Instruction, definition: KernelDef | None) -> bool:
    """Whether results of the instruction may be views of its first operand."""
    return instruction.dispatch is Dispatch.VIEW or (definition is not None and definition.views)


def _kept(instruction: Instruction) -> Iterable[int]:
    """The operands of an instruction that keeps handles whose memory may be that of its outputs: all, but of an If only
    what a branch hands on."""
    op = instruction.op
    if instruction.dispatch is not Dispatch.CONTROL or op.id != "If":
        return instruction.inputs
    captured = instruction.inputs[len(instruction.inputs) - op.n_captures :]
    kept: set[int] = set()
    for branch in op.bodies().values():
        handed = {p.slot for p in branch.outputs}
        for inner in reversed(branch.instructions):
            if keeps_handles(inner):
                handed.update(s for s in _kept(inner) if s != NO_SLOT)
            elif may_view(inner, find(inner.op)) and not handed.isdisjoint(inner.outputs):
                handed.add(inner.inputs[0])
        ports = zip(branch.inputs, captured, strict=True)
        kept.update(slot for port, slot in ports if port.slot in handed)
    return kept


def _views(program: Program, op_type: str) -> set[int]:
    """The slots that layout instructions write, those of one operator or ("") all."""
    views = (i for i in program.instructions if i.dispatch is Dispatch.VIEW)
    return {s for i in views if op_type in ("", i.op.op_type) for s in i.outputs}


def _dying(program: Program) -> tuple[tuple[int, ...], ...]:
    forever = {p.slot for p in program.outputs} | {p.slot for p in program.constants}
    last: dict[int, int] = {}
    for at, instruction in enumerate(program.instructions):
        for slot in (*instruction.inputs, *instruction.outputs):
            if slot != NO_SLOT and slot not in forever:
                last[slot] = at
    dying: list[list[int]] = [[] for _ in program.instructions]
    for slot, at in last.items():
        dying[at].append(slot)
    return tuple(tuple(d) for d in dying)


def _value_inputs(program: Program, kernels: tuple[KernelDef | None, ...]) -> tuple[int, ...]:
    """Walk back from operands whose value a kernel needs through small integer arithmetic to the inputs."""
    wanted: set[int] = set()
    small = {p.slot: _is_small(p.type) for p in program.inputs}
    for instruction, definition in zip(reversed(program.instructions), reversed(kernels), strict=True):
        if definition is not None:
            wanted.update(
                instruction.inputs[k]
                for k in definition.values
                if k < len(instruction.inputs) and instruction.inputs[k] != NO_SLOT
            )
        if (
            not wanted.isdisjoint(instruction.outputs)
            and instruction.dispatch is not Dispatch.CONTROL
            and instruction.op.op_type not in ("Shape", "Size")
        ):
            wanted.update(s for s in instruction.inputs if s != NO_SLOT)
    return tuple(k for k, p in enumerate(program.inputs) if p.slot in wanted and small[p.slot])


def _readers(program: Program, inputs: tuple[int, ...]) -> dict[int, frozenset[int]]:
    slots = {program.inputs[k].slot for k in inputs} - {p.slot for p in program.outputs}
    return {
        slot: frozenset(at for at, i in enumerate(program.instructions) if slot in i.inputs) for slot in slots
    }


def _is_small(type_: object) -> bool:
    """Integers of rank 0 or 1, as shapes, axes and counts are."""
    return (
        isinstance(type_, TensorType)
        and type_.dtype in _INTEGERS
        and type_.shape is not None
        and len(type_.shape) <= 1
    )
