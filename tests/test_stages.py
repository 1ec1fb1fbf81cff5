"""Staged executors give the bits of the whole model, wherever the cuts are; overrides; measured times."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hetero
from benchmarks.models import encoder
from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.errors import OptionError, PlanError
from hetero.planner.costs import measured
from hetero.planner.plan import CALLER
from tests.models.decoder import SMALL, build, prompt
from tests.properties.graphs import RandomModel, models
from tests.properties.test_split import feeds as random_feeds

SIMS = ["sim:0", "sim:1", "sim:2", "cpu"]
HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'
LOOPS = HEAD + (
    "g (float[n, 4] x, int64 trips, bool p) => (float[a, b] y) {"
    " e = Exp(x) go = Constant<value = bool {1}>() k = Tanh(e) w = Constant<value = float[1] {0.5}>()"
    " looped = Loop (trips, go, e) <body = b (int64 i, bool c, float[n, 4] v) => (bool c2, float[n, 4] u)"
    " { c2 = Identity(c) t = Mul(v, w) u = Add(t, k) }>"
    " s = Sqrt(k) chosen = If(p) <then_branch = t () => (float[n, 4] q) { q = Mul(looped, w) },"
    " else_branch = f () => (float[n, 4] r) { r = Sub(looped, s) }> y = Sigmoid(chosen) }"
)


def run(
    model: Any, providers: list[Any], feeds: list[dict[str, Any]], **keywords: Any
) -> list[dict[str, Any]]:
    with HeterogeneousExecutor(model, providers, children="inline", **keywords) as ex:
        return [ex.run(f) for f in feeds]


def assert_same_bits(got: list[dict[str, Any]], want: list[dict[str, Any]]) -> None:
    for one, other in zip(got, want, strict=True):
        assert one.keys() == other.keys()
        for name, array in other.items():
            assert (one[name].dtype, one[name].shape) == (array.dtype, array.shape), name
            assert one[name].tobytes() == array.tobytes(), name


def inputs(*shape: int, runs: int = 3) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(runs)]


def test_an_encoder_over_three_devices_gives_the_bits_of_the_whole() -> None:
    model, feeds = encoder(layers=3, hidden=32, heads=4), inputs(2, 6, 32)
    plan = hetero.plan(model, SIMS, stages="auto")
    assert [(p.child, {q.stage for q in plan.placements}) for p in plan.partitions] == [
        (k, {0, 1, 2}) for k in range(3)
    ]
    assert [(t.source, t.destination) for t in plan.transfers if CALLER not in (t.source, t.destination)] == [
        (0, 1),
        (1, 2),
    ]
    times = [s.time_ps for s in plan.stages]
    assert max(times) < 1.1 * sum(times) / 3
    assert_same_bits(run(model, SIMS, feeds, stages="auto"), run(model, ["cpu"], feeds))


def test_a_decoder_whose_embedding_is_shared_with_its_head_can_be_staged() -> None:
    model, ids = build(), prompt()
    plan = hetero.plan(model, SIMS, stages="auto")
    assert len(plan.stages) == 3
    assert all(t.source < t.destination or t.destination == CALLER for t in plan.transfers)
    sizes = {i.name: len(i.raw_data) for i in model.graph.initializer}
    for stage in plan.stages:
        assert stage.weight_bytes >= sum(sizes.get(n, 0) for n in plan.weights[stage.child])
    feeds: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": np.ones(ids.shape, np.int64),
        "position_ids": np.arange(ids.shape[1])[None],
    }
    for port in plan.inputs:
        if port.name not in feeds:
            feeds[port.name] = np.zeros((1, SMALL.kv_heads, 0, SMALL.size), np.float32)
    assert_same_bits(run(model, SIMS, [feeds] * 3, stages="auto"), run(model, ["cpu"], [feeds] * 3))


def test_control_flow_is_dealt_as_one_unit_with_its_bodies() -> None:
    model = onnx.parser.parse_model(LOOPS)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    feeds = [{"x": x, "trips": np.array(t), "p": np.array(p)} for t in (0, 3) for p in (True, False)]
    plan = hetero.plan(model, ["sim:0", "sim:1", "cpu"], stages="auto")
    assert {s.child for s in plan.stages} == {0, 1}
    for inner in (p for p in plan.placements if p.path):
        outer = next(p for p in plan.placements if not p.path and inner.path[0].startswith(p.node))
        assert (inner.provider, inner.stage) == (outer.provider, outer.stage)
    for cut in ("looped", "chosen"):
        node = next(p.node for p in plan.placements if p.op == {"looped": "Loop", "chosen": "If"}[cut])
        times = {node: 1.0}
        assert_same_bits(
            run(model, ["sim:0", "sim:1", "cpu"], feeds, stages="auto", node_times=times),
            run(model, ["cpu"], feeds),
        )


def test_stages_of_one_kind_may_be_processors_too() -> None:
    model, feeds = encoder(layers=2, hidden=16, heads=2), inputs(1, 5, 16)
    plan = hetero.plan(model, ["cpu:0", "cpu:1"], stages="auto")
    assert [s.child for s in plan.stages] == [0, 1]
    assert_same_bits(run(model, ["cpu:0", "cpu:1"], feeds, stages="auto"), run(model, ["cpu"], feeds))


def test_a_model_too_large_for_one_device_runs_on_two() -> None:
    model, feeds = encoder(layers=2, hidden=64, heads=4), inputs(1, 4, 64)
    whole = hetero.plan(model, ["sim:0"], stages="auto").stages[0].weight_bytes
    limit = {"memory_limit_bytes": int(0.75 * whole)}
    with pytest.raises(PlanError, match=rf"sim:0: {whole} bytes needed, {int(0.75 * whole)} bytes available"):
        hetero.plan(model, [("sim:0", limit)], stages="auto")
    small: list[Any] = [("sim:0", limit), ("sim:1", limit)]
    assert all(s.weight_bytes <= 0.75 * whole for s in hetero.plan(model, small, stages="auto").stages)
    assert_same_bits(run(model, small, feeds, stages="auto"), run(model, ["cpu"], feeds))


def test_spans_of_a_traced_run_are_times_to_plan_with() -> None:
    model = encoder(layers=2, hidden=32, heads=4)
    with HeterogeneousExecutor(
        model, ["cpu"], children="inline", options=RuntimeOptions(trace_ops=True)
    ) as ex:
        for feeds in inputs(2, 6, 32):
            ex.run(feeds)
        times = measured(ex.spans())
    assert set(times) <= {p.node for p in ex.plan.placements}
    assert sum(times.values()) > 0
    plan = hetero.plan(model, SIMS, stages="auto", node_times=times)
    total_ps = sum(s.time_ps for s in plan.stages)
    assert total_ps >= 0.9 * 1e12 * sum(times.values())
    assert plan == hetero.plan(model, SIMS, stages="auto", node_times=times)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(models(), st.lists(st.floats(0, 1), min_size=30, max_size=30))
def test_random_models_give_the_bits_of_the_whole_wherever_they_are_cut(
    model: RandomModel, seconds: list[float]
) -> None:
    feeds = random_feeds(2)
    names = [p.node for p in hetero.plan(model.proto, ["cpu"]).placements if not p.path]
    times = dict(zip(names, seconds, strict=False))
    whole = run(model.proto, ["cpu"], [feeds])
    assert_same_bits(run(model.proto, SIMS, [feeds], stages="auto", node_times=times), whole)


# -- overrides ---------------------------------------------------------------------------------------------------
def test_overrides_beat_stages_and_say_so() -> None:
    model, feeds = encoder(layers=3, hidden=32, heads=4), inputs(2, 6, 32)
    overrides = {"l[01]_softmax": "cpu", "l0_*": "sim:2"}
    plan = hetero.plan(model, SIMS, stages="auto", overrides=overrides)
    where = {p.node: p for p in plan.placements}
    assert where["l0_softmax"].provider == where["l1_softmax"].provider == "cpu"
    assert where["l0_softmax"].reason.endswith("; override 'l[01]_softmax'")
    assert {p.provider for n, p in where.items() if n.startswith("l0_") and n != "l0_softmax"} == {"sim:2"}
    assert {p.stage for n, p in where.items() if n.startswith("l0_q")} == {2}
    assert_same_bits(run(model, SIMS, feeds, stages="auto", overrides=overrides), run(model, ["cpu"], feeds))


def test_overrides_work_without_stages() -> None:
    model, feeds = encoder(layers=2, hidden=16, heads=2), inputs(1, 4, 16)
    plan = hetero.plan(model, ["sim:0", "cpu"], overrides={"l1_*": "cpu"}, strict=True)
    assert not plan.stages
    assert {p.provider for p in plan.placements if p.node.startswith("l1_")} == {"cpu"}
    assert_same_bits(
        run(model, ["sim:0", "cpu"], feeds, overrides={"l1_*": "cpu"}), run(model, ["cpu"], feeds)
    )


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        ({"nothing.*": "cpu"}, PlanError, ["'nothing.*'", "matches no node"]),
        ({"inner*": "cpu"}, PlanError, ["'inner*'", "in a body"]),
        ({"*": "gpu:0"}, OptionError, ["'*'", "gpu:0", "there are: sim:0, cpu"]),
        ({"loud": "sim:0"}, PlanError, ["'loud'", "sim:0", "does not take it", "strings"]),
        ({"loud": 3}, OptionError, ["overrides map", "'loud'"]),
    ],
)
def test_an_override_that_cannot_be_had_is_an_error_that_names_it(
    overrides: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]>\n'
        "g (string[n] s, bool p, float[n] x) => (string[n] t, float[n] y) { t = StringConcat(s, s)"
        " y = If(p) <then_branch = a () => (float[n] u) { u = Neg(x) },"
        " else_branch = b () => (float[n] v) { v = Abs(x) }> }"
    )
    model.graph.node[0].name = "loud"
    for attribute in model.graph.node[1].attribute:
        attribute.g.node[0].name = f"inner_{attribute.name}"
    with pytest.raises(error) as caught:
        hetero.plan(model, ["sim:0", "cpu"], overrides=overrides)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_times_for_nodes_that_are_not_there_are_refused() -> None:
    with pytest.raises(PlanError, match="does not have"):
        hetero.plan(encoder(layers=1, hidden=16, heads=2), SIMS, stages="auto", node_times={"typo": 1.0})
