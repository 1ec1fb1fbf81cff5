"""The recovery machine, one story at a time."""

from __future__ import annotations

import pytest

from actors.events import (
    ActorLost,
    CheckpointSettled,
    ChildPrepared,
    Closed,
    DeadlinePassed,
    Failover,
    Fence,
    GiveUp,
    HeartbeatMissed,
    NodeLost,
    PrepareAnew,
    Promote,
    Replanned,
    Replay,
    RestartFailed,
    Restore,
    StandbyReady,
    Start,
    StartStandby,
    StateBegan,
    StepDropped,
    StepsReplayed,
    TakeCheckpoint,
)
from actors.recovery import Recovery
from hetero.errors import TransportError


def machine(**options: int) -> Recovery:
    return Recovery({"cpu": "host", "cuda:1": "gpu"}, **options)


def finished(recovery: Recovery, *steps: int) -> None:
    for step in steps:
        recovery.launched(step)
        recovery.finished(step)


def test_a_lost_child_is_fenced_and_started_and_its_steps_are_replayed_in_order() -> None:
    recovery = machine()
    for step in (5, 6):
        recovery.launched(step)
    assert recovery.delivers(5, epoch=0)
    todo = recovery.handle(ActorLost("cuda:1", generation=1, at_s=12.5, step=5))
    assert todo == [Fence("cuda:1", generation=1), Start("cuda:1", generation=2, at_s=12.5)]
    assert not recovery.delivers(5, epoch=0)
    assert recovery.handle(ChildPrepared("cuda:1", 2)) == [Replay(1, kept=(), open=(5, 6))]
    assert not recovery.running
    assert recovery.handle(StepsReplayed(1)) == []
    assert recovery.running
    assert recovery.delivers(5, epoch=1)


def test_an_older_incarnation_changes_nothing() -> None:
    recovery = machine()
    recovery.handle(ActorLost("cpu", 1, 0.0))
    for late in (ActorLost("cpu", 1, 1.0), ChildPrepared("cpu", 1), RestartFailed("cpu", 1, 1.0)):
        assert recovery.handle(late) == []
    assert recovery.counts.stale_events == 3
    assert recovery.generation("cpu") == 2


def test_two_children_lost_together_come_back_before_anything_is_replayed() -> None:
    recovery = machine()
    recovery.launched(1)
    recovery.handle(ActorLost("cpu", 1, 0.0))
    recovery.handle(ActorLost("cuda:1", 1, 0.0))
    assert recovery.handle(ChildPrepared("cpu", 2)) == []
    assert recovery.handle(ChildPrepared("cuda:1", 2)) == [Replay(2, (), (1,))]


def test_a_restart_that_fails_is_tried_again_later_and_then_given_up() -> None:
    recovery = machine(max_restarts=3)
    recovery.handle(ActorLost("cpu", 1, 0.0))
    assert recovery.handle(RestartFailed("cpu", 2, 10.0)) == [Fence("cpu", 2), Start("cpu", 3, at_s=10.5)]
    assert recovery.handle(ActorLost("cpu", 3, 20.0)) == [Fence("cpu", 3), Start("cpu", 4, at_s=21.0)]
    assert recovery.handle(RestartFailed("cpu", 4, 30.0, "no room")) == [
        Fence("cpu", 4),
        Failover("cpu", "no room"),
    ]
    assert recovery.lost == ["cpu"]


def test_where_a_plan_goes_without_a_child_all_others_begin_anew_and_everything_is_replayed() -> None:
    recovery = machine(max_restarts=1)
    recovery.handle(StandbyReady("host"))
    recovery.launched(1)
    recovery.handle(ActorLost("cuda:1", 1, 0.0))
    assert recovery.handle(RestartFailed("cuda:1", 2, 1.0))[1:] == [Failover("cuda:1", "")]
    todo = recovery.handle(Replanned((("cpu", "host"), ("cpu:1", "host")), 2.0))
    assert todo == [PrepareAnew("cpu", 2), Promote("cpu:1", 1, "host")], "who lives stays where it is"
    assert not recovery.delivers(1, 1), "nothing that was begun before is taken"
    assert recovery.handle(ChildPrepared("cpu:1", 1)) == []
    assert recovery.handle(ChildPrepared("cpu", 2)) == [Replay(2, (), (1,))]
    recovery.handle(StepsReplayed(2))
    assert recovery.running
    assert recovery.lost == []
    assert recovery.state("cuda:1") == "retired"
    assert recovery.handle(ActorLost("cuda:1", 2, 3.0)) == []


def test_a_child_that_lives_and_has_no_part_any_more_is_ended_and_may_come_back() -> None:
    recovery = Recovery({"cpu": "host", "sim:0": "host", "sim:1": "host"}, max_restarts=1)
    recovery.handle(ActorLost("sim:0", 1, 0.0))
    recovery.handle(ActorLost("cpu", 1, 0.5))
    recovery.handle(RestartFailed("sim:0", 2, 1.0))
    todo = recovery.handle(Replanned((("cpu", "host"),), 2.0))
    assert todo == [Fence("cpu", 2), Fence("sim:1", 1), Start("cpu", 3, 2.0)], (
        "one that was coming comes anew"
    )
    recovery.handle(RestartFailed("cpu", 3, 3.0))
    assert recovery.handle(Replanned((("sim:1", "host"),), 4.0)) == [Start("sim:1", 2, 4.0)]
    assert recovery.handle(ChildPrepared("sim:1", 2)) == [Replay(4, (), ())]


