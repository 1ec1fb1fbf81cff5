"""Steps given to children again: from the last checkpoint on what the journal has, then what is in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray

from actors.journal import Call, Journal, StateBound, StepRecord
from actors.members import Held, Member
from actors.rebuilding import Rebuilding
from hetero.runtime.state_copy import joined


class Replaying:
    """Calls alone: `rebuilding` knows which of them make states again, and is asked how they went. Not thread-safe."""

    def __init__(self, held: Held, journal: Journal, rebuilding: Rebuilding) -> None:
        self._held, self._journal, self._rebuilding = held, journal, rebuilding

    def restore(self) -> None:
        """Bring every child that keeps state to where the journal begins."""
        self._held.roads.pause()  # what children compute for channels ends before they are told anything more
        journal = self._journal
        self._rebuilding.begin()
        for child, member in self._held.members.items():
            if child in journal.base:
                copy = ray.put(joined(journal.base[child]))
                self._rebuilding.called(member, member.actor.restore_state.remote(member.generation, copy))
            elif child in journal.beginning:
                self._bind(member, journal.beginning[child])

    def replay(self, open_steps: Sequence[int]) -> list[int]:
        """Give out what the journal has, and these steps in flight; returns the numbers of all."""
        self._held.roads.pause()
        journal = self._journal
        self._rebuilding.replayed()
        for step in open_steps:
            journal.record(step).way = None
        steps = [record.step for record in journal.records()]
        for member in self._held.members.values():
            if steps:
                member.actor.drop.remote(member.generation, *steps)
        for entry in journal.entries():
            if isinstance(entry, StepRecord):
                self._issue_all(entry)
                continue
            member = self._held.members[entry.child]
            if isinstance(entry, StateBound):
                self._bind(member, entry)
            else:
                changed = member.actor.change_state.remote(member.generation, entry.change)
                self._rebuilding.called(member, changed)
        for step in open_steps:
            self._issue_all(journal.record(step))
        return steps

    def _bind(self, member: Member, bound: StateBound) -> None:
        bind = member.actor.bind_state.remote(member.generation, bound.specs, bound.withheld)
        self._rebuilding.called(member, bind)

    def _issue_all(self, record: StepRecord) -> None:
        for call in record.calls:
            issue(self._held.members[call.child], record.step, call)


def issue(member: Member, step: int, call: Call) -> None:
    """Make a call of a partition; its parcels and `done` are the new ones from now on."""
    contents, banks = [p.content for p in call.receives], [p.bank for p in call.receives]
    rare: dict[str, Any] = {}
    if call.on_device is not None:
        rare["on_device"] = call.on_device
    if call.banked or any(bank is not None for bank in banks):
        rare |= {"banks": banks, "banked": call.banked}  # in a list, references stay references
    n_sends, n_returns = len(call.sends), len(call.sends) + len(call.banked)
    refs = member.run(n_returns).remote(
        member.generation, call.partition, step, call.graph_slot, *contents, **rare
    )
    sent = refs if n_returns > 1 else [refs]
    for parcel, ref in zip(call.sends, sent[:n_sends], strict=False):
        parcel.content = ref
    for k, ref in zip(call.banked, sent[n_sends:], strict=False):
        call.sends[k].bank = ref
    call.done = sent[0]
