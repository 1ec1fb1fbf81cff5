"""Decode memo: a step that differs from the one before in growing extents alone binds anew only what they reach.

One token more, and the attention over the past has another shape; everything else has not. A section that was built
with room to grow is taken over to the next length: instructions whose operands stay are left as they are (their calls,
their views, their captured graphs), the others are compiled for the new shapes and bound to the same buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hetero.errors import HeteroError
from hetero.kernels.base import Call
from hetero.providers.base import Buffer
from hetero.runtime.builder import Builder
from hetero.runtime.capture.reasons import SeamReason
from hetero.runtime.fused_run import bind_run
from hetero.runtime.pins import Pins
from hetero.runtime.section import Record, Section, Tail
from hetero.runtime.slots import Kind, Liveness, Slot
from hetero.types import TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.runner import Runner, Signature

Growth = tuple[tuple[int, int, int], ...]
"""(position among the moving inputs, axis, by how much) of each extent that changed; and (-1, position among those
whose values decide shapes, by how much) of each such value."""
MOSTLY = 0.6
"""Share of a section's instructions from which so much depends on what grew that the section is left as it is."""
STEADY_STEPS = 2
"""Steps in a row that grow alike, after which the next ones are expected to."""


@dataclass(slots=True, eq=False)
class Drive:
    """How one graph slot drives a program: the section it ran last, and how its shapes have grown."""

    last: tuple[Signature, Section] | None = None
    pins: Pins | None = None
    """The caller's buffers that the last run was bound to."""
    growth: Growth = ()
    steady: int = 0
    off: bool = False
    """Whether most instructions depended on what grew: taking a section over costs no less than building one."""

    def missed(self, key: Signature) -> bool:
        """Shapes were not met before. Returns whether they differ from the last ones in extents (and values) alone."""
        growth = None if self.last is None else growth_of(self.last[0], key)
        if not growth:
            self.growth, self.steady = (), 0
            return False
        alike = [(k, axis) for k, axis, _ in growth] == [(k, axis) for k, axis, _ in self.growth]
        # Until it is steady, by the same amount; from then on (tokens may be taken back) by any.
        if growth == self.growth or (alike and self.steady >= STEADY_STEPS):
            self.steady += 1
        else:
            self.growth, self.steady = growth, 1
        return True


def growth_of(old: Signature, new: Signature) -> Growth | None:
    """The extents and values that differ; None where dtypes, ranks, the caller's buffers or anything else does."""
    if len(old[0]) != len(new[0]) or len(old[1]) != len(new[1]) or old[2] != new[2]:
        return None
    growth: list[tuple[int, int, int]] = []
    for k, (a, b) in enumerate(zip(old[0], new[0], strict=True)):
        if a == b:
            continue
        if not isinstance(a, TensorSpec) or not isinstance(b, TensorSpec):
            return None
        if a.dtype != b.dtype or len(a.shape) != len(b.shape):
            return None
        growth += [
            (k, axis, n - m) for axis, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n
        ]
    for k, (x, y) in enumerate(zip(old[1], new[1], strict=True)):
        if x != y:
            if x is None or y is None or len(x) != len(y):
                return None
            growth.append((-1, k, int.from_bytes(y, "little") - int.from_bytes(x, "little")))
    return tuple(growth)


class _Outgrown(Exception):  # noqa: N818  (it is news, and never leaves this file)
    """The section has no room for these shapes, or binds them in another way."""


