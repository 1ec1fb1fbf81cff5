"""Memory that runs out: an error of the step where an allocation fails, a death where the process is killed for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray
import ray.exceptions as rex

from actors import chaos
from hetero.errors import ChildDiedError, MemoryLimitError
from tests.faults import ops
from tests.faults.harness import ALL, CHAIN, DECODER, HEAD, SPLIT, Beside, bits

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]

PRODUCTS = HEAD + (
    "g (float[n, 4] x) => (float[n, 4] y) { a = Exp(x) b = Softmax<axis=1>(a)"
    f" c = {ops.DOMAIN}.Limit(b) t = Transpose(c) g = MatMul(c, t) y = MatMul(g, c) }}"
)
"""A product of n² numbers on the way, on a child that may not have so much memory."""
TOO_MANY = 40_000
LIMITED = 4 << 20
TOO_LONG = 1_000
ROADS = ["objects", "channels"] if ALL else ["channels"]
KILLED_FOR_MEMORY = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2, ID: f4) was"
    " 0.74GB used / 23.54GB limit (0.031530)\nOOM kill reason: Memory usage 796950528B exceeded threshold of"
    " 252760592B (1.0% of 25276059648B limit)\nRay killed 1 worker(s) based on the killing policy"
)
"""What Ray 2.60 tells the callers of an actor that its memory monitor killed: an error that names no actor."""


@pytest.mark.parametrize("road", ROADS)
def test_an_allocation_that_fails_on_a_host_is_an_error_of_its_step_that_names_bytes_and_device(
    road: str,
) -> None:
    providers: list[Any] = [("sim:0", {"ops": ["Exp"]}), "cpu"]
    with Beside(PRODUCTS, providers, transport=road) as both:
        both.ready()
        for _ in range(2):
            with pytest.raises(MemoryLimitError, match=f"no memory for {4 * TOO_MANY**2} bytes") as caught:
                both.ex.run(both.feeds(TOO_MANY))
            assert caught.value.device == "cpu"
            assert caught.value.op == "MatMul"
            both.steps(2)
        assert both.recovery()["losses"] == 0
        assert all(c["resident_steps"] == 0 for c in both.ex.stats()["children"].values())


@pytest.mark.parametrize("road", ROADS)
def test_a_device_that_has_no_room_for_the_state_leaves_it_as_it_was(road: str) -> None:
    device, host = SPLIT
    providers: list[Any] = [(device[0], {**device[1], "memory_limit_bytes": LIMITED}), host]
    with Beside(DECODER, providers, transport=road, checkpoint_every=3) as both:
        both.bind()
        both.ready()
        both.steps(3, n=2)
        for _ in range(2):
            feeds = both.feeds(TOO_LONG)
            for each in (both.ex, both.calm):
                with pytest.raises(
                    MemoryLimitError, match=rf"for \d+ bytes.* limit {LIMITED} bytes"
                ) as caught:
                    each.run(feeds)
                assert caught.value.device == "sim:0"
            assert bits(both.ex.read_state()) == bits(both.calm.read_state())
            both.step(2)
        chaos.kill("sim:0", both.ex)  # the steps that failed are no part of what is replayed
        both.steps(2, n=1)
        assert bits(both.ex.read_state()) == bits(both.calm.read_state())


def ray_tells_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each death look as if Ray's memory monitor were behind it, which ends its victims by SIGKILL as well."""
    get: Callable[..., Any] = ray.get

    def told(*arguments: Any, **keywords: Any) -> Any:
        try:
            return get(*arguments, **keywords)
        except rex.ActorDiedError as error:
            raise rex.OutOfMemoryError(KILLED_FOR_MEMORY) from error

    monkeypatch.setattr(ray, "get", told)


def test_a_child_that_ray_killed_for_memory_is_replaced_and_a_step_that_does_it_each_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray_tells_of_memory(monkeypatch)
    with Beside(CHAIN, max_step_deaths=2, ray_options={"standbys": 1}, transport="objects") as both:
        both.step()
        with both.stopped("partition 1, before run"):
            chaos.kill("cpu", both.ex)
        next(both.calm._steps)
        with pytest.raises(
            ChildDiedError, match="children ended 2 times with it, last: out of memory"
        ) as caught:
            both.ex.run({"x": np.full((2, 4), np.nan, np.float32)})
        assert caught.value.device == "sim:0"
        both.step()
        counts = both.recovery()
        assert (counts["losses"], counts["given_up_steps"]) == (3, 1)
