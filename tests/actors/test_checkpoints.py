"""When children are told of a checkpoint, asked for it, and what becomes of one that does not come."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import RayError

from actors import checkpoints as module
from actors.checkpoints import MOST_COPIES, Checkpoints
from actors.events import CheckpointLost, CheckpointSettled
from actors.journal import Journal, StateBound
from hetero.runtime.state_copy import Piece, StateCopy
from hetero.types import TensorSpec


def copied(start: int = 0) -> StateCopy:
    piece = Piece("k", TensorSpec(np.dtype(np.uint8), (1,)), 0, start)
    return StateCopy((), (), (piece,), np.zeros(1, np.uint8))


class Actor:
    """Writes down what it is told, and gives copies when the test does."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int | None]] = []
        self.asked: dict[int, Future[StateCopy]] = {}
        self.copy_state = SimpleNamespace(remote=lambda _, step, since: self.told.append((step, since)))
        self.take_copy = SimpleNamespace(remote=self.take)

    def take(self, step: int) -> Any:
        future: Future[StateCopy] = Future()
        self.asked[step] = future
        return SimpleNamespace(future=lambda: future)


class World:
    """Two children that keep state, and steps that are launched and end in turn."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.actors = [Actor(), Actor()]
        held: Any = SimpleNamespace(
            members={k: SimpleNamespace(actor=a, generation=1) for k, a in enumerate(self.actors)}
        )
        for child in held.members:
            self.journal.bind(StateBound(child, (), ()))
            self.journal.bound[child] = StateBound(child, (), ())
        self.checkpoints = Checkpoints(held, self.journal)

    def step(self, number: int, *, fails: bool = False) -> list[Any]:
        """Events that a step brings."""
        events = self.checkpoints.before_launch()
        self.journal.record(number)
        self.checkpoints.launched(number)
        if fails:
            self.journal.drop(number)
            return events
        self.journal.finish(number)
        return [*events, *self.checkpoints.settle()]

    def give(self, step: int, start: int = 0) -> None:
        for actor in self.actors:
            actor.asked[step].set_result(copied(start))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(module.ray, "wait", lambda refs, **_: (refs, []))
    return World()


def test_children_are_told_in_one_step_asked_in_the_next_and_waited_for_in_none(world: World) -> None:
    world.step(1)
    world.checkpoints.take(1, (0, 1))
    assert [a.told for a in world.actors] == [[], []], "they run nothing now, and somebody waits for step 1"
    world.step(2)
    assert [a.told for a in world.actors] == [[(2, None)], [(2, None)]]
    world.step(3)
    assert [list(a.asked) for a in world.actors] == [[2], [2]]
    world.actors[0].asked[2].set_result(copied())
    assert world.step(4) == [], "one is missing"
    world.actors[1].asked[2].set_result(copied())
    assert world.step(5) == [CheckpointSettled(2)]
    assert [e.step for e in world.journal.entries()] == [3, 4, 5]  # type: ignore[union-attr]
    assert world.journal.base_step == 2
    assert len(world.actors[0].told) == 1


def test_copies_go_on_from_each_other_until_a_whole_one_is_asked_for(world: World) -> None:
    step = 1
    world.step(step)
    for k in range(MOST_COPIES + 2):
        world.checkpoints.take(step, (0, 1))
        world.step(step + 1)
        world.step(step + 2)
        whole = k % MOST_COPIES == 0
        assert world.actors[0].told[-1] == (step + 1, None if whole else step - 2)
        world.give(step + 1, start=not whole)
        assert world.step(step + 3) == [CheckpointSettled(step + 1)]
        assert [len(chain) for chain in world.journal.base.values()] == [k % MOST_COPIES + 1] * 2
        step += 3


def test_a_step_that_fails_is_no_state_and_the_next_one_is_told(world: World) -> None:
    world.step(1)
    world.checkpoints.take(1, (0, 1))
    world.step(2, fails=True)
    world.step(3)
    world.step(4)
    assert [a.told for a in world.actors] == [[(2, None), (3, None)]] * 2
    assert [list(a.asked) for a in world.actors] == [[3], [3]]


def test_a_copy_that_does_not_come_is_lost(world: World) -> None:
    world.step(1)
    world.checkpoints.take(1, (0, 1))
    world.step(2)
    world.step(3)
    world.actors[0].asked[2].set_result(copied())
    world.actors[1].asked[2].set_exception(RayError("it died"))
    assert world.step(4) == [CheckpointLost(1)]
    assert world.journal.base == {}
    world.step(5)
    assert [len(a.told) for a in world.actors] == [1, 1], "nothing is due"


def test_what_is_forgotten_neither_settles_nor_is_asked_for(world: World) -> None:
    world.step(1)
    world.checkpoints.take(1, (0, 1))
    world.step(2)
    world.checkpoints.forget()
    world.step(3)
    assert not world.actors[0].asked


def test_a_child_that_does_not_answer_holds_no_step_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.step(1)
    world.checkpoints.take(1, (0, 1))
    world.step(2)
    monkeypatch.setattr(module.ray, "wait", lambda refs, **_: (refs[:1], refs[1:]))
    assert world.step(3) == [CheckpointLost(1)]
    assert not world.actors[0].asked
