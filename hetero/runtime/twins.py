"""Twins: instructions of a section that do the same whatever its growing extents are, so that one is bound for all.

A decoder's layers are alike. An instruction whose operator and operands' specs are those of an earlier one, and stay
so however much grows, has the same kernel, and where it is folded the same value; one that reads and writes the same
memory too has the same bound call. Which are alike is told from how the section was bound: everything that a binding
depends on has a number, and equal numbers mean equal things for every growth.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hetero.kernels.base import Call, Compiled, KernelDef
from hetero.program.program import NO_SLOT, Dispatch, Instruction
from hetero.runtime.section import Record, Section
from hetero.runtime.shape_arithmetic import OPERATORS
from hetero.runtime.slots import Kind, Slot
from hetero.runtime.state import State
from hetero.types import Array, TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.runner import Runner

_INLINE_BYTES = 4096
"""Values up to this size are compared by their bytes, larger ones by identity."""


@dataclass(frozen=True, slots=True)
class Step:
    """One record that is bound anew, for itself and for its twins.

    `calls`: for each of its calls, the numbers in the section of that call and its twins. `results`: its slots that
    grew, each with its twins'. `steady`: its results that stayed as they were, and must (and so do its twins').
    `kernel`: an earlier step with the same kernel. `sibling`: one that is also bound in the same way, where the
    operands' strides are the same. `reads`: a single instruction's operands that are given. `leads`: whether it is a
    later step's sibling. `appends`: whether it writes behind the rows of a state. `folds`: whether it is shape
    arithmetic on values that are given. `kind`: its one result's, where how it is bound depends on operator, operands
    and buffers alone (`runtime.rebinding`); else None.
    """

    record: Record
    run: tuple[Instruction, ...]
    calls: tuple[list[int], ...]
    results: tuple[tuple[int, list[int]], ...]
    steady: tuple[int, ...]
    kernel: int | None
    sibling: int | None
    reads: tuple[int, ...]
    leads: bool
    appends: bool
    folds: bool
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class Twins:
    """How a section is bound anew: `steps` in order, where nothing but `grown` slots are others than before.

    `entry`: those of them that are program inputs; `alike`: groups of these that must have one spec. `shared`: calls
    whose kernel was compiled for another instruction. `counted`: what the runner's statistics count for it all.
    `models`: each twin's result -> the one that it is like. `lengthened`: results that are a state's rows and so many
    more, whose calls look for themselves where those begin (`State.appending`). `results`: the program's outputs among
    `grown`, by position. `followers`: steps, by number, that are bound as their siblings are and may follow them
    (`runtime.shifts`), with their call and its numbers. `kernels`: those of steps, by number, that are right for other
    extents too.
    """

    steps: tuple[Step, ...]
    entry: frozenset[int]
    grown: frozenset[int]
    alike: tuple[tuple[int, ...], ...]
    shared: frozenset[int]
    counted: Mapping[str, int]
    models: Mapping[int, int]
    lengthened: tuple[tuple[int, State, int], ...]
    results: Mapping[int, int]
    followers: dict[int, tuple[Call, Array]] = field(default_factory=dict)
    kernels: dict[int, Compiled] = field(default_factory=dict)


def twins_of(
    runner: Runner,
    section: Section,
    before: Mapping[int, Slot],
    after: Mapping[int, Slot],
    changed: frozenset[int],
    records: Sequence[Record],
    counted: Mapping[str, int],
) -> Twins:
    """The twins among `records`, those of the section that were bound anew when the slots in `changed` became others
    (`before`, `after`), for which `counted` was counted."""
    numbers = _Numbers(runner, section, before, after, changed)
    instructions = runner.program.instructions
    steps: list[Step] = []
    kernels: dict[Hashable, int] = {}
    siblings: dict[Hashable, int] = {}
    models: dict[Hashable, Step] = {}
    lengthened: list[tuple[int, State, int]] = []
    for record in records:
        run = instructions[record.start : record.stop]
        steady = tuple(s for i in run for s in i.outputs if s != NO_SLOT and s not in changed)
        made = [s for i in run for s in i.outputs if s in changed]
        one = run[0] if len(run) == 1 else None
        like = numbers.of(record, one, tuple(s in steady for s in one.outputs)) if one is not None else None
        kernel, sibling, twin = (None, None, None) if like is None else like
        state = runner.appended.get(record.start)
        if state is not None and one is not None and _lengthens(runner, one, changed, after):
            lengthened.append((one.outputs[0], state, _rows(state, after[one.inputs[1]])))
            continue
        if twin in models:
            model = models[twin]
            for call, numbered in zip(range(record.first, record.last), model.calls, strict=True):
                numbered.append(call)
            for index, (_, others) in zip(made, model.results, strict=True):
                others.append(index)
            continue
        step = Step(
            record,
            run,
            tuple([k] for k in range(record.first, record.last)),
            tuple((index, []) for index in made),
            steady,
            None if kernel is None else kernels.get(kernel),
            None if sibling is None else siblings.get(sibling),
            () if one is None else tuple(s for s in one.inputs if s != NO_SLOT),
            sibling is not None and sibling not in siblings,
            record.start in runner.appended and all(after[index].state for index in made),
            one is not None and _folds(runner, section, record, one, after),
            after[one.outputs[0]].kind if one is not None and twin is not None and _is_simple(one) else None,
        )
        for key, known in ((kernel, kernels), (sibling, siblings)):
            if key is not None:
                known.setdefault(key, len(steps))
        if twin is not None:
            models[twin] = step
        steps.append(step)
    own = {k for s in steps if s.kernel is None and s.sibling is None for k, *_ in s.calls}
    shared = frozenset(k for s in steps for numbered in s.calls for k in numbered) - own
    of = {other: index for s in steps for index, others in s.results for other in others}
    entry, alike, longer = frozenset(numbers.entry), numbers.alike(), tuple(lengthened)
    results = {k: p.slot for k, p in enumerate(runner.program.outputs) if p.slot in changed}
    return Twins(tuple(steps), entry, changed, alike, shared, counted, of, longer, results)


def _lengthens(
    runner: Runner, instruction: Instruction, changed: frozenset[int], after: Mapping[int, Slot]
) -> bool:
    """Whether an instruction writes behind the rows of a state on the host what stays where it is."""
    past, new = instruction.inputs
    appends = after[past].state and after[instruction.outputs[0]].state
    return runner.provider.is_host and appends and new not in changed and not after[new].volatile


def _rows(state: State, new: Slot) -> int:
    """How many rows are written behind those of a state."""
    axis, spec = state.spec.axis, new.spec
    assert axis is not None, "it was appended to"
    assert isinstance(spec, TensorSpec), "it has rows"
    return spec.shape[axis]


@dataclass(slots=True)
class _Numbers:
    """Numbers for specs (what a kernel is compiled for) and for places (the memory a call is bound to)."""

    runner: Runner
    section: Section
    before: Mapping[int, Slot]
    after: Mapping[int, Slot]
    changed: frozenset[int]
    entry: list[int] = field(default_factory=list)
    _known: dict[Hashable, int] = field(default_factory=dict)
    _specs: dict[int, int] = field(default_factory=dict)
    _places: dict[int, int] = field(default_factory=dict)
    _groups: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for port in self.runner.program.inputs:
            index = port.slot
            if index not in self.changed:
                continue
            self.entry.append(index)
            new = self.after[index]
            own = index if new.value is not None else None
            spec = self._specs[index] = self._number(("entry", self.before[index].spec, new.spec, own))
            self._places[index] = self._number(("entry", index))
            self._groups.setdefault(spec, []).append(index)

    def alike(self) -> tuple[tuple[int, ...], ...]:
        """The inputs that are taken to have one spec."""
        return tuple(tuple(g) for g in self._groups.values() if len(g) > 1)

    def of(
        self, record: Record, instruction: Instruction, steady: tuple[bool, ...]
    ) -> tuple[Hashable, Hashable | None, Hashable | None] | None:
        """Keys of its kernel, of how it is bound, and of what it is bound to (the latter two None where nothing is like
        it); None where not even its kernel is another's. Numbers what it makes."""
        definition = self.runner.analysis.kernels[record.start]
        operation = _operation(instruction, definition)
        does = self._number(
            ("does", record.start if operation is None else operation, *map(self._spec, instruction.inputs))
        )
        for k, index in enumerate(instruction.outputs):
            if index != NO_SLOT and index in self.changed:
                slot = self.after[index]
                known = slot.kind if slot.value is not None else None
                self._specs[index] = self._number(("makes", does, k, known))
                self._places[index] = self._made(index, slot, instruction, does, k)
        if operation is None or (self.section.tail is not None and record.stop == self.section.stop):
            return None
        metadata = definition is not None and definition.metadata
        places = () if metadata else tuple(map(self._place, instruction.inputs))
        results = [self.after[s] for s in instruction.outputs if s != NO_SLOT]
        if (
            any(s.volatile for s in results)
            or min(places, default=0) < 0
            or self._is_special(record, instruction)
        ):
            return does, None, None
        in_place = tuple((k, instruction.inputs.index(s)) for k, s in sorted(record.in_place.items()))
        twin = does, steady, places, record.last - record.first, tuple(map(id, record.buffers)), in_place
        laid_out = all(s.kind in (Kind.OWNED, Kind.VIEW) for s in results)
        plain = laid_out and _is_simple(instruction) and not in_place
        return does, (does, steady) if plain else None, twin

    def _is_special(self, record: Record, instruction: Instruction) -> bool:
        """Whether how it is bound depends on more than operator, operands and buffers."""
        runner, at = self.runner, record.start
        if at in runner.appended or at in self.section.tolerant:
            return True
        own = any(map(runner.leaves, instruction.outputs))
        return own or any(s not in instruction.inputs for s in record.in_place.values())

    def _spec(self, index: int) -> int:
        number = self._specs.get(index)
        if number is None:
            slot = None if index == NO_SLOT else self.after[index]
            key: Hashable = None
            if slot is not None:
                known = slot.kind if slot.value is not None else None
                key = ("is", slot.spec, known, _value(slot))
            number = self._specs[index] = self._number(key)
        return number

    def _place(self, index: int) -> int:
        number = self._places.get(index)
        if number is None:
            number = -1
            slot = None if index == NO_SLOT else self.after[index]
            if slot is None or slot.value is not None or slot.kind is Kind.NOTHING:
                number = self._number(("value", self._spec(index)))
            elif slot.array is not None:
                number = self._number(("array", slot.kind, slot.state, *_memory(slot)))
            self._places[index] = number
        return number

    def _made(self, index: int, slot: Slot, instruction: Instruction, does: int, k: int) -> int:
        """The place of a result that grew."""
        if slot.value is not None:
            return self._number(("value", self._specs[index]))
        if slot.volatile or slot.array is None:
            return -1
        if slot.kind is Kind.VIEW:
            base = self._place(instruction.inputs[0])
            return self._number(("view", does, k, base)) if base >= 0 else -1
        start = _start(slot)
        return self._number(("own", index if start is None else ("at", start), self._specs[index]))

    def _number(self, key: Hashable) -> int:
        return self._known.setdefault(key, len(self._known))


