"""A child whose partition waits for a device sends and receives meanwhile; one that computes is left alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.channels import beside
from actors.channels.beside import WORTH_S, Beside
from actors.channels.endpoint import Endpoint
from actors.channels.messages import Ended
from tests.actors.channels.nets import LOCAL, Net
from tests.actors.channels.test_net import until, vector

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def end() -> Iterator[Endpoint]:
    made = Endpoint(0, "sim:0", 1, LOCAL)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("took", "busy", "waits"),
    [
        (0.9 * WORTH_S, 0.0, False),
        (10 * WORTH_S, 6 * WORTH_S, False),
        (10 * WORTH_S, 4 * WORTH_S, True),
        (10 * WORTH_S, 0.0, True),
    ],
    ids=["short", "computes", "computes and waits", "waits"],
)
def test_a_partition_is_told_to_wait_by_the_time_it_takes_and_the_time_it_computes(
    end: Endpoint, took: float, busy: float, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0, busy=0.0)
    fake = SimpleNamespace(perf_counter=lambda: clock.now, thread_time=lambda: clock.busy)
    monkeypatch.setattr(beside, "time", fake)
    child = Beside(end)

    def call(took: float = took, busy: float = busy) -> str:
        clock.now, clock.busy = clock.now + took, clock.busy + busy
        return "made"

    try:
        assert not child.waits(3)
        assert child.run(3, call) == "made"
        assert child.waits(3) == waits
        assert not child.waits(4)
        assert child.run(3, lambda: call(0.0, 0.0)) == "made"
        assert not child.waits(3)  # what it did last counts
    finally:
        child.close()
        child.close()


def test_an_error_of_the_call_is_the_callers_and_the_endpoint_is_its_again(
    end: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Beside(end)
    monkeypatch.setattr(child, "_learn", lambda *_: None)
    child._waiting.add(1)

    def failing() -> None:
        raise ValueError("a bug")

    try:
        with pytest.raises(ValueError, match="a bug"):
            child.run(1, failing)
        assert not child._turns.lead()  # it leads, and nobody else may
    finally:
        child.close()


def test_what_was_made_is_sent_and_what_is_next_comes_in_while_a_partition_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first child waits in step 2, and its outputs of step 1 are with the caller; step 3's inputs are with it."""
    monkeypatch.setattr(Beside, "_learn", lambda *_: None)
    gate, begun = threading.Event(), threading.Event()

    def gated(partition: int, step: int, values: list[Any]) -> list[Any]:
        if (partition, step) == (0, 2):
            begun.set()
            assert gate.wait(60)
        return [v + np.float32(1) for v in values]

    with Net([0, 1], gated) as net:
        first = net.children[0]
        first._beside._waiting.add(0)
        flights = [net.launch(step, vector(1000, step)) for step in (1, 2)]
        assert net.get(flights[0])[0].tobytes() == (vector(1000, 1) + 1 + 1).tobytes()
        assert begun.wait(20)
        flights.append(net.launch(3, vector(1000, 3)))
        until(lambda: first.statistics()["received"] >= 3)
        gate.set()
        for step in (2, 3):
            assert net.get(flights[step - 1])[0].tobytes() == (vector(1000, step) + 1 + 1).tobytes()
        assert first.statistics()["waiting"] == 0


def test_messages_that_may_go_later_keep_their_order(end: Endpoint) -> None:
    other = Endpoint(1, "sim:1", 1, LOCAL)
    try:
        end.connect([other.card])
        other.connect([end.card])
        until(lambda: bool(end.poll(0.01) or other.poll(0.01)) and end._links[1].send([b""]))
        for k in range(6):
            assert end.send(1, Ended(k, 1), later=k % 3 == 1)
        got: list[int] = []
        while len(got) < 6:
            end.poll(0)
            got += [e.message.step for e in other.poll(0.01) if hasattr(e, "message")]  # type: ignore[union-attr]
        assert got == list(range(6))
    finally:
        other.close()
