"""Split or whole, the same bits from the same kernels; and values that onnxruntime agrees with."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero import HeterogeneousExecutor, RuntimeOptions
from tests.dealing import dealt
from tests.properties.graphs import N, RandomModel, models

pytestmark = pytest.mark.usefixtures("overwrites_all")

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def feeds(batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((batch, N, N)).astype(np.float32) for name in ("x", "y")}


def bits(results: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in results.items()}


@SLOW
@given(models(), st.data())
def test_any_split_gives_the_bits_of_the_whole_graph_on_the_cpu(
    model: RandomModel, data: st.DataObject
) -> None:
    where = ["cpu", "sim:0", "sim:1"]
    deal = {name: data.draw(st.sampled_from(where), label=name) for name in model.nodes}
    shares = {name: [n for n, to in deal.items() if to == name] for name in where}
    with (
        HeterogeneousExecutor(model.proto, ["cpu"], children="inline") as whole,
        HeterogeneousExecutor(model.proto, dealt(shares), children="inline") as split,
    ):
        for run, batch in enumerate((2, 2, 3, 2)):
            x = feeds(batch, run)
            assert bits(split.run(x)) == bits(whole.run(x))


@SLOW
@given(models())
def test_values_are_those_of_onnxruntime(model: RandomModel) -> None:
    session = onnxruntime.InferenceSession(
        model.proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    with HeterogeneousExecutor(model.proto, ["cpu"], children="inline") as ours:
        for batch in (1, 3):
            x = feeds(batch)
            got = ours.run(x)
            for name, want in zip(got, session.run(None, x), strict=True):
                np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5)


@SLOW
@given(models(), st.sampled_from(["fold_constants", "in_place", "reuse_buffers"]))
def test_switching_an_optimisation_off_changes_no_bit(model: RandomModel, switch: str) -> None:
    options = RuntimeOptions(**{switch: False})
    with (
        HeterogeneousExecutor(model.proto, ["cpu"], children="inline") as on,
        HeterogeneousExecutor(model.proto, ["cpu"], children="inline", options=options) as off,
    ):
        for seed in range(2):
            assert bits(off.run(feeds(2, seed))) == bits(on.run(feeds(2, seed)))
