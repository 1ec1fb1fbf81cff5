"""What a slot holds while a section is planned, and the table that holds what changes from run to run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hetero.providers.base import Buffer
from hetero.types import ABSENT, Array, HostArray, Spec, TensorSpec


class Kind(StrEnum):
    """What a slot holds."""

    NOTHING = "nothing"
    """An omitted operand or an optional that is empty."""
    OWNED = "owned"
    """An array of its own, in the arena (stable) or fresh in each run (volatile)."""
    VIEW = "view"
    """Metadata over another slot's memory; `owner` is that slot, never itself a view."""
    BORROWED = "borrowed"
    """The caller's array, or the object store's: read, never written, dropped when the run ends."""
    CONSTANT = "constant"
    """A weight, or what follows from weights alone."""
    KNOWN = "known"
    """Shape arithmetic: a host value that holds while shapes do."""
    SEQUENCE = "sequence"
    """A SequenceValue, handles to elements, or a MapValue."""


@dataclass(slots=True, eq=False)
class Slot:
    """One slot's state. `array` is set for stable slots; a volatile slot's value stands in the table of the run.

    `value`: the host array of a constant or known slot. `owner`: the slot whose memory it is (itself, unless a view).
    """

    kind: Kind
    spec: Spec
    owner: int
    volatile: bool
    array: Array | None = None
    value: HostArray | None = None
    state: bool = False
    """Whether the memory is that of a state, and stays when the run ends."""

    def known_spec(self) -> Spec:
        """The spec, with the value where it is known."""
        if self.value is None or not isinstance(self.spec, TensorSpec):
            return self.spec
        return TensorSpec(self.spec.dtype, self.spec.shape, self.value)


def same_known(a: Slot, b: Slot) -> bool:
    """Whether two slots have one spec, and one value where one is known."""
    if a.spec != b.spec:
        return False
    x, y = a.value, b.value
    return x is y or (x is not None and y is not None and x.tobytes() == y.tobytes())


NOTHING = Slot(Kind.NOTHING, ABSENT, -1, False)


class Liveness:
    """Which slots are live at one point of a program, and which buffers they hold.

    `every`: all slots that were ever defined on the way here, dead ones included.

    Invariant: a buffer in `buffers` is held by at least one live slot that owns or views it, counted in `references`.
    """

    def __init__(self) -> None:
        self.slots: dict[int, Slot] = {}
        self.every: dict[int, Slot] = {}
        self.buffers: dict[int, Buffer] = {}
        self.references: dict[int, int] = {}

    def copy(self) -> Liveness:
        """A snapshot that shares the slots (they are not changed once set, but for a late `array`)."""
        other = Liveness()
        other.slots = dict(self.slots)
        other.every = dict(self.every)
        other.buffers = dict(self.buffers)
        other.references = dict(self.references)
        return other

    def define(self, index: int, slot: Slot, buffer: Buffer | None = None) -> None:
        """Slot `index` now holds `slot`, in `buffer` where it is an arena's."""
        self.slots[index] = self.every[index] = slot
        if buffer is not None:
            self.buffers[index] = buffer
        self.references[slot.owner] = self.references.get(slot.owner, 0) + 1

    def kill(self, index: int) -> Buffer | None:
        """Nobody reads slot `index` any more. Returns the buffer that nobody holds now, if there is one."""
        slot = self.slots.pop(index, None)
        if slot is None:
            return None
        self.references[slot.owner] -= 1
        if self.references[slot.owner]:
            return None
        del self.references[slot.owner]
        return self.buffers.pop(slot.owner, None)

    def sole_buffer(self, index: int) -> Buffer | None:
        """The arena buffer that slot `index` owns and nobody else views."""
        slot = self.slots[index]
        if slot.kind is Kind.OWNED and self.references[index] == 1:
            return self.buffers.get(index)
        return None


class Table:
    """The values of volatile slots during a run; allocated once, cleared after every run, also a failed one."""

    __slots__ = ("blank", "values")

    def __init__(self, n_slots: int) -> None:
        self.values: list[Any] = [None] * n_slots
        self.blank: tuple[None, ...] = (None,) * n_slots

    def clear(self) -> None:
        """Drop every reference to values of the run."""
        self.values[:] = self.blank
