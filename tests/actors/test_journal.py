"""The journal holds what a replay needs, and lets go of everything else."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.journal import Call, Journal, RayParcel, StateBound, StateChanged, StepRecord, first_unfinished
from hetero.runtime.state import StateChange, StateSpec
from hetero.types import TensorSpec

SPEC = StateSpec("past", "present", TensorSpec(np.dtype(np.float32), (4, 2)), 0)


def bound(child: int) -> StateBound:
    return StateBound(child, (SPEC,), ())


def step(journal: Journal, number: int, value: Any = None) -> StepRecord:
    record = journal.record(number)
    given, sent = RayParcel(number, [value], given=True), RayParcel(number, "ref")
    record.calls = [
        Call(0, 0, "primary", (given,), (sent,), "ref"),
        Call(1, 1, "primary", (sent,), (), "ack"),
    ]
    return record


def test_without_state_a_finished_step_is_forgotten() -> None:
    journal = Journal()
    step(journal, 1)
    step(journal, 2)
    assert [r.step for r in journal.records()] == [1, 2]
    journal.finish(1)
    journal.drop(2)
    assert journal.records() == []


def test_with_state_a_finished_step_keeps_copies_of_what_it_was_given_and_nothing_that_it_made() -> None:
    journal = Journal()
    journal.bind(bound(0))
    x = np.arange(3)
    record = step(journal, 1, x)
    journal.finish(1)
    x[:] = 0
    assert record.calls[0].receives[0].content[0].tolist() == [0, 1, 2]
    assert record.calls[0].sends[0].content is None
    assert record.calls[0].done is None
    assert journal.kept(1) is record


def test_what_a_replay_made_is_let_go_of_when_the_step_behind_it_finishes() -> None:
    journal = Journal()
    journal.bind(bound(0))
    record = step(journal, 1)
    journal.finish(1)
    record.calls[0].sends[0].content = record.calls[0].done = "again"
    step(journal, 2)
    journal.finish(2)
    assert record.calls[0].sends[0].content is None


def test_a_checkpoint_makes_the_steps_until_it_moot() -> None:
    journal = Journal()
    journal.bind(bound(0))
    for number in (1, 2, 3):
        step(journal, number)
        journal.finish(number)
        journal.change(0, StateChange(length=1))
    journal.checkpointed(2, {0: ("copy",)})
    kinds = [e.step if isinstance(e, StepRecord) else type(e) for e in journal.entries()]
    assert kinds == [StateChanged, 3, StateChanged], "a change after the step came after the copy"
    assert (journal.base, journal.base_step) == ({0: ("copy",)}, 2)


def test_a_reset_of_all_children_with_state_makes_everything_before_it_moot() -> None:
    journal = Journal()
    assert journal.bind(bound(0))
    assert journal.bind(bound(1))
    step(journal, 1)
    journal.finish(1)
    journal.base = {0: ("copy",), 1: ("copy",)}
    assert not journal.change(0, StateChange(reset=True))
    assert journal.change(1, StateChange(reset=True))
    assert [type(e) for e in journal.entries()] == [StateChanged, StateChanged]
    assert journal.base == {}
    assert journal.beginning.keys() == {0, 1}
    assert journal.change(0, StateChange(length=3))
    assert len(journal) == 3
    step(journal, 2)
    journal.finish(2)
    assert not journal.change(0, StateChange(reset=True)), "the other child goes on"


def test_when_no_child_keeps_state_any_more_nothing_is_kept() -> None:
    journal = Journal()
    journal.bind(bound(0))
    step(journal, 1)
    journal.finish(1)
    assert journal.bind(StateBound(0, (), ()))
    assert len(journal) == 0


def test_values_of_the_callers_are_copied() -> None:
    journal = Journal()
    journal.bind(bound(0))
    value = np.ones((1, 2), np.float32)
    journal.change(0, StateChange(values={"past": value}))
    value[:] = 0
    (_, entry) = journal.entries()
    assert isinstance(entry, StateChanged)
    assert entry.change.values["past"].all()


def test_the_call_that_a_child_is_at_is_the_first_that_has_not_ended() -> None:
    journal = Journal()
    first, second = step(journal, 1), step(journal, 2)
    found = first_unfinished(journal.records(), 1, lambda call: call is first.calls[1])
    assert found == (second, second.calls[1])
    assert first_unfinished(journal.records(), 1, lambda call: True) is None
