"""What is described once is on the wire, to the byte, what it would be if described anew; nothing else passes."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from actors.channels.bodies import SMALL_BYTES
from actors.channels.messages import Begin, Packed, Sent, as_of, write
from actors.channels.steady import Sends, Steady
from actors.channels.wire import encode
from hetero.planner.plan import CALLER
from hetero.types import SequenceValue
from tests.actors.test_parcels import DTYPES, array_of, dtype_named

SENDS: Sends = ((7, (1, CALLER)), (8, (1,)))


def seen(steady: Steady, contents: list[list[Any]], slot: str = "primary", times: int = 2) -> None:
    for _ in range(times):
        steady.sent(slot, contents, [encode(values) for values in contents])


def described(
    contents: list[list[Any]], to: int, sender: int, slot: str = "primary", generation: int = 5
) -> list[Any]:
    """The message for one destination, made from nothing."""
    parcels = []
    for (parcel, destinations), values in zip(SENDS, contents, strict=True):
        encoded = encode(values)
        if to in destinations:
            specs, nbytes = encoded.specs, encoded.nbytes
            parcels.append(Packed(parcel, specs, nbytes, body=encoded.joined()))
    if sender == CALLER:
        return write(Begin(3, 4, slot, tuple(parcels)), generation)
    return write(Sent(3, 4, slot, sender, tuple(parcels)), generation)


arrays = st.builds(
    lambda name, shape: array_of(dtype_named(name), tuple(shape)),
    st.sampled_from([n for n in DTYPES if dtype_named(n).kind != "O"]),
    st.lists(st.integers(0, 5), max_size=3),
)


@given(
    st.lists(st.lists(arrays, min_size=1, max_size=3), min_size=2, max_size=2), st.sampled_from([2, CALLER])
)
def test_messages_are_the_same_as_without(contents: list[list[Any]], sender: int) -> None:
    steady = Steady(5, sender, SENDS)
    seen(steady, contents)
    outline = steady.outlines.get("primary")
    if outline is None:
        assert any(sum(a.nbytes for a in values) == 0 for values in contents)
        return
    others = [[np.ascontiguousarray(a[::-1]) if a.ndim else a for a in values] for values in contents]
    bodies = outline.bodies(others)
    assert bodies is not None
    for to, message in outline.messages(3, 4, bodies):
        assert [message] == described(others, to, sender)
        assert [as_of(message, 9)] == described(others, to, sender, generation=9)
    assert [to for to, _ in outline.messages(3, 4, bodies)] == [1, CALLER]


def test_an_outline_is_made_when_values_come_alike_twice_in_a_row() -> None:
    steady = Steady(5, 2, SENDS)
    x, y = [[np.ones(2)], [np.ones(3)]], [[np.ones(2)], [np.ones(4)]]
    for contents in (x, y, x, y):
        seen(steady, contents, times=1)
    assert not steady.outlines
    seen(steady, y, times=1)
    seen(steady, x, slot="verify", times=1)
    assert list(steady.outlines) == ["primary"]


@pytest.mark.parametrize(
    "value",
    [
        np.ones((2, 4), np.float32),
        np.ones((2, 3), np.float64),
        np.ones((3, 2), np.float32).T,
        np.ones((4, 6), np.float32)[::2, ::2],
        np.ma.masked_array(np.ones((2, 3), np.float32)),
        SequenceValue([np.ones((2, 3), np.float32)]),
        None,
    ],
    ids=lambda v: type(v).__name__,
)
def test_values_that_are_not_alike_are_told_apart(value: Any) -> None:
    steady, like = Steady(5, 2, SENDS[1:]), np.ones((2, 3), np.float32)
    seen(steady, [[like]])
    outline = steady.outlines["primary"]
    assert outline.bodies([[like]]) is not None
    for contents in ([[value]], [[like, value]], [[]], [], [[like], [value]]):
        assert outline.bodies(contents) is None


@pytest.mark.parametrize(
    "values",
    [
        [],
        [np.ones((2, 0))],
        [np.ones(SMALL_BYTES + 1, np.int8)],
        [np.array(["a"], object)],
        [np.ones(2, ">i4")],
        [np.ones((2, 3)).T],
        [None],
        2 * [np.ones(2)],
    ],
    ids=lambda v: repr(v)[:30],
)
def test_what_is_not_small_arrays_as_they_lie_gets_no_outline(values: list[Any]) -> None:
    steady = Steady(5, 2, SENDS[1:])
    seen(steady, [values], times=4)
    assert not steady.outlines


def test_who_gets_no_parcel_is_told_as_well() -> None:
    steady, values = Steady(5, CALLER, SENDS, (1, 3)), [[np.ones(2)], [np.ones(2)]]
    seen(steady, values)
    outline = steady.outlines["primary"]
    bodies = outline.bodies(values)
    assert bodies is not None
    sent = dict(outline.messages(3, 4, bodies))
    assert list(sent) == [1, 3, CALLER]
    assert [sent[3]] == write(Begin(3, 4, "primary"), 5)
