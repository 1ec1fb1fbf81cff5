"""Spare actors: ready before they are needed, replaced when they were used or have died themselves."""

from __future__ import annotations

import os
import signal

import pytest

from actors import chaos
from actors.pool import RayChildren
from tests.faults.harness import CHAIN, Beside, bits, until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(90)]


def spare_pids(both: Beside) -> list[int]:
    children = both.ex._children
    assert isinstance(children, RayChildren)
    children._mending.muster()
    return [m.facts["pid"] for ready in children._held.standbys.values() for m in ready if m.facts]


def test_a_standby_takes_over_and_another_takes_its_place() -> None:
    with Beside(CHAIN, ray_options={"standbys": 1}) as both:
        both.step()
        until(lambda: bool(spare_pids(both)))
        (spare,) = spare_pids(both)
        chaos.kill("cpu", both.ex)
        both.step()
        assert both.ex.stats()["children"]["cpu"]["pid"] == spare
        until(lambda: bool(spare_pids(both)))
        assert spare_pids(both) != [spare]
        counts = both.recovery()
        assert (counts["promotions"], counts["restarts"]) == (1, 0)


def test_a_standby_that_dies_is_replaced_and_nobody_relies_on_it() -> None:
    with Beside(CHAIN, ray_options={"standbys": 1}) as both:
        until(lambda: bool(spare_pids(both)))
        (spare,) = spare_pids(both)
        os.kill(spare, signal.SIGKILL)
        until(lambda: spare_pids(both) not in ([spare], []))
        with chaos.gate("partition 2, before run") as gate:
            future, want = both.submit()
            gate.wait_reached()
            chaos.kill("sim:0", both.ex)
        assert bits(future.result(timeout=50)) == want
