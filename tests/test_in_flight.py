"""Steps under way: as many as there are turns, begun in order, and all waited for when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from hetero.errors import ClosedError, InputError
from hetero.futures import StepFuture
from hetero.in_flight import InFlight

WAIT_S = 30.0
Call = Callable[[], dict[str, Any]]


def by_worker(value: int) -> Callable[[StepFuture, bool], Call]:
    return lambda _, at_once: lambda: {"y": value, "at_once": at_once}


def test_a_worker_calls_what_is_to_be_called() -> None:
    steps = InFlight(2, 2)
    assert not steps.used
    assert steps.submit(by_worker(3)).result(WAIT_S) == {"y": 3, "at_once": True}
    assert steps.used
    steps.close()


def test_what_was_begun_at_once_needs_no_worker_and_keeps_its_turn_until_it_is_done() -> None:
    steps = InFlight(1, 1)
    begun: list[StepFuture] = []
    future = steps.submit(lambda future, _: begun.append(future))
    assert begun == [future]
    assert steps.turns.empty()
    future.set_result({"y": 1})
    steps.turns.get(timeout=WAIT_S)
    steps.close()


def test_what_was_begun_may_be_handed_to_a_worker_after_all() -> None:
    steps = InFlight(1, 1)
    future = steps.submit(lambda future, _: None)
    steps.hand_over(future, lambda: {"y": threading.current_thread().name})
    assert future.result(WAIT_S)["y"].startswith("hetero-step")
    steps.close()


def test_a_step_that_cannot_begin_gives_its_turn_back() -> None:
    steps = InFlight(1, 1)

    def refused(_: StepFuture, at_once: bool) -> None:
        raise InputError("no")

    for _ in range(3):  # the second would wait for ever
        with pytest.raises(InputError):
            steps.submit(refused)
    assert steps.submit(by_worker(1)).result(WAIT_S)["y"] == 1
    steps.close()


def test_in_a_coroutine_the_workers_are_the_turns() -> None:
    steps = InFlight(1, 1)

    async def main() -> list[dict[str, Any]]:
        futures = [steps.submit(by_worker(k)) for k in range(4)]  # more than there are turns
        return [await future for future in futures]

    assert asyncio.run(main()) == [{"y": k, "at_once": False} for k in range(4)]
    assert steps.turns.qsize() == 1
    steps.close()


def test_a_close_waits_for_what_was_begun_and_takes_no_more() -> None:
    steps = InFlight(2, 1)
    future = steps.submit(lambda future, _: None)
    closing = threading.Thread(target=steps.close)
    closing.start()
    future.set_result({"y": 1})
    closing.join(WAIT_S)
    assert not closing.is_alive()
    with pytest.raises(ClosedError):
        steps.submit(by_worker(1))
    assert steps.turns.qsize() == 2
