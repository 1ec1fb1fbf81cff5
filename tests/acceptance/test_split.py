"""Any deal of any graph over providers gives the bits of the whole graph on the cpu, for every run of any sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero import HeterogeneousExecutor
from hetero.types import SequenceValue
from tests.acceptance.graphs import rich_models
from tests.dealing import dealt
from tests.properties.graphs import N, RandomModel

SLOW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def feeds(batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((batch, N, N)).astype(np.float32) for name in ("x", "y", "unused")}


def bits(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: bits(v) for name, v in value.items()}
    if isinstance(value, SequenceValue):
        return [bits(v) for v in value]
    return None if value is None else (value.dtype, value.shape, value.tobytes())


@SLOW
@given(rich_models(), st.data())
def test_nodes_dealt_at_random_give_the_bits_of_the_whole_graph(
    model: RandomModel, data: st.DataObject
) -> None:
    where = ["cpu", "sim:0", "sim:1"]
    deal = {name: data.draw(st.sampled_from(where), label=name) for name in model.nodes}
    shares = {name: [n for n, to in deal.items() if to == name] for name in where}
    batches = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=6))
    with (
        HeterogeneousExecutor(model.proto, ["cpu"], children="inline") as whole,
        HeterogeneousExecutor(model.proto, dealt(shares), children="inline") as split,
    ):
        for seed, batch in enumerate(batches):
            x = feeds(batch, seed)
            assert bits(split.run(x)) == bits(whole.run(x))


@SLOW
@given(rich_models(), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=2, max_size=8))
def test_no_run_of_a_long_sequence_remembers_an_earlier_one(
    model: RandomModel, runs: list[tuple[int, int]]
) -> None:
    held: list[tuple[Any, Any]] = []
    for providers in (["cpu"], ["sim:0", "cpu"]):
        with HeterogeneousExecutor(model.proto, providers, children="inline") as kept:
            for batch, seed in runs:
                x = feeds(batch, seed)
                before = bits(x)
                got = kept.run(x)
                assert bits(x) == before
                with HeterogeneousExecutor(model.proto, ["cpu"], children="inline") as fresh:
                    assert bits(got) == bits(fresh.run(x))
                held.append((got, bits(got)))
            for got, want in held:
                assert bits(got) == want
