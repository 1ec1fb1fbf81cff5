"""Spare actors: ready before they are needed, replaced when they were used or have died themselves."""

from __future__ import annotations

import os
import signal

import pytest

from actors import chaos
from tests.faults.harness import CHAIN, Beside, spare_pids, until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]


def test_a_standby_that_dies_is_replaced_and_one_that_takes_over_too() -> None:
    with Beside(CHAIN, ray_options={"standbys": 1}) as both:
        both.step()
        until(lambda: bool(spare_pids(both)))
        (first,) = spare_pids(both)
        os.kill(first, signal.SIGKILL)
        until(lambda: spare_pids(both) not in ([first], []))
        (second,) = spare_pids(both)
        with both.stopped("partition 1, before run"):
            chaos.kill("cpu", both.ex)
        assert both.ex.stats()["children"]["cpu"]["pid"] == second
        until(lambda: bool(spare_pids(both)))
        assert spare_pids(both) != [second]
        counts = both.recovery()
        assert (counts["promotions"], counts["restarts"]) == (1, 0)
