"""Validation: every invariant of a program's form, checked before anything is compiled or run; linear time."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NoReturn

from hetero.errors import ProgramError
from hetero.program.arity import arity_fault
from hetero.program.control import control_fault
from hetero.program.limits import MAX_DEPTH, MAX_TYPE_DEPTH
from hetero.program.program import NO_SLOT, Instruction, Port, Program
from hetero.types import MapType, OptionalType, SequenceType, TensorType, ValueType


def validate(
    program: Program, *, require_constants: Container[str] | None = None, schemas: bool = True
) -> None:
    """Check the program and the bodies inside it. With `require_constants`, every constant's name must be in it.
    `schemas`: hold operands against the operators' schemas, for which onnx is loaded.

    Holds afterwards: every slot below `n_slots` is written exactly once (by an input, a constant or one instruction),
    before it is read, and never read after its flagged last use; every instruction has the operands that its schema,
    attributes and bodies ask for, and a type entry per output; guards speak of inputs and axes that exist.

    Raises: ProgramError naming the instruction (index, op, node) and the slot (as operand "%3").
    """
    _Validator(program, require_constants, program.name, 0, schemas).check()


class _Validator:
    """One program being checked: who wrote each slot, of what type, and where it was last used."""

    __slots__ = ("constants", "depth", "ended", "program", "results", "schemas", "types", "where", "writer")

    def __init__(
        self, program: Program, constants: Container[str] | None, where: str, depth: int, schemas: bool
    ) -> None:
        self.program = program
        self.constants = constants
        self.where = where
        self.depth = depth
        self.schemas = schemas
        self.writer: dict[int, str | int] = {}
        self.types: dict[int, ValueType | None] = {}
        self.ended: dict[int, int] = {}
        self.results = frozenset(p.slot for p in program.outputs)

    def check(self) -> None:
        program = self.program
        if self.depth > MAX_DEPTH:
            self.fail(f"bodies nest deeper than {MAX_DEPTH}")
        if program.n_slots < 0:
            self.fail(f"slot count {program.n_slots} is negative")
        if not 0 <= program.n_captures <= len(program.inputs):
            self.fail(f"{program.n_captures} captures of {len(program.inputs)} inputs")
        self.check_ports()
        for index, instruction in enumerate(program.instructions):
            self.check_instruction(index, instruction)
        if not program.outputs:
            self.fail("the program has no outputs")
        for port in program.outputs:
            self.check_range(port.slot, f"output {port.name!r}")
            if port.slot not in self.writer:
                self.fail(f"output {port.name!r} is slot %{port.slot}, which is never written", port.slot)
        if len(self.writer) != program.n_slots:
            self.fail(f"has {program.n_slots} slots, but only {len(self.writer)} are ever written")
        self.check_guards()

    def check_ports(self) -> None:
        names: set[str] = set()
        for role, ports in (("input", self.program.inputs), ("constant", self.program.constants)):
            for port in ports:
                label = f"{role} {port.name!r}"
                if not port.name or port.name in names:
                    self.fail(f"{label} has {'a name that is taken' if port.name else 'no name'}", port.slot)
                names.add(port.name)
                self.check_range(port.slot, label)
                if port.slot in self.writer:
                    self.fail(f"{label} and {self.writer[port.slot]} share slot %{port.slot}", port.slot)
                if role == "constant" and self.constants is not None and port.name not in self.constants:
                    self.fail(f"{label} has no bytes in the weight store", port.slot)
                self.check_type(port.type, label)
                self.writer[port.slot] = label
                self.types[port.slot] = port.type

    def check_instruction(self, index: int, instruction: Instruction) -> None:
        op = instruction.op
        inputs, outputs = instruction.inputs, instruction.outputs
        at: tuple[int, Instruction] = (index, instruction)
        own = len(inputs) - op.n_captures
        if not 0 <= own <= len(inputs):
            self.fail(f"captures {op.n_captures} values, but has {len(inputs)} inputs", at=at)
        if not outputs or all(slot == NO_SLOT for slot in outputs):
            self.fail("has no outputs", at=at)
        if len(instruction.types) != len(outputs):
            self.fail(
                f"has {len(outputs)} outputs, but {len(instruction.types)} shape and type entries", at=at
            )
        if len(instruction.last_use) > len(inputs):
            self.fail(f"has {len(inputs)} inputs, but {len(instruction.last_use)} last-use flags", at=at)
        self.check_present("input", op.present_inputs, inputs[:own], at)
        self.check_present("output", op.present_outputs, outputs, at)
        if NO_SLOT in inputs[own:]:
            self.fail("leaves a captured value out", at=at)
        self.check_bodies(at)
        fault = arity_fault(instruction, self.types, self.schemas) or control_fault(instruction, self.types)
        if fault is not None:
            self.fail(fault, at=at)
        self.check_reads(at)
        for slot, declared in zip(outputs, instruction.types, strict=True):
            self.check_type(declared, f"output %{slot}", at)
            if slot == NO_SLOT:
                continue
            self.check_range(slot, "output", at)
            if slot in self.writer:
                before = self.writer[slot]
                self.fail(
                    f"writes slot %{slot}, which instruction {before} writes too"
                    if isinstance(before, int)
                    else f"writes slot %{slot}, which holds {before}",
                    slot,
                    at,
                )
            self.writer[slot] = index
            self.types[slot] = declared

    def check_reads(self, at: tuple[int, Instruction]) -> None:
        index, instruction = at
        for slot in instruction.inputs:
            if slot == NO_SLOT:
                continue
            self.check_range(slot, "input", at)
            if slot not in self.writer:
                self.fail(f"reads slot %{slot} before anything writes it", slot, at)
            if slot in self.ended:
                self.fail(
                    f"reads slot %{slot} after its last use in instruction {self.ended[slot]}", slot, at
                )
        for slot, last in zip(instruction.inputs, instruction.last_use, strict=False):
            if last:
                if slot == NO_SLOT:
                    self.fail("flags an input that is left out as a last use", at=at)
                if slot in self.results:
                    self.fail(f"flags slot %{slot} as last used, but it is a program output", slot, at)
                self.ended[slot] = index

    def check_present(
        self, role: str, present: tuple[bool, ...], slots: tuple[int, ...], at: tuple[int, Instruction]
    ) -> None:
        if len(present) != len(slots):
            self.fail(f"has {len(slots)} {role}s, but its operation speaks of {len(present)}", at=at)
        for k, (there, slot) in enumerate(zip(present, slots, strict=True)):
            if there != (slot != NO_SLOT):
                says = "present" if there else "left out"
                self.fail(f"{role} {k} is %{slot}, but its operation says it is {says}", slot, at)

    def check_bodies(self, at: tuple[int, Instruction]) -> None:
        index, instruction = at
        op = instruction.op
        found = False
        for key, value in op.attributes.items():
            members = value if isinstance(value, tuple) else (value,)
            for body in members:
                if not isinstance(body, Program):
                    break
                found = True
                if body.n_captures != op.n_captures:
                    self.fail(
                        f"captures {op.n_captures} values, but its {key} expects {body.n_captures}", at=at
                    )
                where = f"{self.where}, instruction {index}, {key}"
                _Validator(body, self.constants, where, self.depth + 1, self.schemas).check()
        if op.n_captures and not found:
            self.fail(f"captures {op.n_captures} values, but has no body", at=at)

    def check_guards(self) -> None:
        inputs: dict[str, Port] = {p.name: p for p in self.program.inputs}
        for k, guard in enumerate(self.program.guards):
            label = f"guard {k} ({guard.input}[{guard.axis}] == {guard.dim})"
            port = inputs.get(guard.input)
            if port is None:
                self.fail(f"{label} speaks of an input that does not exist")
            if not isinstance(port.type, TensorType):
                self.fail(f"{label} speaks of an input that is no tensor", port.slot)
            rank = None if port.type.shape is None else len(port.type.shape)
            if guard.axis < 0 or (rank is not None and guard.axis >= rank):
                self.fail(f"{label}: axis out of range for rank {rank}", port.slot)
            if guard.dim == "" or (isinstance(guard.dim, int) and guard.dim < 0):
                self.fail(f"{label}: {guard.dim!r} is no extent", port.slot)

    def check_range(self, slot: int, label: str, at: tuple[int, Instruction] | None = None) -> None:
        if not 0 <= slot < self.program.n_slots:
            self.fail(f"{label} slot %{slot} is out of range, there are {self.program.n_slots}", slot, at)

    def check_type(self, declared: Any, label: str, at: tuple[int, Instruction] | None = None) -> None:
        depth = 0
        while isinstance(declared, SequenceType | OptionalType):
            declared = declared.element
            depth += 1
            if depth >= MAX_TYPE_DEPTH or declared is None:
                self.fail(f"{label} has a type that is nested too deep or has no element", at=at)
        if isinstance(declared, MapType):
            declared = declared.value
        if declared is None:
            return
        if not isinstance(declared, TensorType):
            self.fail(f"{label} has {declared!r} for a type", at=at)
        for dim in declared.shape or ():
            if dim is not None and not (dim if isinstance(dim, str) else dim >= 0):
                self.fail(f"{label} has extent {dim!r}", at=at)

    def fail(
        self, message: str, slot: int | None = None, at: tuple[int, Instruction] | None = None
    ) -> NoReturn:
        operand = None if slot is None else f"%{slot}"
        if at is None:
            raise ProgramError(f"{self.where}: {message}", operand=operand)
        index, instruction = at
        raise ProgramError(
            f"{self.where}: instruction {index} {message}",
            op=instruction.op.id,
            node=instruction.op.name or None,
            operand=operand,
        )