def _folds(
    runner: Runner, section: Section, record: Record, instruction: Instruction, after: Mapping[int, Slot]
) -> bool:
    """Whether the one result was computed from values or shapes, and not from weights alone."""
    if record.start in runner.appended or NO_SLOT in instruction.inputs or len(instruction.outputs) != 1:
        return False
    ends = section.tail is not None and record.stop == section.stop
    made = after.get(instruction.outputs[0])
    known = made is not None and made.kind is Kind.KNOWN
    if not known or ends:
        return False
    is_view = not _of_values(runner.analysis.kernels[record.start], [after[s] for s in instruction.inputs])
    return not is_view and instruction.op.op_type in OPERATORS


def _is_simple(instruction: Instruction) -> bool:
    """Whether it has one result, and all operands that it might have."""
    one = len(instruction.outputs) == 1 and instruction.outputs[0] != NO_SLOT
    return one and NO_SLOT not in instruction.inputs


def _of_values(definition: KernelDef | None, operands: Sequence[Slot]) -> bool:
    """Whether a result is folded: it follows from the operands' specs, or all of their values are known."""
    if definition is None or not definition.deterministic:
        return False
    return definition.metadata or all(o.value is not None for o in operands)


def _operation(instruction: Instruction, definition: KernelDef | None) -> Hashable | None:
    """What an instruction does, apart from its name and its operands; None where it may differ from run to run."""
    op = instruction.op
    if definition is None or not definition.deterministic:
        return None
    if instruction.dispatch in (Dispatch.CONTROL, Dispatch.EXTENSION) or op.bodies():
        return None
    attributes = tuple((name, _attribute(op.attributes[name])) for name in sorted(op.attributes))
    arity = op.present_inputs, op.present_outputs, tuple(s == NO_SLOT for s in instruction.outputs)
    return op.domain, op.op_type, op.version, op.opset, attributes, *arity


def _attribute(value: object) -> Hashable:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes() if value.dtype != object else id(value)
    return repr(value)  # not the value: 0.0 and -0.0 are equal


def _value(slot: Slot) -> Hashable:
    value = slot.value
    if value is None:
        return None
    return id(value) if value.nbytes > _INLINE_BYTES or value.dtype == object else value.tobytes()


def _memory(slot: Slot) -> tuple[Hashable, ...]:
    """Where a stable array lies; equal for two of them only where no kernel can tell them apart."""
    array = slot.array
    if not isinstance(array, np.ndarray):
        return (id(array),)
    return array.ctypes.data, array.shape, array.strides, array.dtype.str, array.flags.writeable


def _start(slot: Slot) -> int | None:
    return slot.array.ctypes.data if isinstance(slot.array, np.ndarray) else None
