"""Copies of state: those that hold only what is new make, with the ones before, what a whole one is."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from hetero.errors import StateError
from hetero.providers.base import Provider
from hetero.providers.registry import resolve
from hetero.runtime.state import NO_STEP, State, StateSpec
from hetero.runtime.state_copy import StateCopy, copy_of, joined
from hetero.types import TensorSpec

CAPACITY, WIDTH = 12, 3
FLOAT = np.dtype(np.float32)


class Child:
    """Two states that grow, along different axes, and one that does not; driven as steps drive them."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.states = [
            State(provider, StateSpec("a", "A", TensorSpec(FLOAT, (2, CAPACITY, WIDTH)), 1)),
            State(provider, StateSpec("b", "B", TensorSpec(FLOAT, (CAPACITY, WIDTH)), 0)),
            State(provider, StateSpec("c", "C", TensorSpec(FLOAT, (WIDTH,)), None)),
        ]
        self.step = 0
        self.drawn = np.random.default_rng(0)

    def grow(self) -> None:
        for state in self.states:
            if state.spec.axis is not None:
                state.grow()

    def rows(self, state: State, n: int) -> tuple[tuple[int, ...], Any]:
        """The shape of a value of n rows, and new numbers for as many."""
        shape = list(state.spec.spec.shape)
        if state.spec.axis is not None:
            shape[state.spec.axis] = n
        return tuple(shape), self.drawn.standard_normal(shape).astype(FLOAT)

    def run(self, n: int, *, aside: bool, fails: bool) -> None:
        """A step that adds n rows: in the buffer, or as a value of its own, all of whose rows are new."""
        self.step += 1
        for state in self.states:
            state.settle(self.step)
            axis, total = state.spec.axis, state.length + n
            while axis is not None and total > state.capacity:
                self.grow()
            if axis is None or aside:
                shape, value = self.rows(state, total)
                state.propose(self.step, shape, self.provider.upload(value))
            else:
                shape, value = self.rows(state, n)
                target = state.rows(state.length, total)
                self.provider.copy(self.provider.upload(value), target)()
                state.propose(self.step, tuple(state.first(total).shape))
        if fails:
            for state in self.states:
                state.abandon(self.step)

    def between(self) -> None:
        """The last step is over."""
        for state in self.states:
            state.settle(NO_STEP)

    def read(self) -> dict[str, bytes]:
        return {state.spec.input: state.read().tobytes() for state in self.states}


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(0, 4), st.booleans(), st.booleans()),
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("rewind"), st.integers(0, 20)),
        st.tuples(st.just("reset")),
        st.tuples(st.just("write"), st.integers(0, CAPACITY)),
        st.tuples(st.just("copy")),
        st.tuples(st.just("copy")),
        st.tuples(st.just("whole")),
    ),
    max_size=25,
)


@pytest.mark.parametrize("name", ["cpu", "sim:0"])
@given(moves=MOVES)
def test_a_copy_and_what_came_since_are_a_whole_one(name: str, moves: list[tuple[Any, ...]]) -> None:
    (provider,) = resolve([name])
    child = Child(provider)
    copies = [copy_of(child.states, ())]
    for move in [*moves, ("copy",)]:
        match move:
            case ("run", int(n), bool(aside), bool(fails)):
                child.run(n, aside=aside, fails=fails)
                continue
            case ("append", int(n)):
                child.run(n, aside=False, fails=False)
                continue
        child.between()
        match move:
            case ("rewind", int(n)):
                for state in child.states:
                    state.rewind(min(n, state.length))
            case ("reset",):
                for state in child.states:
                    state.reset()
            case ("write", int(n)):
                for state in child.states:
                    state.write(child.rows(state, n)[1])
            case ("copy",):
                copies.append(copy_of(child.states, (), whole=False))
            case ("whole",):
                copies = [copy_of(child.states, ())]
        if move[0] in ("copy", "whole"):
            whole = joined(copies)
            assert whole.whole
            assert {n: v.tobytes() for n, v in whole.values().items()} == child.read()
            assert [s.spec for s in whole.specs] == [s.sized().spec for s in child.states]
    provider.close()


def appended(child: Child, n: int) -> StateCopy:
    child.run(n, aside=False, fails=False)
    child.between()
    return copy_of(child.states, (), whole=False)


def test_only_what_is_new_is_copied() -> None:
    (provider,) = resolve(["cpu"])
    child = Child(provider)
    first, second = appended(child, 8), appended(child, 1)
    assert first.whole
    assert [v.shape for v in second.values().values()] == [(2, 1, WIDTH), (1, WIDTH), (WIDTH,)]
    assert not second.whole
    for state in child.states:
        state.rewind(min(5, state.length))
    third = appended(child, 2)
    assert [p.start for p in third.pieces] == [5, 5, 0]


def test_a_copy_that_goes_on_from_nothing_is_an_error() -> None:
    (provider,) = resolve(["cpu"])
    child = Child(provider)
    first, _, third = appended(child, 2), appended(child, 2), appended(child, 2)
    for copies in ([third], [first, third]):
        with pytest.raises(StateError, match="goes on from 4 rows"):
            joined(copies)
