"""Sections: instructions bound once for given specs, up to the next one whose result shapes depend on data."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.errors import HeteroError
from hetero.kernels.base import Call
from hetero.program.program import Instruction
from hetero.providers.base import Buffer, Provider
from hetero.providers.lookup import failure
from hetero.runtime.arena import Lease
from hetero.runtime.capture.captured import Captured
from hetero.runtime.capture.reasons import SeamReason
from hetero.runtime.slots import Liveness
from hetero.types import (
    ABSENT,
    Array,
    HostArray,
    MapSpec,
    MapValue,
    SequenceSpec,
    SequenceValue,
    Spec,
    TensorSpec,
)

if TYPE_CHECKING:
    from hetero.runtime.twins import Twins

Key = tuple[Spec, ...]
Tail = Callable[[], Key]
Accepts = Callable[[HostArray], bool]
Result = tuple[int, Any, bool]
"""A slot of the run's table, or NO_SLOT; then the value that is always there, and whether readers need a copy."""


@dataclass(frozen=True, slots=True)
class Record:
    """How instructions [start, stop) were bound (one, or a run that is fused): calls [first, last) of the section, and
    the buffers that were taken, in order.

    `in_place`: position among the buffers -> the slot whose memory it was until then.
    """

    start: int
    stop: int
    first: int
    last: int
    buffers: tuple[Buffer, ...]
    in_place: Mapping[int, int]


@dataclass(slots=True, eq=False)
class Section:
    """Bound calls for instructions [start, stop), the arena lease they live on, and what comes after.

    `nodes[k]` is the instruction that calls[k] belongs to, `seams[k]` why that call cannot be recorded (None: it can).
    `tail` runs instruction stop - 1 where its result depends on
    data, and returns the specs of its outputs: the key of the next section. None at the end of the program.
    """

    start: int
    lease: Lease
    exit: Liveness
    stop: int = 0
    calls: list[Call] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    seams: list[SeamReason | None] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    buffers: dict[int, Buffer] = field(default_factory=dict)
    """Slot -> the arena's buffer that its value lies in, of the values made here."""
    warm: bool = False
    """Whether its calls were made: a library that a kernel loads or tunes when it is first called is no thing to
    record."""
    captured: dict[str, Captured] = field(default_factory=dict)
    """By graph slot."""
    tail: Tail | None = None
    tail_reason: SeamReason | None = None
    next: OrderedDict[Key, Section] = field(default_factory=OrderedDict)
    frames: dict[int, Array] = field(default_factory=dict)
    """Of the first section: input position -> the memory that the input is copied into."""
    frame_buffers: dict[int, Buffer] = field(default_factory=dict)
    arriving: tuple[tuple[int, int, str], ...] | None = None
    """Of the first section, once inputs came: position, slot and name of those that calls find in the run's table."""
    results: list[Result] | None = None
    """Of the last section, once it ran: where each output of the program is found."""
    tolerant: dict[int, tuple[tuple[int, Accepts], ...]] = field(default_factory=dict)
    """Instructions that shapes follow from values in -> the slots of such values, and what says whether the bound call
    is right for another one."""
    twins: Twins | None = None
    """How it is bound anew when it grows as it did last."""
    shared: frozenset[int] = frozenset()
    """Calls whose kernel is that of another instruction, which errors of the kernel's own may name."""
    sharing: frozenset[int] = frozenset()
    """Of these, the ones that it was last told of as a whole."""
    lent: dict[int, Array] = field(default_factory=dict)
    """Results that stay in this section's memory, by id."""

    def close(self) -> None:
        """Give up its buffers and those of every section after it."""
        stack = [self]
        while stack:
            section = stack.pop()
            stack.extend(section.next.values())
            section.next.clear()
            section.calls.clear()
            for captured in section.captured.values():
                captured.discard()
            section.captured.clear()
            section.lease.close()


def value_spec(value: Any) -> Spec:
    """The spec of a value that a data-dependent kernel returned."""
    if type(value) is np.ndarray:  # which it mostly is, and which takes far less time to tell
        return TensorSpec(value.dtype, value.shape)
    if value is None:
        return ABSENT
    if isinstance(value, SequenceValue):
        return SequenceSpec(None)
    if isinstance(value, MapValue):
        return MapSpec(value.value_dtype)
    return TensorSpec(value.dtype, tuple(value.shape))


@contextmanager
def located(instruction: Instruction, provider: Provider) -> Iterator[None]:
    """Every error that leaves the block says on which node and device it happened."""
    try:
        yield
    except Exception as error:
        ours = locate(error, instruction, provider)
        raise ours from ours.__cause__


def locate(error: Exception, instruction: Instruction, provider: Provider) -> HeteroError:
    """`error` as one of ours, with node, op and device filled in; its `__cause__` is set (raise it `from` that)."""
    return failure(error, instruction.op, provider.name)
