"""Roots: the section that a run begins with: the last one again, one that was met before, one taken over, a new one."""

from __future__ import annotations

import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.errors import ProgramError
from hetero.runtime.decode_memo import STEADY_STEPS, Drive, Usual
from hetero.runtime.following import Following
from hetero.runtime.pins import Pins
from hetero.runtime.regrowth import Regrowth
from hetero.runtime.section import Key, Section, value_spec
from hetero.runtime.slots import same_known
from hetero.types import HostArray, Spec, TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.runner import Runner

_VALUE_LIMIT = 64
"""Elements of an input whose value may take part in the signature."""


class Signature(tuple[Key, tuple[bytes | None, ...], bytes]):
    """Specs of all inputs, the values of those that decide shapes, and where the caller's own buffers lie.

    A decoder has dozens of inputs of equal specs, and each step looks its signature up several times: it is hashed
    once, specs that are one object in a row too.
    """

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("hash")
        if found is None:
            last, own, hashes = None, 0, []
            for spec in self[0]:
                if spec is not last:
                    last, own = spec, hash(spec)
                hashes.append(own)
            found = self.__dict__["hash"] = hash((tuple(hashes), self[1], self[2]))
        return found


class Roots:
    """The first sections of one runner, by the signature of its inputs, and how each graph slot drives them.

    `limit`: how many are kept; what was used longest ago goes first.
    """

    def __init__(self, runner: Runner, value_inputs: tuple[int, ...], limit: int) -> None:
        self.sections: OrderedDict[Signature, Section] = OrderedDict()
        self.drives: defaultdict[str, Drive] = defaultdict(Drive)
        self.value_inputs = value_inputs
        self._runner = runner
        self._limit = limit
        self._value_misses = 0

    def choose(self, inputs: Sequence[Any], pins: Pins | None) -> tuple[Section, Sequence[Any], bool]:
        """The section for these inputs, the inputs as it wants them, and whether it is new, so that it ran already."""
        runner = self._runner
        slot = runner.context.graph_slot
        drive = self.drives["" if slot is None else slot.name]
        last = drive.last
        if last is not None and drive.pins is pins and not self.value_inputs:
            if drive.usual is not None:
                for k, dtype, shape in drive.usual:
                    value = inputs[k]
                    if value.__class__ is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                        break
                else:
                    return last[1], inputs, False
            if self._holds(last[0][0], inputs):
                drive.usual = self._usual(last[0][0])
                return last[1], inputs, False
        drive.pins = pins
        if runner.frames is not None:
            inputs = runner.frames.detached(inputs)
        self._watch_values()
        key = self._signature(inputs, pins)
        found = self.sections.get(key)
        if found is None:
            found = self._tolerated(key, inputs) or self._regrown(drive, key, inputs)
            if found is None:
                return self._first(drive, key, inputs), inputs, True
        self.sections.move_to_end(key)
        drive.last, drive.usual = (key, found), None
        return found, inputs, False

    def drive(self) -> Drive:
        """What this run's graph slot did with this program before."""
        runner = self._runner
        slot = runner.context.graph_slot
        return self.drives["" if slot is None else slot.name]

    def _tolerated(self, key: Signature, inputs: Sequence[Any]) -> Section | None:
        """A section for these specs and other values of inputs, where all that read those take the new ones as well."""
        if not self.value_inputs:
            return None
        for old, section in self.sections.items():
            if old[0] != key[0] or old[2] != key[2]:
                continue
            values = zip(self.value_inputs, old[1], key[1], strict=True)
            if all(a == b or self._accepts(section, k, inputs) for k, a, b in values):
                del self.sections[old]
                self.sections[key] = section
                return section
        return None

    def _accepts(self, section: Section, k: int, inputs: Sequence[Any]) -> bool:
        """Whether a section's calls are right for the value of input `k`."""
        runner = self._runner
        slot = runner.program.inputs[k].slot
        readers = runner.analysis.readers.get(slot)
        return (
            readers is not None
            and _is_small(inputs[k])
            and readers <= section.tolerant.keys()
            and all(takes(inputs[k]) for at in readers for s, takes in section.tolerant[at] if s == slot)
        )

    def _regrown(self, drive: Drive, key: Signature, inputs: Sequence[Any]) -> Section | None:
        """The last section, taken over to extents that have grown; None where it has to be built."""
        runner = self._runner
        if drive.last is None or runner.depth:  # bodies keep every one of a few signatures
            return None
        if not drive.missed(key):
            runner.statistics.memo_ineligible += 1
            return None
        if drive.steady <= STEADY_STEPS or drive.off or not runner.options.decode_memo:
            return None
        old, section = drive.last
        if self._driven_by_another(section, drive):
            runner.statistics.memo_ineligible += 1
            return None
        if not self._taken_over(drive, section, key, inputs):
            runner.statistics.memo_rebuilt += 1
            return None
        section.arriving = None
        runner.statistics.memo_replayed += 1
        del self.sections[old]
        self.sections[key] = section
        if runner.options.verify_decode_memo:
            self._verify(section, key, inputs)
        return section

    def _taken_over(self, drive: Drive, section: Section, key: Signature, inputs: Sequence[Any]) -> bool:
        """Whether `section` could be taken over to these inputs, and is."""
        runner, twins = self._runner, section.twins
        entry = runner.moving_slots(key[0], self._values(inputs))
        if twins is not None:
            following = Following(runner, section, twins)
            if following.follow(entry):
                if runner.options.verify_decode_memo:
                    following.check_shifted()
                return True
            section.twins = None
        regrowth = Regrowth(runner, section)
        found = regrowth.explore(entry)
        drive.off = regrowth.mostly
        return found

    def _driven_by_another(self, section: Section, drive: Drive) -> bool:
        """Whether another graph slot ran `section` last, or has captured it: it finds it there as it left it."""
        runner = self._runner
        slot = runner.context.graph_slot
        own = "" if slot is None else slot.name
        return any(name != own for name in section.captured) or any(
            d is not drive and d.last is not None and d.last[1] is section for d in self.drives.values()
        )

    def _verify(self, section: Section, key: Signature, inputs: Sequence[Any]) -> None:
        """Raises: ProgramError where a program bound from scratch has other shapes, or folds other values."""
        runner = self._runner
        scratch = runner.build(0, runner.entry(key[0], self._values(inputs)), None, ())
        try:
            fresh = scratch.exit.every
            for index, slot in section.exit.every.items():
                if index in fresh and not same_known(slot, fresh[index]):
                    raise ProgramError(
                        f"slot {index} of {runner.program.name} was taken over as {slot.known_spec()}, "
                        f"but is {fresh[index].known_spec()}",
                        device=runner.provider.name,
                    )
        finally:
            scratch.close()

    def _holds(self, key: Key, inputs: Sequence[Any]) -> bool:
        """Whether the inputs have the specs of `key`."""
        runner = self._runner
        for k, spec in zip(runner.moving, key, strict=True):
            value = inputs[k]
            if value.__class__ is np.ndarray and spec.__class__ is TensorSpec:
                if value.shape != spec.shape or value.dtype != spec.dtype:
                    return False
            elif spec.__class__ is not TensorSpec:
                if value_spec(value) != spec:
                    return False
            elif getattr(value, "shape", None) != spec.shape or value.dtype != spec.dtype:
                return False
        return True

    def _usual(self, key: Key) -> Usual | None:
        """What arrays of the specs of `key` are; None where not all are tensors."""
        usual = zip(self._runner.moving, key, strict=True)
        found = tuple((k, spec.dtype, spec.shape) for k, spec in usual if isinstance(spec, TensorSpec))
        return found if len(found) == len(key) else None

    def _signature(self, inputs: Sequence[Any], pins: Pins | None) -> Signature:
        runner = self._runner
        specs = tuple(_specs_of([inputs[k] for k in runner.moving]))
        values = tuple([inputs[k].tobytes() if _is_small(inputs[k]) else None for k in self.value_inputs])
        return Signature((specs, values, b"" if pins is None else pins.key))

    def _first(self, drive: Drive, key: Signature, inputs: Sequence[Any]) -> Section:
        """Build the first section for these inputs, and run it."""
        runner = self._runner
        if self.value_inputs and any(known[0] == key[0] for known in self.sections):
            self._value_misses += 1  # shapes that are known, with values that are not
        growing = drive.last is not None and drive.steady >= STEADY_STEPS and runner.options.decode_memo
        before = drive.last[1].exit.every if growing and drive.last is not None else None
        runner.statistics.memo_primed += before is not None
        entry = runner.entry(key[0], self._values(inputs))
        section = runner.build(0, entry, None, (), inputs, before)
        self.keep(self.sections, key, section)
        drive.last, drive.usual = (key, section), None
        return section

    def _values(self, inputs: Sequence[Any]) -> dict[int, HostArray]:
        """By position, copies of the inputs whose values decide shapes."""
        return {k: inputs[k].copy() for k in self.value_inputs if _is_small(inputs[k])}

    def keep(self, cache: OrderedDict[Any, Section], key: Any, section: Section) -> None:
        """Put a section into a cache of them (its own, or what follows another one), from which one may have to go."""
        runner = self._runner
        cache[key] = section
        if len(cache) > self._limit:
            evicted = cache.pop(self._least_wanted(cache))
            for drive in self.drives.values():
                if drive.last is not None and drive.last[1] is evicted:
                    drive.last = None
            evicted.close()
            runner.statistics.sections_evicted += 1

    def _least_wanted(self, cache: OrderedDict[Any, Section]) -> Any:
        """The key that was used longest ago (never the last one), of those that no other graph slot stands on."""
        own = self.drive()
        kept = {id(d.last[1]) for d in self.drives.values() if d is not own and d.last is not None}
        oldest = itertools.islice(cache.items(), len(cache) - 1)
        free = (key for key, section in oldest if id(section) not in kept)
        return next(free, next(iter(cache)))

    def _watch_values(self) -> None:
        """Stop keying on input values that differ in every run: shapes are then computed as data.

        Between runs only: a run under way stands on its sections' buffers.
        """
        runner = self._runner
        if self.value_inputs and self._value_misses > 4 * self._limit:
            self.value_inputs = ()
            runner.drop_sections()

    def drop(self) -> None:
        """Close every section."""
        for drive in self.drives.values():
            drive.last = None
        self.drives.clear()
        for section in self.sections.values():
            section.close()
        self.sections.clear()


def _specs_of(values: Sequence[Any]) -> list[Spec]:
    """The specs of values, one object for those that are equal: as a decoder's states are, which then compare fast."""
    specs: list[Spec] = []
    known: dict[tuple[int, ...] | None, TensorSpec] = {}
    for value in values:
        same = known.get(getattr(value, "shape", None))
        if same is not None and value.dtype == same.dtype:
            specs.append(same)
            continue
        spec = value if value.__class__ is TensorSpec else value_spec(value)
        if isinstance(spec, TensorSpec):
            known[spec.shape] = spec
        specs.append(spec)
    return specs


def _is_small(value: Any) -> bool:
    """Whether an input that decides shapes takes part in the signature by its value."""
    return isinstance(value, np.ndarray) and value.size <= _VALUE_LIMIT
