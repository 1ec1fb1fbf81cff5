"""Partitions that move to another provider stay the partitions that they were, and compute the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

from hetero.errors import PlanError, UnsupportedNodeError
from hetero.model import load_model
from hetero.options import RuntimeOptions
from hetero.planner.failover import moved, stand_in
from hetero.planner.plan import Plan
from hetero.planner.planner import Wishes, plan_model
from hetero.providers.base import ProviderConfig
from hetero.providers.registry import create, resolve
from hetero.routes import Routes
from hetero.runtime.children import InlineChildren

TEXT = (
    '<ir_version: 10, opset_import: ["": 18]> g (float[n, 4] x, bool c) => (float[n, 4] y, float[m] z) {'
    " a = Exp(x) b = Softmax<axis=1>(a) s = Shape(b) r = Reshape(b, s)"
    " y = If(c) <then_branch = t () => (float[n, 4] u) { u = Neg(r) }, else_branch = e () => (float[n, 4] v)"
    " { v = Abs(r) }> k = Constant<value_ints=[-1]>() z = Reshape(y, k) }"
)
SPLIT: list[Any] = [("sim:0", {"except_ops": ["Softmax"]}), "cpu"]


def run(plan: Plan, weights: Any) -> dict[str, bytes]:
    children = InlineChildren([create(c) for c in plan.providers], RuntimeOptions())
    children.start(plan, weights)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    values: dict[str, Any] = {"x": x, "c": np.array(True)}
    routes = Routes(plan)
    parcels: dict[int, Any] = {p.id: [values[v] for v in p.values] for p in routes.from_caller}
    for partition, receives, sends in routes.calls:
        left = children.call(
            partition.child, partition.id, 1, [parcels[p] for p in receives], len(sends), "primary"
        )
        parcels.update(zip(sends, left, strict=True))
    for parcel in routes.to_caller:
        values.update(zip(parcel.values, parcels[parcel.id], strict=True))
    children.close()
    return {name: values[name].tobytes() for name in ("y", "z")}


def test_partitions_move_as_they_are() -> None:
    model = load_model(onnx.parser.parse_model(TEXT))
    before = plan_model(model, resolve(SPLIT))
    config = stand_in(before, ProviderConfig("cpu"))
    assert config is not None
    assert config.name == "cpu:0"
    after = moved(model, before, 0, create(config))
    assert [p.name for p in after.providers] == ["cpu:0", "cpu"]
    assert after.parcels == before.parcels
    assert after.weights == before.weights
    assert [(p.id, p.child, p.node_indices) for p in after.partitions] == [
        (p.id, p.child, p.node_indices) for p in before.partitions
    ]
    assert {p.provider for p in after.placements} == {"cpu:0", "cpu"}
    assert Plan.from_bytes(after.to_bytes()) == after, "it holds as a plan, and travels as one"
    assert run(after, model.weights) == run(before, model.weights)
    moved_nodes = sum(p.provider == "cpu:0" for p in after.placements)
    assert f"  sim:0: it was lost while the model ran; {moved_nodes} nodes now on cpu:0" in after.explain()
    assert "degraded" not in before.explain()


def test_who_does_not_take_all_nodes_gets_none() -> None:
    model = load_model(onnx.parser.parse_model(TEXT))
    before = plan_model(model, resolve(SPLIT))
    with pytest.raises(UnsupportedNodeError, match="sim:1 cannot take it over from cpu"):
        moved(model, before, 1, create(ProviderConfig("sim:1", except_ops=frozenset({"Softmax"}))))


def test_a_stage_moves_to_where_there_is_memory_for_its_weights() -> None:
    """Four layers, each with weights of 4 KiB, as two stages."""
    chain = " ".join(f"v{k + 1} = MatMul(v{k}, w{k})" for k in range(4))
    text = f'<ir_version: 10, opset_import: ["": 18]> g (float[n, 32] v0) => (float[n, 32] v4) {{ {chain} }}'
    proto = onnx.parser.parse_model(text)
    for k in range(4):
        weight = np.full((32, 32), k, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"w{k}"))
    model = load_model(proto)
    before = plan_model(model, resolve(["sim:0", "sim:1"]), wishes=Wishes(stages="auto"))
    enough, less = resolve([("sim:2", {"memory_limit_bytes": 8192}), ("sim:3", {"memory_limit_bytes": 8191})])
    after = moved(model, before, 0, enough)
    assert [p.name for p in after.providers] == ["sim:2", "sim:1"]
    assert after.stages == before.stages
    assert {s.weight_bytes for s in after.stages} == {8192}
    with pytest.raises(PlanError, match="sim:0: the weights of its stages take 8192 bytes, 8191 bytes"):
        moved(model, before, 0, less)


def test_of_a_real_device_there_is_no_further_instance() -> None:
    model = load_model(onnx.parser.parse_model(TEXT))
    assert stand_in(plan_model(model, resolve(SPLIT)), ProviderConfig("cuda:0")) is None
