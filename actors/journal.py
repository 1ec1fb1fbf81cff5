"""What is needed to replay steps: their calls with the parcels that they take, and the state that they began from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from actors.parcels import copied
from hetero.runtime.pins import OnDevice
from hetero.runtime.state import StateChange, StateSpec

if TYPE_CHECKING:
    from actors.channels.driver import DriverChannel
    from actors.channels.flight import Flight


@dataclass(slots=True, eq=False)
class RayParcel:
    """A parcel of one step: a reference to its wire form, or a small one itself. `given`: by the caller."""

    step: int
    content: Any
    given: bool = False
    bank: Any = None
    """A reference to the elements that its sequences put aside."""
    parts: tuple[tuple[RayParcel, int], ...] | None = None
    """Where its values come from, each a place in another parcel, if the step goes by another plan than it was begun
    with."""

    def sources(self) -> list[tuple[RayParcel, int | None]]:
        """The parcels in which its values come; with None this one as it is."""
        if self.parts is None:
            return [(self, None)]
        found: list[tuple[RayParcel, int | None]] = []
        for parcel, place in self.parts:
            inner = parcel.parts
            while inner is not None:
                parcel, place = inner[place]
                inner = parcel.parts
            found.append((parcel, place))
        return found


@dataclass(slots=True, eq=False)
class Call:
    """One call of a partition. `sends` change their content when it is called again; `done` becomes ready with it."""

    child: int
    partition: int
    graph_slot: str
    receives: tuple[RayParcel, ...]
    sends: tuple[RayParcel, ...] = ()
    done: Any = None
    on_device: OnDevice | None = None
    banked: tuple[int, ...] = ()
    """Which of `sends` may put elements of sequences aside."""


class StepRecord:
    """A step and its calls, in the order in which they were made.

    `way`: the channel and the flight of a step that goes over channels.
    """

    __slots__ = ("calls", "step", "way")

    def __init__(self, step: int) -> None:
        self.step = step
        self.way: tuple[DriverChannel, Flight] | None = None
        self.calls: list[Call] = []


@dataclass(frozen=True, slots=True)
class StateBound:
    """A child was told to keep these values, from nothing on."""

    child: int
    specs: tuple[StateSpec, ...]
    withheld: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class StateChanged:
    """A child's states were changed between steps."""

    child: int
    change: StateChange


Entry: TypeAlias = StepRecord | StateBound | StateChanged


