"""Messages that are late, come twice, in another order or from another generation: no step notices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, get_args

import pytest

from actors import chaos
from hetero.errors import OptionError
from tests.faults.harness import ALL, DECODER, TEXT_IDS, TEXTS, Beside, bits

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]

DEVICES = ("driver", "sim:0", "cpu")
CELLS = [(what, when) for when in ("steady", "killed", "replaying") for what in get_args(chaos.Tampering)]
QUICK = [*CELLS[:4], ("hold", "killed"), ("duplicate", "replaying")]


@pytest.fixture(scope="module", params=TEXTS, ids=TEXT_IDS)
def shared(local_ray: object, request: pytest.FixtureRequest) -> Iterator[Beside]:
    text = request.param
    with Beside(
        text, transport="channels", checkpoint_every=4, max_step_deaths=4, ray_options={"standbys": 1}
    ) as both:
        if text is DECODER:
            both.bind()
        yield both


@pytest.fixture
def over_channels(shared: Beside) -> Beside:
    shared.ready()
    return shared


def seen(both: Beside, *counters: str) -> int:
    """The sum of these counters over all endpoints."""
    stats = both.ex.stats()
    ends: list[dict[str, Any]] = [stats["transport"], *(c["channels"] for c in stats["children"].values())]
    return sum(end.get(name, 0) for end in ends for name in counters)


def killed(both: Beside, held: chaos.Gate | None, times: int) -> None:
    """A step, while which a child is killed so often: each time it has its inputs, or waits for what is held back."""
    with chaos.gate("partition 1, before run") as gate:
        future, want = both.submit(2)
        (held or gate).wait_reached()
        chaos.kill("cpu", both.ex)
        for _ in range(times - 1):
            gate.wait_reached()
            if held is not None:
                held.open()  # what was held back meets those who replay
            chaos.kill("cpu", both.ex)
        gate.wait_reached()
        gate.open()
    assert bits(future.result(timeout=100)) == want


@pytest.mark.parametrize(("what", "when"), CELLS if ALL else QUICK)
def test_messages_that_come_otherwise_than_they_should_are_not_noticed(
    over_channels: Beside, what: chaos.Tampering, when: str
) -> None:
    both = over_channels
    before = both.ex.stats()
    with ExitStack() as tampered:
        devices = ("sim:0",) if what == "hold" else DEVICES
        held, *_ = [tampered.enter_context(chaos.messages(d, what)) for d in devices]
        if when == "steady":
            # what the last one sends on the way needs a block of shared memory
            steps = [both.submit(n) for n in (1, 2, 3, 100)]
            if held is not None:
                held.wait_reached()
                assert not any(future.done() for future, _ in steps)
                held.open()
            for future, want in steps:
                assert bits(future.result(timeout=100)) == want
            assert seen(both, "duplicates", "late") > 0 or what != "duplicate"
            assert seen(both, "fenced") > 0 or what != "stale"
        else:
            killed(both, held, 1 if when == "killed" else 2)
    both.ready()
    both.steps(2, n=1)
    after = both.ex.stats()
    assert after["failed_steps"] == before["failed_steps"]
    losses = after["recovery"]["losses"] - before["recovery"]["losses"]
    assert losses == {"steady": 0, "killed": 1, "replaying": 2}[when]
    assert all(c["resident_steps"] == 0 for c in after["children"].values())
    if both.ex._state is not None:
        states = [each.read_state() for each in (both.ex, both.calm)]
        assert bits(states[0]) == bits(states[1])
        for each in (both.ex, both.calm):
            each.reset_state()


def test_messages_are_tampered_with_in_one_way_at_a_time() -> None:
    with (
        chaos.messages("cpu", "reorder"),
        pytest.raises(OptionError, match="messages of cpu are tampered with already"),
        chaos.messages("cpu", "hold"),
    ):
        pass
