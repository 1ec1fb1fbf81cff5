"""What memory a program's values need and what they were given: peak, sum, and how often a buffer is used again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from hetero.program.program import NO_SLOT, Program
from hetero.runtime.section import Section
from hetero.types import TensorSpec


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The values of one program, as it was bound for one set of shapes, that lie in the arena; workspaces do not
    count, nor does what has memory of its own.

    Invariant: peak_bytes <= used_bytes.
    """

    values: int
    sum_bytes: int
    """Of all values: what they would take without reuse."""
    peak_bytes: int
    """Of the values that live at once, where most do: what any plan needs."""
    used_bytes: int
    """Of the buffers that were held at once, workspaces and room to grow included."""
    buffers: int
    """Different buffers that the values lie in."""

    @property
    def reuse_ratio(self) -> float:
        """Bytes of values per byte that was held for them."""
        return self.sum_bytes / self.used_bytes if self.used_bytes else 1.0


def memory_plan(program: Program, path: Sequence[Section]) -> MemoryPlan:
    """The plan of a program whose sections are `path`, from its first one on. Linear in what was bound."""
    slots = path[-1].exit.every
    sizes: dict[int, int] = {}
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    overwritten: dict[int, int] = {}
    buffers = set(map(id, path[0].frame_buffers.values()))

    def define(index: int, at: int) -> None:
        spec = slots[index].spec
        assert isinstance(spec, TensorSpec), "only tensors lie in the arena"
        sizes[index], made[index] = spec.nbytes, at
        last[index] = max(last.get(index, at), at)

    for position in path[0].frame_buffers:
        define(program.inputs[position].slot, 0)
    at = 0
    for section in path:
        buffers.update(map(id, section.buffers.values()))
        for record in section.records:
            for instruction in program.instructions[record.start : record.stop]:
                for index in instruction.inputs:
                    if index in slots:
                        last[slots[index].owner] = at
                for index in instruction.outputs:
                    if index in section.buffers:
                        define(index, at)
            overwritten.update(dict.fromkeys(record.in_place.values(), at))
            at += 1
    for position in path[0].frame_buffers:  # the next run's input goes there
        last[program.inputs[position].slot] = at
    for port in program.outputs:
        if port.slot != NO_SLOT and port.slot in slots:
            last[slots[port.slot].owner] = at
    change = [0] * (at + 2)
    for index, nbytes in sizes.items():
        change[made[index]] += nbytes
        change[overwritten.get(index, last[index] + 1)] -= nbytes
    return MemoryPlan(
        len(sizes),
        sum(sizes.values()),
        max(accumulate(change)),
        max(section.lease.peak_bytes for section in path),
        len(buffers),
    )
