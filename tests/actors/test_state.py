"""State on actors: it stays there between steps, and what leaves is what is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from hetero import HeterogeneousExecutor
from hetero.errors import StateError
from tests.test_bound_state import CACHE, PAIR, SPLIT, Fed, executor, same, tokens
from tests.test_device_buffer import ROOT, check_steps

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]


def remote(text: str) -> HeterogeneousExecutor:
    import onnx.parser

    return HeterogeneousExecutor(onnx.parser.parse_model(text), SPLIT)


def test_a_cache_on_an_actor_grows_rewinds_and_comes_back() -> None:
    fed = Fed(SPLIT)
    with remote(CACHE) as ex, fed.ex:
        ex.bind_state(PAIR, capacity=16)
        for k in range(6):
            assert same(ex.run(tokens(seed=k)), fed.run(tokens(seed=k)))
        before = {n: c["bytes_out"] for n, c in ex.stats()["children"].items()}
        ex.rewind_state(4)
        fed.past = fed.past[:, :, :4]
        assert same(ex.run(tokens(seed=9)), fed.run(tokens(seed=9)))
        assert ex.read_state()["past_k"].tobytes() == fed.past.tobytes()
        ex.write_state({"past_k": fed.past[:, :, :2]})
        fed.past = fed.past[:, :, :2]
        assert same(ex.run(tokens(seed=5)), fed.run(tokens(seed=5)))
        with pytest.raises(StateError, match="its buffer has 16"):
            ex.run(tokens(n=14))
        assert ex.state_length() == 3
        steps = {n: c["bytes_out"] - before[n] for n, c in ex.stats()["children"].items()}
    assert max(steps.values()) < 2_000, "the cache itself never left"


def test_submitted_steps_of_actors_take_turns() -> None:
    with remote(CACHE) as ex, executor(CACHE, ["cpu"]) as there:
        for each in (ex, there):
            each.bind_state(PAIR, capacity=64)
        futures = [ex.submit(tokens(seed=k)) for k in range(6)]
        for k, future in enumerate(futures):
            assert np.array_equal(future.result(timeout=60)["y"], there.run(tokens(seed=k))["y"])


def test_device_buffers_lie_on_the_actor() -> None:
    import onnx.parser

    with HeterogeneousExecutor(onnx.parser.parse_model(ROOT), ["sim:0"]) as ex:
        check_steps(ex)