def test_a_step_that_takes_children_with_it_every_time_is_given_up() -> None:
    recovery = machine(max_step_deaths=2)
    recovery.launched(1)
    recovery.launched(2)
    recovery.handle(ActorLost("cpu", 1, 0.0, step=1))
    recovery.handle(ChildPrepared("cpu", 2))
    recovery.handle(StepsReplayed(1))
    todo = recovery.handle(ActorLost("cpu", 2, 1.0, step=1, cause="exit code 9"))
    assert todo == [Fence("cpu", 2), GiveUp(1, 2, "exit code 9"), Start("cpu", 3, 1.0)]
    assert recovery.handle(ChildPrepared("cpu", 3)) == [Replay(2, (), (2,))]


def test_a_step_that_nobody_seems_to_run_is_not_replayed_for_ever_either() -> None:
    recovery = machine(max_step_deaths=2)
    recovery.launched(1)
    assert recovery.handle(DeadlinePassed(1, (), 0.0)) == [Replay(1, (), (1,))]
    assert recovery.handle(DeadlinePassed(1, (), 0.0)) == [GiveUp(1, 2, ""), Replay(2, (), ())]


def test_a_deadline_counts_once_however_many_are_suspected() -> None:
    recovery = machine(max_step_deaths=2)
    recovery.launched(1)
    todo = recovery.handle(DeadlinePassed(1, (("cpu", 1), ("cuda:1", 1)), 0.0))
    assert [type(c) for c in todo] == [Fence, Fence, Start, Start]


def test_a_lost_node_counts_once_however_many_children_it_had() -> None:
    recovery = machine(max_step_deaths=2)
    recovery.launched(1)
    todo = recovery.handle(NodeLost("n1", (("cpu", 1), ("cuda:1", 1)), 0.0, step=1))
    assert [type(c) for c in todo] == [Fence, Fence, Start, Start]
    assert recovery.handle(NodeLost("n1", (("cpu", 1), ("cuda:1", 1)), 0.0, step=1)) == []


def test_state_is_restored_from_the_checkpoint_and_the_steps_since_are_replayed() -> None:
    recovery = machine(checkpoint_every=2)
    recovery.handle(StateBegan())
    finished(recovery, 1)
    recovery.launched(2)
    assert recovery.finished(2) == [TakeCheckpoint(2)]
    finished(recovery, 3)
    assert recovery.handle(CheckpointSettled(2)) == []
    recovery.launched(4)
    recovery.handle(HeartbeatMissed("cpu", 1, 0.0))
    assert recovery.handle(ChildPrepared("cpu", 2)) == [Restore(2), Replay(1, kept=(3,), open=(4,))]


def test_a_checkpoint_that_was_under_way_when_a_child_went_does_not_count() -> None:
    recovery = machine(checkpoint_every=1)
    recovery.handle(StateBegan())
    finished(recovery, 1)
    recovery.handle(ActorLost("cpu", 1, 0.0))
    recovery.handle(CheckpointSettled(1))
    assert recovery.handle(ChildPrepared("cpu", 2)) == [Restore(None), Replay(1, kept=(1,), open=())]


def test_a_checkpoint_goes_on_where_a_step_is_late_and_nobody_is_lost() -> None:
    recovery = machine(checkpoint_every=1)
    recovery.handle(StateBegan())
    finished(recovery, 1)
    recovery.launched(2)
    assert recovery.handle(DeadlinePassed(2, (), 0.0)) == [Restore(None), Replay(1, kept=(1,), open=(2,))]
    recovery.handle(StepsReplayed(1))
    assert recovery.finished(2) == [], "one at a time"
    recovery.handle(CheckpointSettled(1))
    assert recovery.base == 1


def test_a_checkpoint_may_be_of_a_later_step_than_the_one_after_which_it_was_due() -> None:
    recovery = machine(checkpoint_every=2)
    recovery.handle(StateBegan())
    finished(recovery, 1)
    recovery.launched(2)
    assert recovery.finished(2) == [TakeCheckpoint(2)]
    finished(recovery, 3, 4)
    recovery.handle(CheckpointSettled(1))
    assert recovery.base is None, "it is older than what was asked for"
    recovery.handle(CheckpointSettled(3))
    assert (recovery.base, recovery.kept) == (3, [4])
    assert recovery.counts.checkpoints == 1


def test_a_standby_takes_over_and_is_replaced_once_the_work_goes_on() -> None:
    recovery = machine()
    recovery.handle(StandbyReady("gpu"))
    assert recovery.handle(ActorLost("cpu", 1, 0.0))[1:] == [Start("cpu", 2, 0.0)]
    assert recovery.handle(ActorLost("cuda:1", 1, 0.0))[1:] == [Promote("cuda:1", 2, "gpu")]
    recovery.handle(ChildPrepared("cpu", 2))
    recovery.handle(ChildPrepared("cuda:1", 2))
    assert recovery.handle(StepsReplayed(2)) == [StartStandby("gpu")]


def test_what_failed_by_itself_is_not_replayed() -> None:
    recovery = machine()
    recovery.launched(1)
    recovery.handle(StepDropped(1))
    recovery.handle(ActorLost("cpu", 1, 0.0))
    assert recovery.handle(ChildPrepared("cpu", 2)) == [Replay(1, (), ())]


def test_after_closing_nothing_is_asked_for() -> None:
    recovery = machine()
    recovery.launched(1)
    recovery.handle(Closed())
    assert recovery.handle(ActorLost("cpu", 1, 0.0)) == []
    assert not recovery.delivers(1, 0)


def test_what_cannot_happen_is_an_error_with_its_history() -> None:
    recovery = machine()
    recovery.launched(1)
    with pytest.raises(TransportError, match=r"before came .*launched', 1"):
        recovery.handle(ChildPrepared("cpu", 1))
    with pytest.raises(TransportError, match=r"cannot take .*finished', 7"):
        recovery.finished(7)
