"""A child that hangs costs the caller nothing but time: found by a step's deadline, or by its silence."""

from __future__ import annotations

import pytest

from actors import chaos
from actors.pool import RayChildren
from hetero.errors import StepTimeoutError
from tests.faults.harness import CHAIN, Beside, bits, until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]


def test_a_step_that_passes_its_deadline_is_replayed_and_at_last_given_up() -> None:
    """It waits in a kernel of sim:0, while cpu waits for what that would send: only sim:0 is replaced."""
    with Beside(CHAIN, step_timeout_s=2.0, max_step_deaths=2, ray_options={"standbys": 1}) as both:
        both.steps(2)
        gate = chaos.gate("in Stop")
        future, want = both.submit()
        gate.wait_reached()
        again, wanted = both.submit()
        gate.wait_reached()  # in the replay
        gate.open()
        assert bits(future.result(timeout=100)) == want
        assert bits(again.result(timeout=100)) == wanted
        assert both.recovery()["losses"] == 1
        assert both.ex.stats()["failed_steps"] == 0
        with chaos.gate("in Stop"):
            future, _ = both.submit()
            with pytest.raises(
                StepTimeoutError, match=r"given up: .* sim:0 did not finish it within 2 s"
            ) as caught:
                future.result(timeout=100)
        assert caught.value.device == "sim:0"
        both.step()
        assert both.recovery()["losses"] == 3


def test_a_suspended_child_is_replaced_when_it_was_silent_for_too_long() -> None:
    with Beside(CHAIN, heartbeat_timeout_s=2.0, ray_options={"standbys": 1}) as both:
        both.steps(2)
        with chaos.gate("partition 1, before run") as gate:
            future, want = both.submit()
            gate.wait_reached()
            chaos.suspend("cpu", both.ex)  # while it has a step, and
        assert bits(future.result(timeout=100)) == want
        chaos.suspend("sim:0", both.ex)  # while it has none
        both.step()
        assert both.recovery()["losses"] == 2


def test_a_child_that_computes_for_long_and_one_that_waits_for_it_are_not_silent() -> None:
    with Beside(CHAIN, heartbeat_timeout_s=2.0) as both:
        with chaos.gate("in Stop") as gate:
            future, want = both.submit()
            gate.wait_reached()
            children = both.ex._children
            assert isinstance(children, RayChildren)
            until(
                lambda: all(m.heard >= 6 for m in children._held.members.values())
            )  # of which 4 would be too long
        assert bits(future.result(timeout=100)) == want
        assert both.recovery()["losses"] == 0
