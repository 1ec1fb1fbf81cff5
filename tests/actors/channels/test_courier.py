"""The courier: it has the desk when it is lent, and only then; which partitions are idle enough for that."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import pytest

from actors.channels import idleness as idleness_module
from actors.channels.courier import Courier
from actors.channels.idleness import LONG_S, MOST_UNASKED, Idleness

WAIT_S = 10.0


class Desk:
    """A descriptor, and a courier that reads it and notes that it had its turn."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.turns = threading.Semaphore(0)
        self.failure: Exception | None = None
        self.courier = Courier(self.descriptor, self._turn)

    def _turn(self) -> None:
        if select.select([self.descriptor], [], [], 0)[0]:
            os.eventfd_read(self.descriptor)
        self.turns.release()
        if self.failure is not None:
            raise self.failure

    def had_turn(self) -> bool:
        return self.turns.acquire(timeout=WAIT_S)

    def close(self) -> None:
        self.courier.close()
        os.close(self.descriptor)


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


def test_a_desk_that_is_lent_has_a_turn_and_another_for_what_comes_in(desk: Desk) -> None:
    desk.courier.lend()
    assert desk.had_turn()
    os.eventfd_write(desk.descriptor, 1)
    assert desk.had_turn()
    desk.courier.take_back()


def test_what_comes_in_while_the_owner_has_the_desk_waits_for_the_next_loan(desk: Desk) -> None:
    desk.courier.lend()
    assert desk.had_turn()
    desk.courier.take_back()
    while desk.turns.acquire(blocking=False):
        pass
    os.eventfd_write(desk.descriptor, 1)
    assert not desk.turns.acquire(timeout=0.05)
    desk.courier.lend()
    assert desk.had_turn()
    desk.courier.take_back()


def test_a_courier_at_rest_leaves_what_comes_in_alone(desk: Desk) -> None:
    desk.courier.lend()
    assert desk.had_turn()
    desk.courier.take_back()
    desk.courier.rest()
    os.eventfd_write(desk.descriptor, 1)
    assert select.select([desk.descriptor], [], [], 0)[0]
    desk.courier.lend()
    assert desk.had_turn()
    desk.courier.take_back()


def test_what_a_turn_raises_is_the_owners_to_hear(desk: Desk) -> None:
    desk.failure = ValueError("no such parcel")
    desk.courier.check()
    desk.courier.lend()
    assert desk.had_turn()
    desk.courier.take_back()
    with pytest.raises(ValueError, match="no such parcel"):
        desk.courier.check()


def test_a_partition_is_idle_once_it_took_long_twice_and_was_not_at_work() -> None:
    idleness = Idleness()
    idleness.note(1, 5 * LONG_S, 0.0)
    assert 1 not in idleness
    idleness.note(1, 5 * LONG_S, LONG_S)
    assert 1 in idleness
    assert 2 not in idleness


def test_a_partition_that_works_is_idle_no_more_and_neither_is_a_short_one() -> None:
    idleness = Idleness()
    for _ in range(2):
        idleness.note(1, 5 * LONG_S, 0.0)
        idleness.note(2, 5 * LONG_S, 0.0)
    assert 1 in idleness
    assert 2 in idleness
    idleness.note(1, 5 * LONG_S, 4 * LONG_S)
    idleness.ended(2, LONG_S / 2)
    assert 1 not in idleness
    assert 2 not in idleness


def test_what_is_idle_is_asked_about_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    used_s = 0.0

    def thread_time() -> float:
        asked.append(used_s)
        return used_s

    monkeypatch.setattr(idleness_module.time, "thread_time", thread_time)
    idleness = Idleness()
    for _ in range(2 + MOST_UNASKED):
        idleness.ended(1, 5 * LONG_S)
    assert 1 in idleness
    assert len(asked) == 2
    used_s = MOST_UNASKED * 2 * LONG_S  # of all these runs together, less than half
    idleness.ended(1, 5 * LONG_S)
    assert 1 in idleness
    for _ in range(MOST_UNASKED):
        idleness.ended(1, 5 * LONG_S)
    used_s += (MOST_UNASKED + 1) * 3 * LONG_S
    assert len(asked) == 3
    idleness.ended(1, 5 * LONG_S)
    assert 1 not in idleness
    assert len(asked) == 4