class Journal:
    """Steps in flight, and, where children keep state, everything since the last checkpoint. Not thread-safe.

    Memory: a step in flight holds what its caller holds anyway. A finished one holds what the caller gave it: objects
    of the store by reference, small values as copies.
    """

    def __init__(self) -> None:
        self.open: dict[int, StepRecord] = {}
        self.bound: dict[int, StateBound] = {}
        """What each child that keeps state was told."""
        self.base: dict[int, tuple[Any, ...]] = {}
        """The checkpoint: per child that keeps state, copies of which each goes on from the one before. Empty:
        `beginning`, from nothing on."""
        self.base_step: int | None = None
        """The step after which `base` is the state."""
        self.beginning: dict[int, StateBound] = {}
        self._entries: list[Entry] = []

    # -- steps ---------------------------------------------------------------------------------------------------
    def record(self, step: int) -> StepRecord:
        """The record of a step in flight, made where there is none."""
        record = self.open.get(step)
        if record is None:
            record = self.open[step] = StepRecord(step)
        return record

    def finish(self, step: int) -> None:
        """The step's outputs are the caller's. Where state is kept, what it took is kept too."""
        for entry in self._entries:
            if isinstance(entry, StepRecord):
                _release(entry)  # of a replay: it has led to this step's outputs
        record = self.open.pop(step, None)
        if record is None or not self.bound:
            return
        _release(record)
        for parcel in {id(p): p for call in record.calls for p in call.receives if p.given}.values():
            if isinstance(parcel.content, list):  # memory of the caller's, who may change it from now on
                parcel.content = copied(parcel.content)
        self._entries.append(record)

    def drop(self, step: int) -> None:
        """The step has failed: nothing is left of it."""
        self.open.pop(step, None)

    # -- state ---------------------------------------------------------------------------------------------------
    def bind(self, bound: StateBound) -> bool:
        """A child keeps state from now on, or none where there are no specs. Whether that makes all before it moot."""
        if bound.specs:
            self.bound[bound.child] = bound
        else:
            self.bound.pop(bound.child, None)
        return self._began(bound)

    def change(self, child: int, change: StateChange) -> bool:
        """The states of a child were changed. Whether that makes all before it moot."""
        copied = StateChange(change.reset, change.length, copy.deepcopy(dict(change.values)))
        return self._began(StateChanged(child, copied))

    def _began(self, entry: StateBound | StateChanged) -> bool:
        """Add an entry, and drop everything before the one from which on all states have begun anew."""
        self._entries.append(entry)
        fresh: set[int] = set()
        for k in range(len(self._entries) - 1, -1, -1):
            each = self._entries[k]
            if isinstance(each, StepRecord):
                return False
            if isinstance(each, StateBound) or each.change.reset:
                fresh.add(each.child)
            if fresh >= self.bound.keys():
                del self._entries[: k if self.bound else None]
                self.base, self.base_step, self.beginning = {}, None, dict(self.bound)
                return True
        return False

    def rehomed(self, bound: Callable[[Sequence[StateSpec]], Sequence[StateBound]]) -> None:
        """The states lie on other children from now on, as `bound` says: what the journal has of them is told to these.
        `base` is the caller's to change."""
        told: dict[int, tuple[StateSpec, ...]] = {}
        entries: list[Entry] = []
        for entry in self._entries:
            if isinstance(entry, StepRecord):
                entries.append(entry)
            elif isinstance(entry, StateBound):
                told[entry.child] = entry.specs
                changed = {b.child for b in bound(entry.specs)}
                everything = bound([s for specs in told.values() for s in specs])
                entries += (b for b in everything if b.child in changed)
            else:
                specs = self.bound[entry.child].specs if entry.child in self.bound else ()
                entries += (StateChanged(b.child, entry.change) for b in bound(specs))
        self._entries = entries

        def together(states: Mapping[int, StateBound]) -> dict[int, StateBound]:
            return {b.child: b for b in bound([s for each in states.values() for s in each.specs])}

        self.bound, self.beginning = together(self.bound), together(self.beginning)

    def checkpointed(self, step: int, base: dict[int, tuple[Any, ...]]) -> None:
        """The state after `step` is in `base`: what came until then is not needed any more."""
        at = next(k for k, e in enumerate(self._entries) if isinstance(e, StepRecord) and e.step == step)
        del self._entries[: at + 1]
        self.base, self.base_step = base, step

    def entries(self) -> Iterator[Entry]:
        """What leads from the base to now, in order, without the steps in flight."""
        return iter(tuple(self._entries))

    def kept(self, step: int) -> StepRecord:
        """The record of a step that has finished since the base."""
        return next(e for e in self._entries if isinstance(e, StepRecord) and e.step == step)

    def has_kept(self, step: int) -> bool:
        """Whether the step has finished well, since the base."""
        return any(isinstance(e, StepRecord) and e.step == step for e in reversed(self._entries))

    def kept_records(self) -> list[StepRecord]:
        """The steps that have finished since the base, in order."""
        return [e for e in self._entries if isinstance(e, StepRecord)]

    def records(self) -> list[StepRecord]:
        """All steps that a replay gives to the children, in order."""
        return [*self.kept_records(), *self.open.values()]

    def __len__(self) -> int:
        return len(self._entries)


def _release(record: StepRecord) -> None:
    """Let go of what its calls made."""
    record.way = None
    for call in record.calls:
        call.done = None
        for parcel in call.sends:
            parcel.content = parcel.bank = None


def first_unfinished(
    records: Sequence[StepRecord], child: int, is_done: Any
) -> tuple[StepRecord, Call] | None:
    """The call that a child is at, of all that it was given: calls of a child end in the order in which they were made.

    `is_done(call)`: whether a call has ended well.
    """
    for record in records:
        for call in record.calls:
            if call.child == child and call.done is not None and not is_done(call):
                return record, call
    return None
