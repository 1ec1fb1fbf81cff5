"""Frames: memory of its own for each small input of a program, so that its calls are bound once.

The arrays that a program is given differ in every run; bound calls need the same ones. So small inputs are copied
into frames, and small results stay in the arena: a body's until the next iteration has taken them over, an outermost
program's until they are copied for the caller. Large values are handed on as they are, without a copy, and the calls
that touch them are bound anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.errors import HeteroError
from hetero.program.program import NO_SLOT, Program
from hetero.providers.base import Provider
from hetero.runtime.arena import Lease, roomy
from hetero.runtime.operands import contiguous_copy
from hetero.runtime.section import Section
from hetero.runtime.slots import Kind, Liveness, Slot
from hetero.types import STRING, Array, TensorSpec


@dataclass(frozen=True, slots=True)
class Iteration:
    """How a loop drives its body.

    `feeds`: position of an output -> position of the input that it becomes in the next iteration. All other outputs
    are consumed before the next iteration starts. `steady`: inputs that are the same array in all iterations.
    """

    feeds: Mapping[int, int]
    steady: frozenset[int]


def never_read(program: Program, position: int) -> bool:
    """Whether the program makes nothing of its input at `position`."""
    slot = program.inputs[position].slot
    return all(slot not in i.inputs for i in program.instructions) and all(
        p.slot != slot for p in program.outputs
    )


class Frames:
    """The frames of one body. `limit_bytes`: the largest value that is copied into a frame, or left in the arena."""

    def __init__(
        self, program: Program, provider: Provider, iteration: Iteration, escaping: frozenset[int], limit: int
    ) -> None:
        self.limit_bytes = limit
        self._provider = provider
        self._feeds = iteration.feeds
        self._steady = iteration.steady
        self._slots = [p.slot for p in program.inputs]
        self._names = [p.name for p in program.inputs]
        self._escaping = escaping
        self._held: dict[int, Any] = {}
        self._section: Section | None = None
        self._lent: dict[int, Array] = {}

    def fits(self, spec: object) -> bool:
        """Whether a value of `spec` is small enough."""
        return isinstance(spec, TensorSpec) and spec.nbytes <= self.limit_bytes and spec.dtype != STRING

    def lay_out(
        self, section: Section, live: Liveness, lease: Lease, before: Mapping[int, Slot] | None = None
    ) -> None:
        """Give `section` frames for the inputs that `live` starts with, for as long as `lease` lasts.

        Those that were of another spec `before` get room to grow.
        """
        for position, index in enumerate(self._slots):
            slot = live.slots[index]
            if slot.kind is not Kind.BORROWED or slot.array is not None or index in self._escaping:
                continue
            if not self.fits(slot.spec):
                continue
            assert isinstance(slot.spec, TensorSpec)
            try:
                grows = before is not None and before[index].spec != slot.spec
                buffer = lease.take(roomy(slot.spec.nbytes) if grows else slot.spec.nbytes)
            except HeteroError as error:
                raise error.at(operand=self._names[position]) from error.__cause__
            section.frame_buffers[position] = buffer
            section.frames[position] = array = self._provider.array(buffer, slot.spec)
            live.kill(index)
            live.define(index, Slot(Kind.BORROWED, slot.spec, index, False, array, slot.value), buffer)
            live.references[index] += 1  # held until the section goes: the next run writes there

    def fill(self, section: Section, inputs: Sequence[Any]) -> None:
        """Copy this iteration's inputs into the frames of `section`."""
        if not self._steady and self._provider.is_host:
            for position, frame in section.frames.items():
                value = inputs[position]
                if value is not frame:
                    frame[...] = value
            return
        if section is not self._section:
            self._held.clear()
            self._section = section
        for position, frame in section.frames.items():
            value = inputs[position]
            if value is frame:
                continue
            if position in self._steady:
                if self._held.get(position) is value:
                    continue
                self._held[position] = value
            if self._provider.is_host:
                frame[...] = value
                continue
            there = self._provider.upload(value) if isinstance(value, np.ndarray) else value
            self._provider.copy(there, frame)()

    def detached(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs without what lies in the section that ran last: another one may use that memory for itself."""
        return [contiguous_copy(self._provider, x) if id(x) in self._lent else x for x in inputs]

    def lend(self, section: Section) -> None:
        """`section` ran: its stable results are lent until the next iteration."""
        self._lent = section.lent

    def lent(self, value: Any) -> bool:
        """Whether `value` is a result that the next iteration overwrites."""
        return id(value) in self._lent

    def clobbered(self, output: int, slot: Slot) -> bool:
        """Whether the stable result at `output` lies in a frame that is refilled before the result is taken over."""
        fed = self._feeds.get(output)
        return fed is not None and slot.owner in self._slots and slot.owner != self._slots[fed]

    def rest(self) -> None:
        """The loop is over: whatever its frames hold is no longer anyone's."""
        self._held.clear()
        self._section = None
        self._lent = {}


def escaping_outputs(program: Program, iteration: Iteration, kept: frozenset[int]) -> frozenset[int]:
    """The outputs whose memory outlives an iteration, because the input they become does (`kept`: such slots)."""
    return frozenset(
        program.outputs[output].slot
        for output, fed in iteration.feeds.items()
        if program.inputs[fed].slot in kept and program.outputs[output].slot != NO_SLOT
    )
