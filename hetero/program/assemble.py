"""Assembling a program: one slot per value, last uses, guards; from nodes that are already lowered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from hetero.errors import ProgramError
from hetero.program.guards import guards_for
from hetero.program.operation import Operation
from hetero.program.program import NO_SLOT, Dispatch, Instruction, Port, Program, is_body
from hetero.types import ValueType

Classify: TypeAlias = Callable[[Operation], Dispatch]


@dataclass(frozen=True, slots=True, eq=False)
class LoweredNode:
    """A node whose operands are still named. `inputs` are the node's own, then what its bodies capture; the name ""
    stands for an operand that was left out. len(types) == len(outputs); `index` is the node's place in its graph."""

    op: Operation
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[ValueType | None, ...]
    index: int


def default_dispatch(op: Operation) -> Dispatch:
    """CONTROL for an operation with bodies, else BACKEND."""
    return Dispatch.CONTROL if has_bodies(op) else Dispatch.BACKEND


def has_bodies(op: Operation) -> bool:
    """Whether an attribute holds a program, or several."""
    return any(map(is_body, op.attributes.values()))


def build_program(
    name: str,
    nodes: Sequence[LoweredNode],
    inputs: Sequence[tuple[str, ValueType | None]],
    outputs: Sequence[str],
    constants: Mapping[str, ValueType | None],
    classify: Classify | None = None,
    *,
    n_captures: int = 0,
    opsets: Mapping[str, int] | None = None,
    guarded: bool = True,
) -> Program:
    """The program that runs `nodes` in the order given. Linear in their number (never in that of `constants`).

    Slots: inputs in order, then the constants that are used, in order of first use, then what instructions write.
    `constants` may name more than is used. Every last reader of a slot is flagged unless the slot is an output.
    `classify` decides each instruction's dispatch, inside bodies too; None: `default_dispatch`, and bodies stay as
    they were lowered. `guarded=False` leaves the shape guards out (a body's caller has checked its values).

    Raises: ProgramError for a value that is read before it is defined, or defined twice.
    """
    slots: dict[str, int] = {}
    for port, _ in inputs:
        _define(slots, port, "input", None)
    used = _used_constants(nodes, outputs, constants, slots)
    for constant in used:
        _define(slots, constant, "constant", None)
    n_ports = len(slots)

    types: list[ValueType | None] = [t for _, t in inputs]
    types.extend(constants[c] for c in used)
    last: dict[int, int] = {}
    reads: list[tuple[int, ...]] = []
    writes: list[tuple[int, ...]] = []
    for at, node in enumerate(nodes):
        row = tuple([NO_SLOT if not n else slots.get(n, -2) for n in node.inputs])
        if -2 in row:
            missing = node.inputs[row.index(-2)]
            raise ProgramError(
                f"{name}: instruction {at} reads {missing!r}, which nothing before it defines",
                op=node.op.id,
                node=node.op.name or None,
                operand=missing,
            )
        for slot in row:
            last[slot] = at
        written = []
        for output, declared in zip(node.outputs, node.types, strict=True):
            if not output:
                written.append(NO_SLOT)
                continue
            written.append(len(slots))
            _define(slots, output, "output", node)
            types.append(declared)
        reads.append(row)
        writes.append(tuple(written))

    ends = []
    for output in outputs:
        if output not in slots:
            raise ProgramError(f"{name}: output {output!r} is never written", operand=output)
        ends.append(Port(output, slots[output], types[slots[output]]))
    for port_ in ends:
        last.pop(port_.slot, None)
    last.pop(NO_SLOT, None)

    dispatch = default_dispatch if classify is None else classify
    instructions = []
    for at, node in enumerate(nodes):
        op = node.op if classify is None or not has_bodies(node.op) else _classified(node.op, classify)
        flags = tuple([last.get(slot) == at for slot in reads[at]])
        instructions.append(
            Instruction(op, reads[at], writes[at], node.types, flags, node.index, dispatch(op))
        )
    ports = [Port(n, slots[n], types[slots[n]]) for n in slots if slots[n] < n_ports]
    entries = tuple(ports[: len(inputs)])
    return Program(
        name,
        tuple(instructions),
        entries,
        tuple(ports[len(inputs) :]),
        tuple(ends),
        len(slots),
        guards_for(entries) if guarded else (),
        n_captures,
        dict(opsets or {}),
    )


def _define(slots: dict[str, int], name: str, role: str, node: LoweredNode | None) -> None:
    if not name or name in slots:
        raise ProgramError(
            f"{role} {name!r} is defined twice" if name else f"{role} without a name",
            op=node.op.id if node else None,
            node=(node.op.name or None) if node else None,
            operand=name or None,
        )
    slots[name] = len(slots)


def _used_constants(
    nodes: Sequence[LoweredNode],
    outputs: Sequence[str],
    constants: Mapping[str, ValueType | None],
    taken: Mapping[str, int],
) -> list[str]:
    used: dict[str, None] = {}
    for node in nodes:
        for name in node.inputs:
            if name in constants and name not in taken:
                used[name] = None
    for name in outputs:
        if name in constants and name not in taken:
            used[name] = None
    return list(used)


def _classified(op: Operation, classify: Classify) -> Operation:
    attributes = {}
    for key, value in op.attributes.items():
        if isinstance(value, Program):
            value = _classified_body(value, classify)
        elif is_body(value):
            value = tuple(_classified_body(body, classify) for body in value)
        attributes[key] = value
    return replace(op, attributes=attributes)


def _classified_body(body: Program, classify: Classify) -> Program:
    rows = []
    for instruction in body.instructions:
        op = _classified(instruction.op, classify) if has_bodies(instruction.op) else instruction.op
        rows.append(replace(instruction, op=op, dispatch=classify(op)))
    return replace(body, instructions=tuple(rows))
