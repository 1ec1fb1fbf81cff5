"""Stages and shape classes over actors give the bits of the whole model, several steps in flight."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.models import encoder
from hetero.executor import HeterogeneousExecutor

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]


def test_an_encoder_staged_over_actors_gives_the_bits_of_the_whole() -> None:
    model = encoder(layers=3, hidden=32, heads=4)
    rng = np.random.default_rng(0)
    batches = [{"x": rng.standard_normal((2, 6, 32)).astype(np.float32)} for _ in range(4)]
    providers = ["sim:0", "sim:1", "sim:2", "cpu"]
    with (
        HeterogeneousExecutor(model, providers, stages="auto", overrides={"l1_softmax": "cpu"}) as staged,
        HeterogeneousExecutor(model, ["cpu"], children="inline") as whole,
    ):
        assert [s.child for s in staged.plan.stages] == [0, 1, 2]
        assert len(staged.stats()["children"]) == 4
        got = list(staged.map(batches, max_in_flight=3))
        want = [whole.run(b) for b in batches]
    assert [{k: v.tobytes() for k, v in one.items()} for one in got] == [
        {k: v.tobytes() for k, v in one.items()} for one in want
    ]


def test_steps_of_another_shape_class_run_on_other_actors() -> None:
    model = encoder(layers=2, hidden=32, heads=4)
    rng = np.random.default_rng(0)
    batches = [{"x": rng.standard_normal((n, 3, 32)).astype(np.float32)} for n in (2, 1, 1, 3, 1)]
    symbol = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    classes = {"one": {"when": {symbol: 1}, "providers": ["cpu"]}}
    with (
        HeterogeneousExecutor(model, ["sim:0", "cpu"], shape_classes=classes) as ex,
        HeterogeneousExecutor(model, ["cpu"], children="inline") as whole,
    ):
        assert {p.child for p in ex.plan.partitions} == {0}
        got = list(ex.map(batches, max_in_flight=3))
        stats = ex.stats()
        assert stats["steps_by_class"] == {"one": 3}
        assert set(stats["children"]) == {"sim:0", "cpu"}
        want = [whole.run(b) for b in batches]
    assert [{k: v.tobytes() for k, v in one.items()} for one in got] == [
        {k: v.tobytes() for k, v in one.items()} for one in want
    ]
