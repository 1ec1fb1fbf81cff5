"""Each fault at each named point, where the other files do not have it: docs/recovery.md has the table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from actors import chaos
from hetero.errors import ChildDiedError, KernelError
from tests.faults.harness import ALL, CHAIN, DECODER, Beside, bits

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]

EVERY = 3
STATES = {"stateless": CHAIN, "stateful": DECODER}
AROUND = ("partition 1, before run", "in Stop", "partition 2, before send")
"""Before a partition of cpu, in and after one of sim:0."""


def victim(point: str) -> str:
    return "cpu" if "partition 1" in point else "sim:0"


PAIRS = [(state, road) for state in STATES for road in ("objects", "channels")]
QUICK = PAIRS if ALL else PAIRS[3:]
"""With state over channels, or every pair."""


@pytest.fixture(scope="module", params=QUICK, ids="-".join)
def shared(local_ray: object, request: pytest.FixtureRequest) -> Iterator[Beside]:
    text = STATES[request.param[0]]
    with Beside(
        text,
        transport=request.param[1],
        checkpoint_every=EVERY,
        heartbeat_timeout_s=4.0,
        max_step_deaths=5,
        ray_options={"standbys": 1},
    ) as both:
        if text is DECODER:
            both.bind()
        yield both


@pytest.fixture
def both(shared: Beside) -> Beside:
    if shared.ex._state is not None:
        for each in (shared.ex, shared.calm):
            each.reset_state()
    shared.ready()
    return shared


def check(both: Beside) -> None:
    """It goes on, with the state that it should have and nothing left of what was."""
    both.steps(2, n=1)
    if both.ex._state is not None:
        assert bits(both.ex.read_state()) == bits(both.calm.read_state())
    assert all(c["resident_steps"] == 0 for c in both.ex.stats()["children"].values())


@pytest.mark.parametrize(
    "runs", [1, 2, 3] if ALL else [2], ids=lambda n: ("eager", "recording", "replaying")[n - 1]
)
@pytest.mark.parametrize("point", AROUND if ALL else AROUND[1:2])
def test_a_child_that_is_suspended_is_replaced_wherever_it_was(both: Beside, point: str, runs: int) -> None:
    rows = 3 + runs  # shapes that the child has not seen: it runs them eagerly, then records, then replays
    both.steps(runs - 1, n=rows)
    before = both.recovery()["losses"]
    with both.stopped(point, rows) as gate:
        chaos.suspend(victim(point), both.ex)
        gate.wait_reached()  # by the one that replaces it
    assert both.recovery()["losses"] > before
    check(both)


@pytest.mark.parametrize(
    "runs", [1, 2, 3] if ALL else [2], ids=lambda n: ("eager", "recording", "replaying")[n - 1]
)
@pytest.mark.parametrize("point", AROUND)
def test_an_exception_ends_its_step_alone_wherever_it_is_raised(both: Beside, point: str, runs: int) -> None:
    rows = 13 + runs
    both.steps(runs - 1, n=rows)
    with chaos.gate(point) as gate:
        future = both.ex.submit(both.feeds(rows))
        gate.wait_reached()
        gate.open(error="out of luck")
    with pytest.raises(KernelError, match="out of luck"):
        future.result(timeout=100)
    next(both.calm._steps)
    check(both)


@pytest.mark.parametrize("shared", [p for p in QUICK if p[0] == "stateful"], ids="-".join, indirect=True)
@pytest.mark.parametrize("fault", ["error", "suspend"] if ALL else ["error"])
@pytest.mark.parametrize("point", ["checkpoint", "take copy", "restore"])
def test_a_child_that_hangs_or_fails_while_state_is_copied_or_restored_loses_none(
    both: Beside, point: str, fault: str
) -> None:
    both.steps(2, n=2)
    with chaos.gate(point) as gate:
        if point == "restore":
            checkpoint(both)
            chaos.kill("cpu", both.ex)
        steps = [both.submit(1) for _ in range(1 if point == "restore" else EVERY + 1)]
        gate.wait_reached()
        if fault == "suspend":
            chaos.suspend("sim:0", both.ex)
        gate.open(error="a bad disk" if fault == "error" else "")
    for future, want in steps:
        assert bits(future.result(timeout=100)) == want
    check(both)


def checkpoint(both: Beside) -> None:
    before = both.recovery()["checkpoints"]
    for _ in range(60):
        both.step(1)
        if both.recovery()["checkpoints"] > before:
            return
    pytest.fail("no checkpoint settled in 60 steps")


def test_a_step_that_ends_its_child_in_a_c_call_is_given_up_and_the_state_is_as_it_was() -> None:
    with Beside(DECODER, max_step_deaths=2, transport="channels", ray_options={"standbys": 1}) as both:
        both.bind()
        both.ready()
        both.steps(2, n=2)
        with pytest.raises(
            ChildDiedError, match="children ended 2 times with it, last: its process"
        ) as caught:
            both.ex.run({"x": np.full((1, 1, 4), np.nan, np.float32)})
        assert caught.value.device == "sim:0"
        next(both.calm._steps)
        check(both)
        counts = both.recovery()
        assert (counts["losses"], counts["given_up_steps"]) == (2, 1)
