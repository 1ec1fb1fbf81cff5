"""A killed actor costs the caller nothing but time: steps over bound state, which is restored and replayed exactly."""

from __future__ import annotations

import numpy as np
import pytest

from actors import chaos
from hetero.errors import KernelError
from tests.faults.harness import DECODER, Beside, bits

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(90)]


def same_state(both: Beside) -> bool:
    states = [each.read_state() for each in (both.ex, both.calm)]
    return bits(states[0]) == bits(states[1])


@pytest.mark.parametrize("every", [0, 3])
def test_a_decoder_goes_on_as_if_nothing_had_happened(every: int) -> None:
    """Killed between steps, and within one; with the state from its beginning, and from a checkpoint."""
    with Beside(DECODER, checkpoint_every=every) as both:
        both.bind(capacity=32)
        both.step(5)
        both.steps(7, n=1)
        chaos.kill("sim:0", both.ex)
        both.step(1)
        assert same_state(both)
        with chaos.gate("partition 3, before run") as gate:
            future, want = both.submit(1)
            gate.wait_reached()
            chaos.kill("cpu", both.ex)
            gate.open()
        assert bits(future.result(timeout=50)) == want
        both.steps(3, n=1)
        assert same_state(both)
        counts = both.recovery()
        assert counts["losses"] == 2
        if every:
            assert counts["checkpoints"] >= 2
            assert counts["replayed_steps"] <= 2 * (2 * every)
        else:
            assert counts["replayed_steps"] == 8 + 1 + 10


def test_what_was_done_to_the_state_between_steps_is_done_again() -> None:
    with Beside(DECODER, checkpoint_every=4) as both:
        both.bind()  # buffers double when they are full
        both.step(200)
        both.step(200)
        saved = both.calm.read_state()
        for each in (both.ex, both.calm):
            each.rewind_state(150)
        both.steps(2, n=1)
        chaos.kill("sim:0", both.ex)
        both.step(1)
        for each in (both.ex, both.calm):
            each.write_state({"past_k": saved["past_k"][:, :, :9]})
        both.step(1)
        chaos.kill("cpu", both.ex)
        assert same_state(both)
        both.step(2)
        for each in (both.ex, both.calm):
            each.reset_state()
        both.step(3)
        assert both.ex.state_length() == 3
        assert both.recovery()["journal"] == 3, "two children's states began anew, and one step came since"


def test_a_step_that_failed_is_no_part_of_the_state() -> None:
    with Beside(DECODER) as both:
        both.bind(capacity=16)
        both.steps(2, n=2)
        with chaos.gate("partition 2, before send") as gate:
            feeds = both.feeds(1)
            future = both.ex.submit(feeds)
            gate.wait_reached()
            gate.open(error="out of luck")
        with pytest.raises(KernelError, match="out of luck"):
            future.result(timeout=50)
        next(both.calm._steps)
        chaos.kill("sim:0", both.ex)
        both.step(1)
        assert same_state(both)


@pytest.mark.parametrize("point", ["checkpoint", "take copy", "restore", "partition 0, before run"])
def test_a_child_killed_while_state_is_copied_restored_or_replayed_is_not_noticed(point: str) -> None:
    with Beside(DECODER, checkpoint_every=2) as both:
        both.bind(capacity=32)
        both.steps(5, n=2)
        with chaos.gate(point) as gate:
            if point in ("checkpoint", "take copy"):
                both.step(1)  # is the second since the last checkpoint
            else:
                chaos.kill("cpu", both.ex)
                future, want = both.submit(1)
            gate.wait_reached()
            chaos.kill("sim:0", both.ex)
            gate.open()
        if point not in ("checkpoint", "take copy"):
            assert bits(future.result(timeout=50)) == want
        both.steps(3, n=1)
        assert same_state(both)


def test_the_next_step_does_not_wait_for_a_checkpoint_to_be_sent() -> None:
    with Beside(DECODER, checkpoint_every=2) as both:
        both.bind(capacity=32)
        with chaos.gate("take copy") as gate:
            both.steps(2)
            gate.wait_reached()
            both.steps(4)
            assert both.recovery()["checkpoints"] == 0
            gate.open()
        both.steps(2)
        assert np.array_equal(both.ex.read_state()["h"], both.calm.read_state()["h"])
