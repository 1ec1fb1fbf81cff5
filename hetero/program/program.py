"""The slot program: what one partition (or one body of control flow) lowers to; immutable data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hetero.program.operation import Operation
from hetero.types import ValueType

NO_SLOT = -1
"""Stands in `inputs` and `outputs` for an optional operand that was left out."""


class Dispatch(StrEnum):
    """How an instruction is run."""

    HOST = "host"
    """Shape arithmetic: on the host, whatever the provider; folded while shapes hold."""
    VIEW = "view"
    """Layout only: metadata where possible, else a copy."""
    BACKEND = "backend"
    """A kernel of the provider's array module."""
    LIBRARY = "library"
    """A call into a library (BLAS, onnx.reference…) with its own workspace or rules."""
    CONTROL = "control"
    """If, Loop, Scan and their like: runs bodies."""
    EXTENSION = "extension"
    """An operation family that a user registered."""


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One node over slots.

    Invariant: len(types) == len(outputs); len(last_use) <= len(inputs). `last_use[k]` says that this is the last
    instruction to read the slot `inputs[k]` (and the slot is no program output). `node_index` is the node's index in
    the graph it came from, in the graph's own order.
    """

    op: Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    types: tuple[ValueType | None, ...]
    last_use: tuple[bool, ...]
    node_index: int
    dispatch: Dispatch = Dispatch.BACKEND


@dataclass(frozen=True, slots=True, eq=False)
class Port:
    """A named place where a value enters or leaves a program. `type` is None where inference found nothing."""

    name: str
    slot: int
    type: ValueType | None


def has_port(ports: Iterable[Port], name: str) -> bool:
    """Whether one of these has the name."""
    return any(p.name == name for p in ports)


@dataclass(frozen=True, slots=True)
class ShapeGuard:
    """`dim` (an int, a symbol or an expression over symbols) must be the extent of `input` along `axis`."""

    input: str
    axis: int
    dim: int | str


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Instructions in execution order, over `n_slots` slots.

    `inputs`: what the caller passes, in order (for a body: its formal inputs, then `n_captures` captured values).
    `constants`: slots that hold initializers; their bytes come from the weight store under the port's name.
    `outputs`: what comes back, in order; a slot may stand there twice, and may be an input's or a constant's.
    """

    name: str
    instructions: tuple[Instruction, ...]
    inputs: tuple[Port, ...]
    constants: tuple[Port, ...]
    outputs: tuple[Port, ...]
    n_slots: int
    guards: tuple[ShapeGuard, ...] = ()
    n_captures: int = 0
    opsets: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        from hetero.program.text import format_program

        return format_program(self)


def marked(instructions: Sequence[Instruction], outputs: Iterable[int]) -> tuple[Instruction, ...]:
    """The instructions with their last-use flags as this order has them. `outputs`: slots that are read at the end."""
    later = set(outputs)
    found = []
    for instruction in reversed(instructions):
        flags = tuple(s != NO_SLOT and s not in later for s in instruction.inputs)
        later.update(s for s in instruction.inputs if s != NO_SLOT)
        found.append(replace(instruction, last_use=flags))
    return tuple(reversed(found))


def is_body(value: object) -> bool:
    """Whether an attribute's value is a program, or several."""
    return isinstance(value, Program) or (
        isinstance(value, tuple) and bool(value) and isinstance(value[0], Program)
    )
