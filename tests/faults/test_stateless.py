"""A killed actor costs the caller nothing but time: steps without state."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from actors import chaos
from hetero.errors import ChildDiedError, KernelError
from tests.faults.harness import ALL, CHAIN, Beside, bits

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module", params=["objects", "channels"] if ALL else ["channels"])
def shared(local_ray: object, request: pytest.FixtureRequest) -> Iterator[Beside]:
    with Beside(CHAIN, max_step_deaths=4, ray_options={"standbys": 1}, transport=request.param) as both:
        yield both


@pytest.fixture
def chain(shared: Beside) -> Beside:
    """Whose steps go over the road that was asked for: after a loss they go over objects for a while."""
    shared.ready()
    return shared


def device_of(both: Beside, partition: int) -> str:
    plan = both.ex.plan
    return plan.providers[plan.partitions[partition].child].name


def test_the_chain_goes_over_both_children_more_than_once(chain: Beside) -> None:
    assert [device_of(chain, k) for k in range(len(chain.ex.plan.partitions))] == [
        "sim:0",
        "cpu",
        "sim:0",
        "cpu",
    ]


@pytest.mark.parametrize(
    ("partition", "where"),
    [(k, where) for k in range(4) for where in ("before run", "before send")][:: 1 if ALL else 3],
)
def test_a_child_killed_around_a_partition_is_not_noticed(chain: Beside, partition: int, where: str) -> None:
    chain.step()
    before = chain.recovery()
    with chain.stopped(f"partition {partition}, {where}"):
        chaos.kill(device_of(chain, partition), chain.ex)
    chain.step()
    after = chain.recovery()
    assert after["losses"] == before["losses"] + 1
    assert after["recoveries"] == before["recoveries"] + 1
    assert after["replayed_steps"] == before["replayed_steps"] + 1


def test_a_child_that_dies_idle_is_back_before_the_next_step_needs_it(chain: Beside) -> None:
    for victim in ("sim:0", "cpu"):
        chaos.kill(victim, chain.ex)
    chain.steps(2)


def test_a_child_killed_inside_a_kernel_in_an_eager_a_recording_or_a_captured_run_is_not_noticed() -> None:
    with Beside(CHAIN) as both:
        for runs in range(
            3
        ):  # that the child has made of these shapes; those of a new one begin with the replay
            both.steps(max(0, runs - 1))
            with both.stopped("in Stop"):
                chaos.kill("sim:0", both.ex)
        both.steps(3)
        assert both.recovery()["losses"] == 3


def test_a_child_killed_again_while_its_step_is_replayed_is_not_noticed(chain: Beside) -> None:
    with chaos.gate("partition 2, before send") as gate:
        future, want = chain.submit()
        for _ in range(2):
            gate.wait_reached()
            chaos.kill("sim:0", chain.ex)
        gate.wait_reached()
        gate.open()
    assert bits(future.result(timeout=100)) == want


def test_a_child_killed_while_it_is_started_again_is_not_noticed(chain: Beside) -> None:
    with chaos.gate("prepare sim:0") as gate:
        chaos.kill("sim:0", chain.ex)
        future, want = chain.submit()
        os.kill(gate.wait_reached()["pid"], signal.SIGKILL)
        gate.wait_reached()
        gate.open()
    assert bits(future.result(timeout=100)) == want
    counts = chain.recovery()
    assert counts["restarts"] + counts["promotions"] > counts["losses"]


def test_both_children_killed_at_once_are_not_noticed(chain: Beside) -> None:
    with chain.stopped("partition 1, before run"):
        for device in ("sim:0", "cpu"):
            chaos.kill(device, chain.ex)


def test_all_steps_in_flight_come_back_once_and_in_order(chain: Beside) -> None:
    with chaos.gate("partition 1, before run") as gate:
        steps = [chain.submit(n) for n in (1, 2, 3, 20_000)]
        gate.wait_reached()
        chaos.kill("cpu", chain.ex)
        gate.open()
    for future, want in steps:
        assert bits(future.result(timeout=100)) == want
    finished = chain.ex.stats()
    assert finished["failed_steps"] == 0
    assert all(c["resident_steps"] == 0 for c in finished["children"].values())


def test_an_error_of_a_kernel_is_still_an_error_and_no_death(chain: Beside) -> None:
    before = chain.recovery()["losses"]
    with chaos.gate("in Stop") as gate:
        future, _ = chain.submit()
        gate.wait_reached()
        gate.open(error="out of luck")
    with pytest.raises(KernelError, match="out of luck") as caught:
        future.result(timeout=100)
    assert caught.value.device == "sim:0"
    chain.step()
    assert chain.recovery()["losses"] == before


def test_a_step_that_takes_its_child_with_it_is_given_up_and_the_others_go_on() -> None:
    with Beside(CHAIN, max_step_deaths=2) as both:
        both.step()
        deadly = {"x": np.full((2, 4), np.nan, np.float32)}
        poisoned = both.ex.submit(deadly)
        both.calm._steps.__next__()  # a step that the other one never sees
        future, want = both.submit()
        with pytest.raises(
            ChildDiedError, match="given up: children ended 2 times with it, last: its process"
        ) as caught:
            poisoned.result(timeout=100)
        assert caught.value.device == "sim:0"
        assert caught.value.step == 2
        assert bits(future.result(timeout=100)) == want
        both.step()
        assert both.recovery()["given_up_steps"] == 1
