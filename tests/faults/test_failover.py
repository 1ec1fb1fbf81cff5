"""A provider that cannot come back: its partitions go to another one, and the caller only reads of it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from actors import chaos
from hetero.errors import ChildDiedError
from tests.faults.harness import CHAIN, DECODER, TEXT_IDS, TEXTS, Beside, bits

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]


@pytest.mark.parametrize("text", TEXTS, ids=TEXT_IDS)
def test_the_partitions_of_a_lost_provider_go_to_another(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with Beside(text, max_restarts=1, checkpoint_every=3) as both:
        if text == DECODER:
            both.bind(capacity=64)
        both.steps(6, n=2)
        assert both.ex.stats()["degraded"] == {}
        with chaos.broken("prepare sim:0", "no such device"), caplog.at_level(logging.WARNING):
            with chaos.gate("partition 2, before run") as gate:
                future, want = both.submit(2)
                gate.wait_reached()
                chaos.kill("sim:0", both.ex)
            assert bits(future.result(timeout=60)) == want
            both.steps(3, n=1)
        stats = both.ex.stats()
        assert stats["degraded"] == {"sim:0": "cpu:0"}
        assert stats["children"]["sim:0"]["provider"] == "cpu:0"
        assert "sim:0 is lost" in caplog.text
        assert "no such device" in caplog.text
        assert {p.provider for p in both.ex.plan.placements} == {"cpu:0", "cpu"}
        assert "lost while the model ran" in both.ex.plan.explain(nodes=True)
        chaos.kill("sim:0", both.ex)  # where it is now, it comes back as any other
        both.steps(2, n=1)


def test_the_partitions_of_every_shape_class_go_too() -> None:
    """Steps of one row run the other way about, over the same two children."""
    classes = {"one": {"when": {"n": 1}, "overrides": {"Exp*": "cpu"}}}
    with Beside(CHAIN, max_restarts=1, planning={"shape_classes": classes}) as both:
        for n in (1, 2, 1, 3):
            both.step(n)
        with chaos.broken("prepare sim:0", "no such device"):
            with chaos.gate("partition 1, before run") as gate:
                future, want = both.submit(2)
                gate.wait_reached()
                chaos.kill("sim:0", both.ex)
            assert bits(future.result(timeout=60)) == want
        for n in (1, 2, 1, 3):
            both.step(n)
        stats = both.ex.stats()
        assert stats["degraded"] == {"sim:0": "cpu:0"}
        assert stats["steps_by_class"] == {"one": 4}
        assert {p.provider for s in both.ex.plan.sections for p in s.placements} == {"cpu:0", "cpu"}
        assert "sim:0: it was lost while the model ran" in both.ex.plan.explain()


def test_where_nobody_else_takes_the_nodes_every_step_says_so() -> None:
    providers: list[Any] = [("sim:0", {"except_ops": ["Softmax"]}), ("cpu", {"except_ops": ["Exp"]})]
    with Beside(CHAIN, providers, max_restarts=1) as both:
        both.step()
        with chaos.broken("prepare sim:0", "no such device"):
            chaos.kill("sim:0", both.ex)
            for _ in range(2):
                with pytest.raises(
                    ChildDiedError, match=r"cannot be started again: .*no such device"
                ) as caught:
                    both.ex.run(both.feeds())
                assert caught.value.device == "sim:0"
        stats = both.ex.stats()
        assert not stats["children"]["sim:0"]["alive"]
        assert stats["children"]["cpu"]["alive"]
