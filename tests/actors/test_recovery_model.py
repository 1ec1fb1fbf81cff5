"""Whatever happens in whatever order: no step ends twice or never, nothing fenced delivers, state is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.events import (
    ActorLost,
    CheckpointLost,
    CheckpointSettled,
    ChildPrepared,
    Closed,
    Command,
    DeadlinePassed,
    Event,
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

CHILDREN = ("cpu", "sim:0", "sim:1")
SPARE = "cpu:1"
"""A provider that no node is on to begin with."""
MAX_DEATHS, MAX_RESTARTS = 3, 3
a_child = st.sampled_from((*CHILDREN, SPARE))


class World(RuleBasedStateMachine):
    """Does what the machine says with processes that are only numbers, and keeps its own account of it."""

    def __init__(self) -> None:
        super().__init__()
        self.recovery = Recovery(
            dict.fromkeys(CHILDREN, "host"), MAX_RESTARTS, MAX_DEATHS, checkpoint_every=2
        )
        self.alive: dict[str, int | None] = dict.fromkeys(CHILDREN, 1)
        self.taking_part = set(CHILDREN)  # in the present plan
        self.prepared = {(name, 1) for name in CHILDREN}
        self.fenced: set[tuple[str, int]] = set()
        self.launched: dict[int, int] = {}  # open step -> epoch of its last launch
        self.ended: list[int] = []
        self.given_up: set[int] = set()
        self.losses = 0  # with steps in flight, since a step ended
        self.failures = dict.fromkeys((*CHILDREN, SPARE), 0)  # to come up, since it was ready
        self.next_step = 1
        self.applied: list[int] = []  # steps that the children's state is made of
        self.wanted: list[int] = []  # steps that it should be made of
        self.checkpoints: dict[int | None, list[int]] = {None: []}
        self.pending: int | None = None
        self.standbys = 0
        self.to_replay: Replay | None = None
        self.gone: set[str] = set()
        self.closed = False
        self.just_finished = False
        self.tell(StateBegan())

    # -- driving -------------------------------------------------------------------------------------------------
    def tell(self, event: Event) -> Sequence[Command]:
        self.just_finished = False
        return self.told(self.recovery.handle(event))

    def told(self, todo: Sequence[Command]) -> Sequence[Command]:
        assert not (self.closed and todo), "a closed machine asks for nothing"
        for command in todo:
            self.do(command)
        return todo

    def do(self, command: Command) -> None:
        match command:
            case Fence(child, generation):
                assert (child, generation) not in self.fenced, "fenced once"
                self.fenced.add((child, generation))
                self.alive[child] = None
                self.pending = None
            case Start(child, generation, _) | Promote(child, generation, _):
                assert self.alive.get(child) is None, "two incarnations at once"
                assert child in self.taking_part
                assert (child, generation) not in self.fenced
                self.alive[child] = generation
                if isinstance(command, Promote):
                    self.standbys -= 1
                    assert self.standbys >= 0, "there is such a standby"
            case PrepareAnew(child, generation):
                assert child in self.taking_part
                before = self.alive[child]
                assert before is not None, "it lives"
                assert generation == before + 1
                self.fenced.add((child, before))  # nothing of it is taken any more
                self.alive[child] = generation
                self.pending = None
            case Restore(step):
                self.applied = list(self.checkpoints[step])
            case Replay(_, kept, open_steps):
                present = {(c, self.alive[c]) for c in self.taking_part}
                assert present <= self.prepared, "all are back first"
                assert all(c in self.taking_part for c, g in self.alive.items() if g is not None)
                assert list(kept) == sorted(kept)
                assert list(open_steps) == sorted(open_steps) == sorted(self.launched)
                self.applied += kept
                self.to_replay = command
            case GiveUp(step, deaths, _):
                del self.launched[step]
                assert deaths >= MAX_DEATHS
                self.given_up.add(step)
                self.end(step)
            case Failover(child):
                assert self.failures[child] == MAX_RESTARTS
            case TakeCheckpoint(step):
                assert self.pending is None, "one checkpoint at a time"
                assert self.recovery.running
                self.pending = step
            case StartStandby():
                pass

    def end(self, step: int) -> None:
        assert step not in self.ended, "a step ends once"
        self.ended.append(step)
        self.losses = 0

    def can_run(self) -> bool:
        return self.recovery.running and not self.closed and self.to_replay is None

    def lose(self, event: Any) -> None:
        self.losses += bool(self.launched)
        epoch = self.recovery.epoch
        self.to_replay = None
        self.tell(event)
        assert self.recovery.epoch > epoch

    # -- what may happen -----------------------------------------------------------------------------------------
    @precondition(can_run)
    @rule()
    def launch(self) -> None:
        step, self.next_step = self.next_step, self.next_step + 1
        self.just_finished = False
        self.recovery.launched(step)
        self.launched[step] = self.recovery.epoch

    @precondition(lambda self: self.can_run() and bool(self.launched))
    @rule()
    def finish_the_oldest(self) -> None:
        """With state steps take turns; without, any order is fine, and the oldest is one."""
        step = min(self.launched)
        assert self.recovery.delivers(step, self.launched.pop(step))
        self.applied.append(step)
        self.wanted.append(step)
        self.checkpoints[step] = list(self.applied)
        self.end(step)
        self.just_finished = True
        self.told(self.recovery.finished(step))

    @precondition(lambda self: self.can_run() and bool(self.launched))
    @rule()
    def fail(self) -> None:
        step = max(self.launched)
        del self.launched[step]
        self.end(step)
        self.tell(StepDropped(step))

    @precondition(lambda self: not self.closed)
    @rule(child=a_child, which=st.sampled_from([ActorLost, HeartbeatMissed]), data=st.data())
    def die(self, child: str, which: Any, data: st.DataObject) -> None:
        generation = self.alive.get(child)
        if generation is None or self.recovery.state(child) == "lost":
            return
        if self.recovery.state(child) == "starting":
            which = ActorLost  # nobody listens for its heart before it is prepared
        self.failures[child] += self.recovery.state(child) != "ready"
        step = data.draw(st.sampled_from([None, *self.launched, *self.wanted[-1:]]))
        self.lose(which(child, generation, 0.0, step))

    @precondition(lambda self: self.can_run() and bool(self.launched))
    @rule(children=st.sets(a_child))
    def pass_a_deadline(self, children: set[str]) -> None:
        suspects = tuple((c, g) for c in sorted(children) if (g := self.alive.get(c)) is not None)
        self.lose(DeadlinePassed(min(self.launched), suspects, 0.0))

    @precondition(lambda self: not self.closed)
    @rule(children=st.sets(a_child, min_size=1), data=st.data())
    def lose_a_node(self, children: set[str], data: st.DataObject) -> None:
        states = ("ready", "prepared")
        there = [c for c in sorted(children) if self.alive.get(c) is not None]
        gone = [c for c in there if self.recovery.state(c) in states]
        if gone:
            for child in gone:
                self.failures[child] += self.recovery.state(child) != "ready"
            step = data.draw(st.sampled_from([None, *self.launched, *self.wanted[-1:]]))
            self.lose(NodeLost("n", tuple((c, self.recovery.generation(c)) for c in gone), 0.0, step))

    @rule(data=st.data(), which=st.sampled_from([ActorLost, RestartFailed]))
    def hear_of_the_fenced(self, data: st.DataObject, which: Any) -> None:
        if self.fenced:
            child, generation = data.draw(st.sampled_from(sorted(self.fenced)))
            assert not self.tell(which(child, generation, 0.0))
            assert not self.tell(ChildPrepared(child, generation))

    @rule(child=a_child)
    def come_up(self, child: str) -> None:
        generation = self.alive.get(child)
        if generation is not None and not self.closed and self.recovery.state(child) == "starting":
            self.prepared.add((child, generation))
            self.tell(ChildPrepared(child, generation))

    @rule(child=a_child)
    def fail_to_come_up(self, child: str) -> None:
        generation = self.alive.get(child)
        if generation is not None and not self.closed and self.recovery.state(child) == "starting":
            self.failures[child] += 1
            self.tell(RestartFailed(child, generation, 0.0))

    @precondition(lambda self: not self.closed and bool(self.recovery.lost))
    @rule(data=st.data())
    def go_by_another_plan(self, data: st.DataObject) -> None:
        """Over some of the providers that are not lost; one of them may have had no part before."""
        self.gone |= set(self.recovery.lost)
        left = sorted({*CHILDREN, SPARE} - self.gone)
        if left:
            self.taking_part = data.draw(st.sets(st.sampled_from(left), min_size=1))
            epoch = self.recovery.epoch
            self.tell(Replanned(tuple((name, "host") for name in sorted(self.taking_part)), 0.0))
            assert self.recovery.epoch > epoch
            assert not self.recovery.running
            assert not self.recovery.lost

    @precondition(lambda self: self.to_replay is not None)
    @rule()
    def replay(self) -> None:
        command, self.to_replay = self.to_replay, None
        assert command is not None
        self.launched = dict.fromkeys(command.open, command.epoch)
        self.failures = dict.fromkeys((*CHILDREN, SPARE), 0)
        self.tell(StepsReplayed(command.epoch))

    @rule(step=st.integers(1, 40))
    def hear_of_an_old_replay(self, step: int) -> None:
        if step < self.recovery.epoch:
            assert not self.tell(StepsReplayed(self.recovery.epoch - step))

    @precondition(lambda self: self.pending is not None)
    @rule(settled=st.booleans(), data=st.data())
    def copy(self, settled: bool, data: st.DataObject) -> None:
        """Of the step after which it was due, or a later one."""
        due, self.pending = self.pending, None
        assert due is not None
        step = data.draw(st.sampled_from([k for k in self.recovery.kept if k >= due]))
        self.tell(CheckpointSettled(step) if settled else CheckpointLost(due))
        assert not settled or self.recovery.base == step

    @rule(data=st.data())
    def hear_of_an_old_checkpoint(self, data: st.DataObject) -> None:
        """Of one that was under way when a child was lost, or that has settled already."""
        step = data.draw(st.sampled_from(list(self.checkpoints)))
        if step is not None and (self.pending is None or step < self.pending):
            base = self.recovery.base
            assert not self.tell(CheckpointSettled(step))
            assert self.recovery.base == base

    @precondition(lambda self: not self.closed)
    @rule()
    def get_a_standby(self) -> None:
        self.standbys += 1
        self.tell(StandbyReady("host"))

    @precondition(lambda self: self.next_step > 5)
    @rule()
    def close(self) -> None:
        self.tell(Closed())
        self.launched.clear()
        self.to_replay = self.pending = None
        self.closed = True

    # -- what holds ----------------------------------------------------------------------------------------------
    @invariant()
    def what_was_fenced_is_older_than_what_lives(self) -> None:
        for child, lives in self.alive.items():
            if lives is not None and not self.closed:
                assert lives == self.recovery.generation(child)
                assert all(g < lives for c, g in self.fenced if c == child)

    @invariant()
    def the_steps_in_flight_are_those_that_have_not_ended(self) -> None:
        assert self.recovery.open == sorted(self.launched)
        if not self.closed:
            assert sorted([*self.ended, *self.launched]) == list(range(1, self.next_step))

    @invariant()
    def losses_end_steps(self) -> None:
        """Each is charged to a step: one in flight, or the last that finished, which is replayed for its state."""
        assert not self.launched or self.losses <= (MAX_DEATHS - 1) * (len(self.launched) + 1)

    @invariant()
    def checkpoints_are_taken(self) -> None:
        due = len(self.recovery.kept) >= 2 and self.can_run() and self.just_finished
        assert not due or self.pending is not None

    @invariant()
    def the_state_is_made_of_the_steps_that_finished_in_order(self) -> None:
        if self.can_run():
            assert self.applied == self.wanted

    @invariant()
    def only_the_present_delivers(self) -> None:
        for step, epoch in self.launched.items():
            present = epoch == self.recovery.epoch
            assert self.recovery.delivers(step, epoch) is (present and not self.closed)


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