class Regrowth(Builder):
    """Takes one section over to other extents. Nothing of the section changes before everything is bound."""

    def __init__(self, runner: Runner, section: Section) -> None:
        live = Liveness()
        live.slots = live.every = dict(section.exit.every)
        super().__init__(runner, section.start, live, section.lease, call=False)
        self._old = section
        self._changed: set[int] = set()
        self._record = Record(0, 0, 0, 0, (), {})
        self._used = 0
        self._fresh: list[Call] = []
        self._frames = dict(section.frames)
        self.mostly = False
        """Whether so much depends on what grew that building everything costs little more."""

    def to(self, entry: Liveness) -> bool:
        """Bind for the inputs in `entry` (their slots, without frames). False where that cannot be."""
        section, instructions = self._old, self.runner.program.instructions
        calls: dict[int, Call] = {}
        again: list[int] = []
        affected = 0
        tail: Tail | None = section.tail
        kernels = self.runner.context.kernels
        kernels.passing = True
        try:
            self._enter(entry)
            for record in section.records:
                run = instructions[record.start : record.stop]
                if all(self._changed.isdisjoint(i.inputs) for i in run):
                    continue
                self.at, self._record, self._used, self._fresh = record.start, record, 0, []
                made = None
                if len(run) == 1:
                    made = self._instruction(run[0], self.runner.analysis.kernels[record.start])
                elif bind_run(self, record.stop) != record.stop:
                    return False
                if len(self._fresh) != record.last - record.first or self._used != len(record.buffers):
                    return False
                if (made is None) != (tail is None or record.stop != section.stop):
                    return False
                tail = made if made is not None else tail
                calls.update(zip(range(record.first, record.last), self._fresh, strict=True))
                affected += len(run)
                again.extend(range(record.start, record.stop))
        except (_Outgrown, HeteroError):
            return False  # where it is an error, building from scratch raises it again
        finally:
            kernels.passing = False
        self.mostly = affected > MOSTLY * (section.stop - section.start)
        if self.mostly:
            return False
        self._commit(calls, tail)
        for at in again:
            section.tolerant.pop(at, None)
        section.tolerant.update(self.section.tolerant)
        return True

    def _enter(self, entry: Liveness) -> None:
        """Define the inputs whose specs are others now, in their frames where they have one."""
        frames = self.runner.frames
        for position, port in enumerate(self.runner.program.inputs):
            slot = entry.slots[port.slot]
            buffer = self._old.frame_buffers.get(position)
            old = self.live.every[port.slot]
            if _as_before(old, slot):
                continue
            if buffer is not None:
                if frames is None or not frames.fits(slot.spec) or not isinstance(slot.spec, TensorSpec):
                    raise _Outgrown
                if slot.spec.nbytes > buffer.nbytes:
                    raise _Outgrown
                array = self._frames[position] = self.provider.array(buffer, slot.spec)
                slot = Slot(Kind.BORROWED, slot.spec, port.slot, False, array, slot.value)
            self._define(port.slot, slot)

    def _commit(self, calls: dict[int, Call], tail: Tail | None) -> None:
        section = self._old
        growing = SeamReason.GROWING_SYMBOL
        if any(
            section.seams[k] is None for k in calls
        ):  # what was recorded holds calls that are no longer right
            for captured in section.captured.values():
                captured.discard()
            section.captured.clear()
        for k, call in calls.items():
            section.calls[k] = call
            if section.seams[k] is None:
                section.seams[k] = growing
        for captured in section.captured.values():
            captured.replace(calls)
        section.frames = self._frames
        section.tail = tail
        section.exit.every = self.live.every
        if not self._changed.isdisjoint(section.exit.slots):
            for following in section.next.values():
                following.close()
            section.next.clear()
        for index in section.exit.slots:
            section.exit.slots[index] = self.live.every[index]
        section.results = None
        section.lent.clear()

    # -- what the builder asks for ------------------------------------------------------------------------------
    def _define(self, index: int, slot: Slot, buffer: Buffer | None = None) -> None:
        old = self.live.every.get(index)
        if old is None or not _same(old, slot):
            self.live.every[index] = slot
            self._changed.add(index)

    def _take(self, nbytes: int, *, grows: bool = False) -> Buffer:
        """The buffer that was taken at this place when the section was built."""
        if self._used in self._record.in_place:
            raise _Outgrown
        return self._taken_then(nbytes)

    def _taken_then(self, nbytes: int) -> Buffer:
        buffers = self._record.buffers
        if self._used == len(buffers) or buffers[self._used].nbytes < nbytes:
            raise _Outgrown
        self._used += 1
        return buffers[self._used - 1]

    def _reuse(self, index: int, nbytes: int) -> Buffer | None:
        """As when the section was built, where the sizes still are alike."""
        if self._record.in_place.get(self._used) != index:
            return None
        spec = self.live.slots[index].spec
        if not isinstance(spec, TensorSpec) or spec.nbytes != nbytes:
            raise _Outgrown
        return self._taken_then(nbytes)

    def _step(self, call: Call, seam: SeamReason | None = None, at: int | None = None) -> None:
        self._fresh.append(call)


def _as_before(old: Slot, new: Slot) -> bool:
    """Whether an input has the spec, the value and (where it is bound) the memory that it had."""
    if old.spec != new.spec or (new.array is not None and new.array is not old.array):
        return False
    return _same_value(old, new)


def _same_value(old: Slot, new: Slot) -> bool:
    a, b = old.value, new.value
    return a is b or (a is not None and b is not None and a.tobytes() == b.tobytes())


def _same(old: Slot, new: Slot) -> bool:
    """Whether readers of `old` may go on as they are."""
    if old.kind is not new.kind or old.spec != new.spec or old.volatile is not new.volatile:
        return False
    if not _same_value(old, new):
        return False
    # An owned value of the same spec lies in the buffer that it had; views and inputs may lie elsewhere.
    return new.volatile or new.kind in (Kind.OWNED, Kind.NOTHING, Kind.KNOWN, Kind.CONSTANT)
