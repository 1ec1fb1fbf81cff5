"""Shifts: calls that follow a sibling's when a section grows, by the difference that its numbers make.

What compiled loops know of a call's operands is an array of numbers (`kernels.shifting`). Where two calls of one kernel
are over operands that lie alike, and nothing of them moves, going over to other extents adds the same to both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto

from hetero.kernels.base import Call, KernelDef
from hetero.kernels.shifting import numbers_of, same_code
from hetero.runtime.slots import Kind, Slot
from hetero.types import Array


class _Place(Enum):
    """How an operand stays where it is, with the strides that follow from its spec, whatever a section grows to."""

    STEADY = auto()
    """It does not change."""
    STATE = auto()
    """The first rows of a state's buffer. A state that moves drops every section."""
    OWNED = auto()
    """Contiguous, in the buffer that its instruction took when the section was built."""
    VALUE = auto()
    """A value that decides shapes, of which compiled loops know nothing else."""


def lie_alike(
    definition: KernelDef | None,
    reads: Sequence[int],
    others: Sequence[int],
    every: Mapping[int, Slot],
    grown: Collection[int],
) -> bool:
    """Whether two instructions of one kernel, whose operands' strides are now the same, have operands that stay where
    they are, and whose strides stay the same."""
    values = () if definition is None else definition.values

    def place(k: int, index: int) -> _Place | None:
        slot = every[index]
        if index not in grown:
            return _Place.STEADY
        if slot.value is not None:
            return _Place.VALUE if k in values else None
        if slot.volatile or slot.kind is Kind.VIEW:
            return None
        if slot.state:
            return _Place.STATE
        return _Place.OWNED if slot.kind is Kind.OWNED else None

    if definition is None or len(reads) != len(others):
        return False
    places = [place(k, index) for k, index in enumerate(reads)]
    return None not in places and places == [place(k, index) for k, index in enumerate(others)]


class Shifts:
    """What is added to the numbers of calls once a section is taken over, and not before."""

    def __init__(self) -> None:
        self._added: list[tuple[Array, Array]] = []
        self._differences: dict[int, Array | None] = {}

    def __len__(self) -> int:
        return len(self._added)

    def add(self, call: Call, numbers: Array, old: Call, new: Call) -> bool:
        """Whether `call`, which reads `numbers`, will be for what `new` is for, which takes the place of `old`; `call`
        and `old` were bound alike."""
        if id(new) not in self._differences:
            before, after = numbers_of(old), numbers_of(new)
            self._differences[id(new)] = None
            if before is not None and after is not None and same_code(call, old, new):
                self._differences[id(new)] = after - before
        difference = self._differences[id(new)]
        if difference is None or difference.size != numbers.size:
            return False
        self._added.append((numbers, difference))
        return True

    def apply(self) -> None:
        """Make it so."""
        for numbers, difference in self._added:
            numbers += difference
