"""Steps and states of one plan, as another plan of the same model has them: values keep their names, no more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
import ray.exceptions as rex

from actors.elements import senders_of
from actors.journal import Call, Journal, RayParcel, StateBound, StepRecord
from actors.parcels import INLINE_BYTES, pack, unpack
from hetero.planner.homes import home_of, withheld
from hetero.planner.plan import Plan
from hetero.routes import Routes
from hetero.runtime.child import value_bytes
from hetero.runtime.state import StateSpec
from hetero.runtime.state_copy import joined, regrouped

_FETCH_S = 10.0
"""How long an input of the caller's may take to come from this node's store."""


class Rerouting:
    """From one plan to another over the same providers, with the same shape classes."""

    def __init__(self, before: Plan, after: Plan) -> None:
        self._after = after
        self._routes = list(zip(map(Routes, before.sections), map(Routes, after.sections), strict=True))
        self._section = {p.id: k for k, section in enumerate(before.sections) for p in section.partitions}
        self._senders = senders_of(after)

    def reroute(self, journal: Journal) -> None:
        """What the journal has goes by the other plan from now on, the parcels that callers wait for included. A state
        that no child can keep is one that is not wanted any more: planning looks after the others."""
        for record in journal.records():
            if record.calls:
                self._reroute(record)
        if journal.base:
            specs = [s for copies in journal.base.values() for s in copies[-1].specs]
            bound = self._bound(specs)
            home = {s.input: b.child for b in bound for s in b.specs}
            whole = [joined(copies) for copies in journal.base.values()]
            copies = regrouped(whole, home, {b.child: b.withheld for b in bound})
            journal.base = {child: (copied,) for child, copied in copies.items()}
        journal.rehomed(self._bound)

    def _bound(self, specs: Sequence[StateSpec]) -> list[StateBound]:
        """What each child is told that keeps some of these states."""
        homes: dict[int, list[StateSpec]] = {}
        for spec in specs:
            home = home_of(self._after, spec.input, spec.output)
            if home is not None:
                homes.setdefault(home, []).append(spec)
        return [
            StateBound(child, tuple(theirs), withheld(self._after, {s.output for s in theirs}))
            for child, theirs in homes.items()
        ]

    # -- steps ---------------------------------------------------------------------------------------------------
    def _reroute(self, record: StepRecord) -> None:
        first = record.calls[0]
        before, after = self._routes[self._section[first.partition]]
        ports = {partition.id: (receives, sends) for partition, receives, sends in before.calls}
        old: dict[int, RayParcel] = {}
        for call in record.calls:
            receives, sends = ports[call.partition]
            old.update(zip(receives, call.receives, strict=True))
            old.update(zip(sends, call.sends, strict=True))
        new = self._given(record.step, before, after, old)
        on_device = first.on_device
        if on_device is not None:
            kept = withheld(self._after, on_device.outputs.keys())
            on_device = replace(on_device, withheld=frozenset(kept))
        calls = []
        for partition, receives, sends in after.calls:
            made = {k: RayParcel(record.step, None) for k in sends}
            new |= made
            calls.append(
                Call(
                    partition.child,
                    partition.id,
                    first.graph_slot,
                    tuple(new[k] for k in receives),
                    tuple(made.values()),
                    on_device=on_device,
                    banked=self._senders.get(partition.id, ()),
                )
            )
        record.calls, record.way = calls, None
        places = {name: (new[p.id], k) for p in after.to_caller for k, name in enumerate(p.values)}
        for parcel in before.to_caller:
            if parcel.id in old:
                old[parcel.id].parts = tuple(places[name] for name in parcel.values)

    def _given(
        self, step: int, before: Routes, after: Routes, old: Mapping[int, RayParcel]
    ) -> dict[int, RayParcel]:
        """The parcels of the caller's as the other plan has them; those that are the same stay what they are."""
        same = {p.values: old[p.id] for p in before.from_caller if p.id in old}
        found: dict[int, RayParcel] = {}
        values: dict[str, Any] = {}
        for parcel in after.from_caller:
            if parcel.values in same:
                found[parcel.id] = same[parcel.values]
                continue
            try:
                values = values or _values((p.values, old[p.id]) for p in before.from_caller if p.id in old)
                wire = pack([values[name] for name in parcel.values])
                small = sum(value_bytes(values[name]) for name in parcel.values) <= INLINE_BYTES
                content = wire if small else ray.put(wire)
            except rex.RayError:  # lost: so is the step, which shows when it is run
                content = next(p.content for p in old.values() if p.given and not isinstance(p.content, list))
            found[parcel.id] = RayParcel(step, content, given=True)
        return found


def _values(parcels: Iterable[tuple[Sequence[str], RayParcel]]) -> dict[str, Any]:
    """What the caller gave to a step, by name, as it lies in the store."""
    values: dict[str, Any] = {}
    for names, parcel in parcels:
        wire = parcel.content
        if not isinstance(wire, list):
            wire = ray.get(wire, timeout=_FETCH_S)
        values.update(zip(names, unpack(wire, bank=parcel.bank), strict=True))
    return values
