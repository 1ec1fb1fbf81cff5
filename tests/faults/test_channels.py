"""Channels that are cut: the steps in flight are run again, whether the child at the other end lives or not."""

from __future__ import annotations

import os
import signal

import pytest
import ray

from actors import chaos
from actors.pool import RayChildren
from tests.faults.harness import DECODER, TEXT_IDS, TEXTS, Beside, bits

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]


def cut(both: Beside, device: str) -> None:
    """End a child's channels, and not the child."""
    children = both.ex._children
    assert isinstance(children, RayChildren)
    (member,) = [m for m in children._held.members.values() if m.device == device]
    ray.get(member.actor.close_channels.remote())


@pytest.mark.parametrize("text", TEXTS, ids=TEXT_IDS)
def test_a_channel_that_is_cut_between_steps_and_one_that_is_cut_in_a_step_lose_nothing(text: str) -> None:
    with Beside(text, transport="channels", checkpoint_every=3, ray_options={"standbys": 1}) as both:
        if text is DECODER:
            both.bind()
        both.ready()
        cut(both, "cpu")
        both.steps(2, n=2)
        both.ready()
        assert both.ex.stats()["transport"]["generation"] >= 2
        with chaos.gate("partition 1, before run") as gate:
            future, want = both.submit(2)
            os.kill(gate.wait_reached()["pid"], signal.SIGKILL)
            gate.open()
        assert bits(future.result(timeout=100)) == want
        both.ready()
        both.steps(2, n=2)
        assert both.ex.stats()["failed_steps"] == 0
