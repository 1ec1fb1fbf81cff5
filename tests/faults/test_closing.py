"""Closing an executor whose children are being brought back: nothing is left, and nobody waits."""

from __future__ import annotations

import threading
import time

import pytest

from actors import chaos
from hetero.errors import ChildDiedError, ClosedError
from tests.actors.test_pool import gone, live_groups
from tests.faults.harness import CHAIN, Beside, until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]


def test_an_executor_closed_while_a_child_is_started_leaves_nothing_and_waits_for_nobody() -> None:
    before = live_groups()
    both = Beside(CHAIN)
    with both:
        both.step()
        raised: list[BaseException] = []

        def run() -> None:
            try:
                both.ex.run(both.feeds())
            except (ClosedError, ChildDiedError) as error:
                raised.append(error)

        with chaos.gate("prepare cpu") as gate:
            chaos.kill("cpu", both.ex)
            runner = threading.Thread(target=run)
            runner.start()
            pid = gate.wait_reached()["pid"]
            closed = time.monotonic()
            both.ex.close()
            assert time.monotonic() - closed < 15
        runner.join(20)
        assert len(raised) == 1
        until(lambda: gone(pid) and live_groups() == before, 10)
