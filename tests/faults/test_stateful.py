"""A killed actor costs the caller nothing but time: steps over bound state, which is restored and replayed exactly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from actors import chaos
from hetero.errors import KernelError
from tests.faults.harness import ALL, DECODER, Beside, bits

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]
EVERY = 3


@pytest.fixture(scope="module", params=["objects", "channels"] if ALL else ["objects"])
def shared(local_ray: object, request: pytest.FixtureRequest) -> Iterator[Beside]:
    with Beside(
        DECODER, checkpoint_every=EVERY, ray_options={"standbys": 1}, transport=request.param
    ) as both:
        both.bind()
        yield both


@pytest.fixture
def decoder(shared: Beside) -> Beside:
    """In a state that has begun anew, over the road that was asked for."""
    shared.ready()
    for each in (shared.ex, shared.calm):
        each.reset_state()
    return shared


def same_state(both: Beside) -> bool:
    states = [each.read_state() for each in (both.ex, both.calm)]
    return bits(states[0]) == bits(states[1])


def until_a_checkpoint_settles(both: Beside) -> None:
    before = both.recovery()["checkpoints"]
    for _ in range(60):
        both.step(1)
        if both.recovery()["checkpoints"] > before:
            return
    pytest.fail("no checkpoint settled in 60 steps")


def test_with_checkpoints_only_the_steps_since_the_last_are_replayed(decoder: Beside) -> None:
    decoder.step(5)
    until_a_checkpoint_settles(decoder)
    before = decoder.recovery()
    chaos.kill("sim:0", decoder.ex)
    decoder.step(1)
    assert same_state(decoder)
    assert decoder.recovery()["replayed_steps"] - before["replayed_steps"] <= EVERY + 1
    with decoder.stopped("partition 3, before run", 1):
        chaos.kill("cpu", decoder.ex)
    decoder.steps(3, n=1)
    assert same_state(decoder)
    assert decoder.recovery()["losses"] == before["losses"] + 2


def test_without_checkpoints_all_steps_since_the_beginning_are_replayed() -> None:
    with Beside(DECODER, checkpoint_every=0) as both:
        both.bind(capacity=32)
        both.step(5)
        both.steps(6, n=1)
        chaos.kill("sim:0", both.ex)
        both.step(1)
        assert same_state(both)
        assert both.recovery()["replayed_steps"] in (7, 8), "the eighth may have begun before it was noticed"


def test_what_was_done_to_the_state_between_steps_is_done_again(decoder: Beside) -> None:
    """Buffers double on the way, in the run without faults and in the replay."""
    both = decoder
    both.step(200)
    both.step(200)
    saved = both.calm.read_state()
    for each in (both.ex, both.calm):
        each.rewind_state(150)
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


def test_a_step_that_failed_is_no_part_of_the_state(decoder: Beside) -> None:
    decoder.steps(2, n=2)
    with chaos.gate("partition 2, before send") as gate:
        future = decoder.ex.submit(decoder.feeds(1))
        gate.wait_reached()
        gate.open(error="out of luck")
    with pytest.raises(KernelError, match="out of luck"):
        future.result(timeout=100)
    next(decoder.calm._steps)
    chaos.kill("sim:0", decoder.ex)
    decoder.step(1)
    assert same_state(decoder)


@pytest.mark.parametrize("point", ["checkpoint", "take copy"])
def test_a_child_killed_while_state_is_copied_is_not_noticed(decoder: Beside, point: str) -> None:
    """It is due after EVERY steps, told with the next one, made before the one after that, and then asked for."""
    decoder.steps(EVERY + 1)
    with decoder.stopped(point, 1):
        chaos.kill("sim:0", decoder.ex)
    decoder.steps(3, n=1)
    assert same_state(decoder)


@pytest.mark.parametrize("point", ["restore", "partition 0, before run"])
def test_a_child_killed_while_state_is_restored_or_replayed_is_not_noticed(
    decoder: Beside, point: str
) -> None:
    until_a_checkpoint_settles(decoder)
    decoder.step()
    with chaos.gate(point) as gate:
        chaos.kill("cpu", decoder.ex)
        future, want = decoder.submit(1)
        gate.wait_reached()
        chaos.kill("sim:0", decoder.ex)
        gate.open()
    assert bits(future.result(timeout=100)) == want
    decoder.steps(3, n=1)
    assert same_state(decoder)


def test_the_next_steps_do_not_wait_for_a_checkpoint_to_be_sent(decoder: Beside) -> None:
    before = decoder.recovery()["checkpoints"]
    with chaos.gate("take copy") as gate:
        decoder.steps(EVERY + 2)
        gate.wait_reached()
        decoder.steps(4)
        assert decoder.recovery()["checkpoints"] == before
        gate.open()
    until_a_checkpoint_settles(decoder)
    assert np.array_equal(decoder.ex.read_state()["h"], decoder.calm.read_state()["h"])
