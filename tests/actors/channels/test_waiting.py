"""Partitions that wait for their device: what they have made leaves, and what comes in is taken, meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from actors.channels.idleness import Idleness
from hetero.errors import ChildDiedError, KernelError
from tests.actors.channels.nets import Net, until

pytestmark = pytest.mark.timeout(180)

STEADY = 4
"""Steps after which messages are described once for all."""


@pytest.fixture(autouse=True)
def _every_partition_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Idleness, "__contains__", lambda self, partition: True)


def same(partition: int, step: int, values: list[Any]) -> list[Any]:
    return values


def vector(step: int, n: int = 4) -> np.ndarray:
    return np.full(n, step, np.float32)


def test_what_a_partition_has_made_arrives_while_the_next_one_waits() -> None:
    launched, begun, over = threading.Event(), threading.Event(), threading.Event()

    def compute(partition: int, step: int, values: list[Any]) -> list[Any]:
        if step == STEADY:
            assert launched.wait(20)
        if step == STEADY + 2:
            begun.set()
            assert over.wait(20)
        return values

    with Net([0], compute) as net:
        for step in range(1, STEADY):
            net.run(step, vector(step))
        flights = [net.launch(step, vector(step)) for step in range(STEADY, STEADY + 3)]
        launched.set()
        assert begun.wait(20)
        for flight in flights[:2]:
            assert net.get(flight)[0].tolist() == vector(flight.step).tolist()
        assert not flights[2].over
        over.set()
        assert net.get(flights[2])[0].tolist() == vector(STEADY + 2).tolist()


@pytest.mark.parametrize("n", [4, 50_000])
def test_steps_in_flight_come_back_in_order_whatever_their_size(n: int) -> None:
    seen: list[tuple[int, int]] = []

    def compute(partition: int, step: int, values: list[Any]) -> list[Any]:
        seen.append((partition, step))
        return [v + np.float32(1) for v in values]

    with Net([0, 1, 0], compute) as net:
        flights = [net.launch(step, vector(step, n)) for step in range(1, 40)]
        for flight in flights:
            assert net.get(flight)[0].tobytes() == (vector(flight.step, n) + 3).tobytes()
        for partition in range(3):
            assert [step for p, step in seen if p == partition] == list(range(1, 40))
        until(lambda: not any(net.out()))


def test_a_failure_ends_its_own_step_only() -> None:
    def compute(partition: int, step: int, values: list[Any]) -> list[Any]:
        if (partition, step) == (1, STEADY + 1):
            raise KernelError("no")
        return values

    with Net([0, 1], compute) as net:
        flights = [net.launch(step, vector(step)) for step in range(1, 2 * STEADY + 2)]
        for flight in flights:
            if flight.step == STEADY + 1:
                with pytest.raises(KernelError):
                    net.get(flight)
            else:
                assert net.get(flight)[0].tolist() == vector(flight.step).tolist()


def test_a_step_that_is_dropped_while_it_runs_leaves_the_next_one_alone() -> None:
    begun, over = threading.Event(), threading.Event()

    def compute(partition: int, step: int, values: list[Any]) -> list[Any]:
        if step == STEADY:
            begun.set()
            assert over.wait(20)
        return values

    with Net([0], compute) as net:
        for step in range(1, STEADY):
            net.run(step, vector(step))
        flight = net.launch(STEADY, vector(STEADY))
        assert begun.wait(20)
        net.driver.drop(flight)
        following = net.launch(STEADY + 1, vector(STEADY + 1))
        over.set()
        assert net.get(following)[0].tolist() == vector(STEADY + 1).tolist()


def test_a_child_that_sends_nothing_tells_of_its_end() -> None:
    with Net([0, 1], same, silent=(0, 1)) as net:
        flights = [net.launch(step, vector(step)) for step in range(1, 20)]
        assert [net.get(f)[0].tolist() for f in flights] == [vector(s).tolist() for s in range(1, 20)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_fails_in_the_couriers_turn_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def compute(partition: int, step: int, values: list[Any]) -> list[Any]:
        assert step < STEADY or failed.wait(20)
        return values

    with Net([0], compute) as net:
        for step in range(1, STEADY):
            net.run(step, vector(step))
        endpoint = net.children[0]._endpoint
        poll = endpoint.poll

        def failing(timeout_s: float | None) -> Any:
            if threading.current_thread().name != "hetero-courier":
                return poll(timeout_s)
            failed.set()
            raise OSError("no such thing")

        monkeypatch.setattr(endpoint, "poll", failing)
        flights = [net.launch(step, vector(step)) for step in range(STEADY, STEADY + 3)]
        with pytest.raises(ChildDiedError):
            net.get(flights[-1])


def test_nothing_is_left_of_a_courier_when_its_child_is_closed() -> None:
    with Net([0, 1], same) as net:
        for step in range(1, 10):
            net.run(step, vector(step))
        assert any(t.name == "hetero-courier" for t in threading.enumerate())
    assert not any(t.name == "hetero-courier" for t in threading.enumerate())
