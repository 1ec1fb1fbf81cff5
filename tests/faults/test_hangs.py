"""A child that hangs costs the caller nothing but time: found by a step's deadline, or by its silence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actors import chaos
from actors.heartbeats import LOOK_S, STOPPED_S
from actors.pool import RayChildren
from hetero.errors import StepTimeoutError
from tests.faults.harness import ALL, CHAIN, DECODER, HEAD, Beside, bits, until
from tests.faults.ops import DOMAIN, KEEP

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]

KEEPING = HEAD + f"g (float[n, 4] x) => (float[n, 4] y) {{ a = Exp(x) y = {DOMAIN}.Keep(a) }}"


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
        with both.stopped("partition 1, before run"):
            chaos.suspend("cpu", both.ex)  # while it has a step, and
        chaos.suspend("sim:0", both.ex)  # while it has none
        both.step()
        assert both.recovery()["losses"] == 2


@pytest.mark.parametrize("transport", ["objects", "channels"] if ALL else ["auto"])
def test_one_of_this_machine_is_seen_to_be_stopped_long_before_it_was_silent_for_too_long(
    transport: str,
) -> None:
    """The heartbeat's 30 s would not end within the time that is given here."""
    with Beside(DECODER, transport=transport, ray_options={"standbys": 1}) as both:
        both.bind(capacity=64)
        both.ready()
        both.steps(2)
        with both.stopped("in Stop", 1, within_s=20):
            chaos.suspend("sim:0", both.ex)
        chaos.suspend("cpu", both.ex)
        for ex in (both.ex, both.calm):
            ex.rewind_state(1)  # which waits for it, and keeps everyone else from children
        both.step(1)
        assert both.recovery()["losses"] == 2


def test_one_that_is_resumed_in_time_goes_on() -> None:
    with Beside(CHAIN) as both:
        both.steps(2)
        mending = both.ex._children._mending  # type: ignore[attr-defined]
        chaos.suspend("sim:0", both.ex)
        looks = mending.looks
        until(lambda: mending.looks >= looks + 2)
        chaos.resume("sim:0", both.ex)
        both.step()
        assert both.recovery()["losses"] == 0


def test_a_kernel_that_keeps_the_interpreter_is_not_taken_for_a_stopped_process() -> None:
    """None of its process's threads can answer anybody until its C call is over."""
    with Beside(KEEPING, ["sim:0", "cpu"]) as both:
        both.steps(2)
        mending = both.ex._children._mending  # type: ignore[attr-defined]
        gates = chaos.directory()
        assert gates is not None
        pipe = Path(gates) / KEEP
        os.mkfifo(pipe)
        try:
            future, want = both.submit()
            with pipe.open("wb"):  # waits until the kernel reads
                pipe.unlink()
                looks = mending.looks
                until(lambda: mending.looks > looks + 2 * STOPPED_S / LOOK_S)
        finally:
            pipe.unlink(missing_ok=True)
        assert bits(future.result(timeout=60)) == want
        assert both.recovery()["losses"] == 0


def test_a_child_that_computes_for_long_and_one_that_waits_for_it_are_not_silent() -> None:
    with Beside(CHAIN, heartbeat_timeout_s=2.0) as both:
        with both.stopped("in Stop"):
            children = both.ex._children
            assert isinstance(children, RayChildren)
            until(
                lambda: all(m.heard >= 6 for m in children._held.members.values())
            )  # of which 4 would be too long
        assert both.recovery()["losses"] == 0
