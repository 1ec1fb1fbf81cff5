"""The mailbox runs the driver's order whatever order messages come in, and each message counts once."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from actors.channels.mailbox import MAX_AHEAD, Arrival, Mailbox

TASKS = [(10, (0,)), (11, ()), (12, (1, 2))]


def drained(box: Mailbox) -> list[tuple[int, int, int, tuple[Any, ...]]]:
    out = []
    while (work := box.next()) is not None:
        out.append((work.attempt, work.step, work.partition, tuple(work.contents)))
        box.done(work)
    return out


def test_a_partition_runs_when_the_last_of_its_parcels_is_here() -> None:
    box = Mailbox(TASKS)
    box.begin(1, 7, "primary")
    assert box.next() is None
    box.deliver(1, 0, "a")
    assert drained(box) == [(1, 7, 10, ("a",)), (1, 7, 11, ())]
    box.deliver(1, 2, "c")
    assert box.next() is None
    box.deliver(1, 1, "b")
    assert drained(box) == [(1, 7, 12, ("b", "c"))]
    assert box.current == 2


def test_nothing_runs_before_the_driver_has_begun_the_attempt() -> None:
    box = Mailbox(TASKS)
    for parcel in range(3):
        assert box.deliver(1, parcel, parcel) is Arrival.KEPT
    assert box.next() is None
    box.begin(1, 7, "verify")
    work = box.next()
    assert work is not None
    assert work.graph_slot == "verify"


def test_a_later_attempt_waits_for_the_one_before() -> None:
    box = Mailbox([(0, (0,))])
    for attempt in (2, 3):
        box.begin(attempt, 10 + attempt, "primary")
        box.deliver(attempt, 0, attempt)
    assert box.next() is None
    box.begin(1, 11, "primary")
    assert box.next() is None
    box.deliver(1, 0, 1)
    assert [attempt for attempt, *_ in drained(box)] == [1, 2, 3]


def test_an_attempt_that_ended_elsewhere_is_skipped_and_its_parcels_are_handed_back() -> None:
    box = Mailbox(TASKS)
    box.begin(1, 7, "primary")
    box.deliver(1, 1, "b")
    box.begin(2, 8, "primary")
    box.deliver(2, 0, "a")
    assert box.end(1) == ["b"]
    assert box.deliver(1, 2, "c") is Arrival.LATE
    assert drained(box) == [(2, 8, 10, ("a",)), (2, 8, 11, ())]
    assert box.end(2) == []
    assert box.end(2) == []


def test_an_attempt_may_end_before_it_begins() -> None:
    box = Mailbox([(0, (0,))])
    box.end(2)
    assert box.begin(2, 8, "primary") is Arrival.LATE
    box.begin(1, 7, "primary")
    box.deliver(1, 0, "a")
    assert len(drained(box)) == 1
    assert box.current == 3


def test_what_comes_twice_or_is_nobodys_is_told_apart() -> None:
    box = Mailbox(TASKS)
    assert box.begin(1, 7, "primary") is Arrival.KEPT
    assert box.begin(1, 7, "primary") is Arrival.DUPLICATE
    assert box.deliver(1, 0, "a") is Arrival.KEPT
    assert box.deliver(1, 0, "other") is Arrival.DUPLICATE
    assert drained(box)[0] == (1, 7, 10, ("a",))
    assert box.deliver(1, 0, "again") is Arrival.DUPLICATE  # it was used
    assert box.deliver(1, 99, "x") is Arrival.UNKNOWN
    assert box.deliver(2 + MAX_AHEAD, 0, "x") is Arrival.UNKNOWN
    assert box.begin(10**9, 7, "primary") is Arrival.UNKNOWN
    assert box.begin(0, 7, "primary") is Arrival.LATE
    assert len(box) == 0


@settings(deadline=None)
@given(st.integers(1, 5), st.randoms())
def test_duplicated_and_reordered_messages_give_the_same_runs(attempts: int, random) -> None:
    messages = [(attempt, parcel) for attempt in range(1, attempts + 1) for parcel in (None, 0, 1, 2)]
    want = [
        (a, 100 + a, p, tuple((a, k) for k in parcels))
        for a in range(1, attempts + 1)
        for p, parcels in TASKS
    ]
    shuffled = messages + random.sample(messages, len(messages) // 2)
    random.shuffle(shuffled)
    box, got = Mailbox(TASKS), []
    for attempt, parcel in shuffled:
        if parcel is None:
            box.begin(attempt, 100 + attempt, "primary")
        else:
            box.deliver(attempt, parcel, (attempt, parcel))
        got += drained(box)
    assert got == want
    assert len(box) == 0


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([(5,), (5, 6), (6, 5)])), max_size=20), st.data()
)
def test_what_arrives_whole_runs_as_if_it_had_been_delivered(
    arriving: list[tuple[int, tuple[int, ...]]], data: st.DataObject
) -> None:
    """In any order, twice, or in parts: the same runs, with and without the short cut."""
    short, long = Mailbox([(3, (5, 6))]), Mailbox([(3, (5, 6))])
    got: list[Any] = []
    want: list[Any] = []
    for attempt, parcels in arriving:
        work = short.straight(attempt, 10 * attempt, "primary", parcels)
        if work is not None:
            assert (work.contents, work.last, work.graph_slot) == ([], True, "primary")
            got.append((attempt, work.step, work.partition, parcels))
            if data.draw(st.booleans()):  # what comes meanwhile is of no use
                short.begin(attempt, 10 * attempt, "primary")
                short.deliver(attempt, 5, 5)
            short.end(attempt)
            got += drained(short)
        for box, runs in ((short, got), (long, want)):
            if box is long or work is None:
                box.begin(attempt, 10 * attempt, "primary")
                for parcel in parcels:
                    box.deliver(attempt, parcel, parcel)
                runs += drained(box)
    assert got == want
    assert (short.current, short.empty) == (long.current, long.empty)


def test_no_short_cut_where_there_are_several_partitions() -> None:
    assert Mailbox(TASKS).straight(1, 7, "primary", (0,)) is None
