"""Regrowth: a section is taken over to other extents; what they do not reach stays as it is.

Instructions whose operands stay keep their calls, their views and their captured graphs. The others are compiled for
the new shapes and bound to the same buffers: one by one where a section grows in this way for the first time, from
then on once for all that are twins (`runtime.following`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hetero.errors import HeteroError
from hetero.kernels.base import Call, Compiled
from hetero.program.program import Instruction
from hetero.providers.base import Buffer
from hetero.runtime.builder import Builder
from hetero.runtime.capture.reasons import SeamReason
from hetero.runtime.fused_run import bind_run
from hetero.runtime.section import Record, Section, Tail
from hetero.runtime.slots import Kind, Liveness, Slot, same_known
from hetero.runtime.twins import twins_of
from hetero.types import Spec, TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.runner import Runner

MOSTLY = 0.6
"""Share of a section's instructions from which so many have to be bound anew, twins left out, that the section is left
as it is."""
_COUNTERS = (
    "folded",
    "views",
    "in_place",
    "contiguous_copies",
    "volatile_steps",
    "fused_calls",
    "fused_instructions",
)


class OutgrownError(Exception):
    """The section has no room for these shapes, or binds them in another way."""


class Regrowth(Builder):
    """Takes one section over to other extents. Nothing of the section changes before everything is bound."""

    def __init__(self, runner: Runner, section: Section, every: dict[int, Slot] | None = None) -> None:
        """`every`: all slots of the section, to write what changes to; a copy of them where it is not given."""
        live = Liveness()
        super().__init__(runner, section.start, live, section.lease, call=False)
        self._old = section
        self._record = Record(0, 0, 0, 0, (), {})
        self.live.slots = self.live.every = dict(section.exit.every) if every is None else every
        self._was: Mapping[int, Slot] = section.exit.every
        self._frames = dict(section.frames)
        self._changed: set[int] = set()
        self._fresh: list[Call] = []
        self._used = 0
        self._kernel: Compiled | None = None
        self.mostly = False
        """Whether so much depends on what grew that building everything costs little more."""

    def explore(self, entry: Mapping[int, Slot]) -> bool:
        """Bind for the inputs in `entry` (by slot, without frames), one by one. False where that cannot be."""
        kernels = self.runner.context.kernels
        kernels.passing = True
        try:
            return self._explore(entry)
        except (OutgrownError, HeteroError):
            return False  # where it is an error, building from scratch raises it again
        finally:
            kernels.passing = False

    def _explore(self, entry: Mapping[int, Slot]) -> bool:
        """Bind anew, one by one, what is reached by what grew; and note what of it are twins."""
        section = self._old
        calls: dict[int, Call] = {}
        again: list[Record] = []
        tail: Tail | None = section.tail
        before = self._counts()
        self._enter(entry)
        for record in section.records:
            run = self.runner.program.instructions[record.start : record.stop]
            if all(self._changed.isdisjoint(i.inputs) for i in run):
                continue
            made = self._bound(record, run)
            tail = made if made is not None else tail
            calls.update(zip(range(record.first, record.last), self._fresh, strict=True))
            again.append(record)
        counted = {name: count - before[name] for name, count in self._counts().items()}
        twins = twins_of(
            self.runner,
            section,
            section.exit.every,
            self.live.every,
            frozenset(self._changed),
            again,
            counted,
        )
        affected = sum(step.record.stop - step.record.start for step in twins.steps)
        self.mostly = affected > MOSTLY * (section.stop - section.start)
        if self.mostly:
            return False
        self._commit(calls, tail, again)
        section.twins = twins
        return True

    def _counts(self) -> dict[str, int]:
        """The counters of what is bound, which count each twin."""
        return {name: getattr(self.runner.statistics, name) for name in _COUNTERS}

    def _bound(
        self, record: Record, run: Sequence[Instruction], kernel: Compiled | None = None
    ) -> Tail | None:
        """Bind one record anew. Raises: OutgrownError where it takes other calls or other memory than before."""
        section, made = self._old, None
        self._kernel = kernel
        self.at, self._record, self._used, self._fresh = record.start, record, 0, []
        if len(run) == 1:
            made = self._instruction(run[0], self.runner.analysis.kernels[record.start])
        elif bind_run(self, record.stop) != record.stop:
            raise OutgrownError
        if len(self._fresh) != record.last - record.first or self._used != len(record.buffers):
            raise OutgrownError
        if (made is None) != (section.tail is None or record.stop != section.stop):
            raise OutgrownError
        return made

    def _compiled(self, specs: Sequence[Spec]) -> Compiled:
        if self._kernel is None:
            self._kernel = super()._compiled(specs)
        return self._kernel

    def _enter(self, entry: Mapping[int, Slot]) -> None:
        """Define the inputs whose specs are others now, in their frames where they have one."""
        frames = self.runner.frames
        for position, port in enumerate(self.runner.program.inputs):
            slot = entry[port.slot]
            old = self.live.every[port.slot]
            if slot.state and slot.array is not old.array:  # as all of a growing decoder's are
                self.live.every[port.slot] = slot
                self._changed.add(port.slot)
                continue
            if _as_before(old, slot):
                continue
            buffer = self._old.frame_buffers.get(position)
            if buffer is not None:
                if frames is None or not frames.fits(slot.spec) or not isinstance(slot.spec, TensorSpec):
                    raise OutgrownError
                if slot.spec.nbytes > buffer.nbytes:
                    raise OutgrownError
                array = self._frames[position] = self.provider.array(buffer, slot.spec)
                slot = Slot(Kind.BORROWED, slot.spec, port.slot, False, array, slot.value)
            self._define(port.slot, slot)

    def _commit(
        self,
        calls: dict[int, Call],
        tail: Tail | None,
        again: Sequence[Record],
        shared: frozenset[int] = frozenset(),
    ) -> None:
        """Make true what was bound. `shared`: calls whose kernel is another instruction's."""
        section = self._old
        if section.tolerant:
            for record in again:
                for at in range(record.start, record.stop):
                    section.tolerant.pop(at, None)
        section.tolerant.update(self.section.tolerant)
        growing = SeamReason.GROWING_SYMBOL
        recorded = [k for k in calls if section.seams[k] is None]
        if recorded:  # what was recorded holds calls that are no longer right
            for captured in section.captured.values():
                captured.discard()
            section.captured.clear()
        for k in recorded:
            section.seams[k] = growing
        if not shared or shared is not section.sharing:  # else they were the same calls, or fewer
            section.shared, section.sharing = section.shared.difference(calls) | shared, shared
        for k, call in calls.items():
            section.calls[k] = call
        for captured in section.captured.values():
            captured.replace(calls)
        section.frames = self._frames
        section.tail = tail
        self._settle()
        slots = section.exit.slots
        handed_on = self._changed & slots.keys()
        if handed_on:
            for following in section.next.values():
                following.close()
            section.next.clear()
        for index in handed_on:
            slots[index] = self.live.every[index]
        section.results = None
        section.lent.clear()

    def _settle(self) -> None:
        """The section's slots are these from now on."""
        self._old.exit.every = self.live.every

    # -- what the builder asks for ------------------------------------------------------------------------------
    def _define(self, index: int, slot: Slot, buffer: Buffer | None = None) -> None:
        old = self._was.get(index)
        if old is None or not _same(old, slot):
            self.live.every[index] = slot
            self._changed.add(index)

    def _take(self, nbytes: int, *, grows: bool = False) -> Buffer:
        """The buffer that was taken at this place when the section was built."""
        if self._used in self._record.in_place:
            raise OutgrownError
        return self._taken_then(nbytes)

    def _taken_then(self, nbytes: int) -> Buffer:
        buffers = self._record.buffers
        if self._used == len(buffers) or buffers[self._used].nbytes < nbytes:
            raise OutgrownError
        self._used += 1
        return buffers[self._used - 1]

    def _reuse(self, index: int, nbytes: int) -> Buffer | None:
        """As when the section was built, where the sizes still are alike."""
        if self._record.in_place.get(self._used) != index:
            return None
        spec = self.live.slots[index].spec
        if not isinstance(spec, TensorSpec) or spec.nbytes != nbytes:
            raise OutgrownError
        return self._taken_then(nbytes)

    def _step(self, call: Call, seam: SeamReason | None = None, at: int | None = None) -> None:
        self._fresh.append(call)


def _as_before(old: Slot, new: Slot) -> bool:
    """Whether an input has the spec, the value and (where it is bound) the memory that it had."""
    return same_known(old, new) and (new.array is None or new.array is old.array)


def _same(old: Slot, new: Slot) -> bool:
    """Whether readers of `old` may go on as they are."""
    if old.kind is not new.kind or old.volatile is not new.volatile or not same_known(old, new):
        return False
    # An owned value of the same spec lies in the buffer that it had; views and inputs may lie elsewhere.
    return new.volatile or new.kind in (Kind.OWNED, Kind.NOTHING, Kind.KNOWN, Kind.CONSTANT)
