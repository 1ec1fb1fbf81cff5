"""A plan that is made anew without a provider: each node where planning would have it, and the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

from hetero.errors import PlanError, UnsupportedNodeError
from hetero.model import load_model
from hetero.options import RuntimeOptions
from hetero.planner.classes import plan_classes, shape_classes
from hetero.planner.failover import degraded, replanned
from hetero.planner.homes import home_of
from hetero.planner.plan import LOST, Plan
from hetero.planner.planner import Wishes, plan_model
from hetero.providers.registry import create, resolve
from hetero.routes import Routes
from hetero.runtime.children import InlineChildren

TEXT = (
    '<ir_version: 10, opset_import: ["": 18]> g (float[n, 4] x, bool c) => (float[n, 4] y, float[m] z) {'
    " a = Exp(x) b = Softmax<axis=1>(a) s = Shape(b) r = Reshape(b, s)"
    " y = If(c) <then_branch = t () => (float[n, 4] u) { u = Neg(r) }, else_branch = e () => (float[n, 4] v)"
    " { v = Abs(r) }> k = Constant<value_ints=[-1]>() z = Reshape(y, k) }"
)
THREE: list[Any] = [("sim:0", {"except_ops": ["Softmax"]}), ("sim:1", {"except_ops": ["If"]}), "cpu"]
STATE = (
    '<ir_version: 10, opset_import: ["": 18]> g (float[n, 4] x, float[n, 4] h) => (float[n, 4] h2) {'
    " a = Exp(h) h2 = Softmax<axis=1>(a) }"
)


def left(plan: Plan, *gone: str) -> list[Any]:
    return [create(c) for c in plan.providers if c.name not in gone]


def on(plan: Plan) -> dict[str, set[str]]:
    """Operators by provider."""
    found: dict[str, set[str]] = {}
    for p in plan.placements:
        if not p.path:
            found.setdefault(p.provider, set()).add(p.op.split("::")[-1])
    return found


def run(plan: Plan, weights: Any, names: Sequence[str] = ("y", "z")) -> dict[str, bytes]:
    children = InlineChildren([create(c) for c in plan.providers], RuntimeOptions())
    children.start(plan, weights)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    values: dict[str, Any] = {"x": x, "c": np.array(True)}
    routes = Routes(plan)
    parcels: dict[int, Any] = {p.id: [values[v] for v in p.values] for p in routes.from_caller}
    for partition, receives, sends in routes.calls:
        sent = children.call(
            partition.child, partition.id, 1, [parcels[p] for p in receives], len(sends), "primary"
        )
        parcels.update(zip(sends, sent, strict=True))
    for parcel in routes.to_caller:
        values.update(zip(parcel.values, parcels[parcel.id], strict=True))
    children.close()
    return {name: values[name].tobytes() for name in names}


def test_each_node_goes_to_the_first_provider_left_that_takes_it() -> None:
    model = load_model(onnx.parser.parse_model(TEXT))
    before = plan_model(model, resolve(THREE))
    after = replanned(model, before, left(before, "sim:0"))
    assert after.providers == before.providers, "children keep their numbers"
    assert not any(p.child == 0 for p in after.partitions)
    assert "Exp" in on(after)["sim:1"]
    assert "If" in on(after)["cpu"]
    assert degraded(before) == {}
    assert degraded(after) == {"sim:0": ["sim:1", "cpu"]}
    assert Plan.from_bytes(after.to_bytes()) == after, "it holds as a plan, and travels as one"
    assert run(after, model.weights) == run(before, model.weights)
    nodes = sum(p.provider == "cpu" and p.rejected[0].reason == LOST for p in after.placements)
    assert nodes
    assert f"  sim:0: it was lost while the model ran; {nodes} nodes now on cpu" in after.explain()
    softmax = next(p for p in after.placements if p.op.endswith("Softmax"))
    assert [r.provider for r in softmax.rejected] == ["sim:0"], "what kept it off the lost one is still told"
    assert softmax.rejected[0].reason != LOST


def test_after_a_second_loss_both_are_told() -> None:
    model = load_model(onnx.parser.parse_model(TEXT))
    before = plan_model(model, resolve(THREE))
    once = replanned(model, before, left(before, "sim:0"))
    twice = replanned(model, once, left(before, "sim:0", "sim:1"))
    assert on(twice).keys() == {"cpu"}
    assert degraded(twice) == {"sim:0": ["cpu"], "sim:1": ["cpu"]}
    assert run(twice, model.weights) == run(before, model.weights)


def test_where_nobody_is_left_for_a_node_the_error_has_its_name_and_every_reason() -> None:
    providers: list[Any] = [
        "sim:0",
        ("sim:1", {"except_ops": ["If"]}),
        ("cpu", {"except_ops": ["If", "Exp"]}),
    ]
    model = load_model(onnx.parser.parse_model(TEXT))
    before = plan_model(model, resolve(providers))
    with pytest.raises(UnsupportedNodeError, match=r"\(If-.*sim:1: .*If.*; cpu: .*If") as caught:
        replanned(model, before, left(before, "sim:0"))
    assert caught.value.op == "If"
    assert caught.value.node == before.placements[[p.op for p in before.placements].index("If")].node


def test_overrides_hold_but_for_those_that_name_the_lost_provider() -> None:
    model = load_model(onnx.parser.parse_model(TEXT))
    names = {n.op_type: n.name or "" for n in model.ir.graph}
    wishes = Wishes(overrides={names["Exp"]: "sim:0", names["Softmax"]: "cpu"})
    before = plan_model(model, resolve(["sim:0", "sim:1", "cpu"]), wishes=wishes)
    after = replanned(model, before, left(before, "sim:0"), wishes=wishes)
    assert "Exp" in on(after)["sim:1"]
    assert on(after)["cpu"] == {"Softmax"}


def chain() -> onnx.ModelProto:
    """Four layers, each with weights of 4 KiB."""
    layers = " ".join(f"v{k + 1} = MatMul(v{k}, w{k})" for k in range(4))
    text = f'<ir_version: 10, opset_import: ["": 18]> g (float[n, 32] v0) => (float[n, 32] v4) {{ {layers} }}'
    proto = onnx.parser.parse_model(text)
    for k in range(4):
        weight = np.full((32, 32), k, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"w{k}"))
    return proto


def test_stages_are_dealt_anew_within_the_memory_of_the_devices() -> None:
    model = load_model(chain())
    providers: list[Any] = ["sim:0", ("sim:1", {"memory_limit_bytes": 8192}), "sim:2"]
    wishes = Wishes(stages="auto")
    before = plan_model(model, resolve(providers), wishes=wishes)
    after = replanned(model, before, left(before, "sim:0"), wishes=wishes)
    assert [s.child for s in after.stages] == [1, 2]
    assert {s.weight_bytes for s in after.stages} == {8192}
    with pytest.raises(PlanError, match="8192"):
        replanned(model, before, left(before, "sim:0", "sim:2"), wishes=wishes)


def test_annotated_nodes_stay_where_they_are_and_those_of_the_lost_device_fall_back() -> None:
    proto = chain()
    providers = ["sim:0", "sim:1", "sim:2", "cpu"]
    model = load_model(proto)
    names = [n.name or "" for n in model.ir.graph]
    where = Wishes(overrides=dict(zip(names, ["sim:0", "sim:1", "sim:2", "sim:2"], strict=True)))
    annotated = plan_model(model, resolve(providers), wishes=where).annotate(proto)
    wishes = Wishes(stages="model")
    model = load_model(annotated)
    before = plan_model(model, resolve(providers), wishes=wishes)
    assert [p.provider for p in before.placements] == ["sim:0", "sim:1", "sim:2", "sim:2"]
    after = replanned(model, before, left(before, "sim:1"), wishes=wishes)
    assert [p.provider for p in after.placements] == ["sim:0", "sim:0", "sim:2", "sim:2"]


def test_shape_classes_are_planned_anew_over_what_is_left_to_them() -> None:
    model = load_model(onnx.parser.parse_model(TEXT))
    given = {
        "one": {"when": {"n": 1}, "providers": ["sim:1"], "overrides": {}},
        "two": {"when": {"n": 2}, "providers": ["cpu", "sim:0"]},
    }
    classes = shape_classes(given)
    before = plan_classes(model, resolve(["sim:0", "sim:1", "cpu"]), classes)
    after = replanned(model, before, left(before, "sim:1"), classes)
    assert [(v.name, v.when) for v in after.variants] == [(v.name, v.when) for v in before.variants]
    one, two = (v.plan for v in after.variants)
    assert on(one).keys() == {"sim:0"}, "where none of its providers is left, all are its"
    assert on(two).keys() == {"cpu"}
    assert after.weights[0] == tuple(sorted({*before.weights[0], *before.weights[1]}))
    assert degraded(after) == {"sim:1": ["sim:0"]}


def test_a_state_stays_on_one_child() -> None:
    """Apart, its reader would be on sim:1 and its maker on the CPU."""
    model = load_model(onnx.parser.parse_model(STATE))
    providers: list[Any] = ["sim:0", ("sim:1", {"except_ops": ["Softmax"]}), "cpu"]
    before = plan_model(model, resolve(providers))
    assert home_of(before, "h", "h2") == 0
    apart = replanned(model, before, left(before, "sim:0"))
    assert on(apart) == {"sim:1": {"Exp"}, "cpu": {"Softmax"}}
    together = replanned(model, before, left(before, "sim:0"), states={"h": "h2"})
    assert home_of(together, "h", "h2") == 2
    split: list[Any] = [providers[1], ("cpu", {"except_ops": ["Exp"]})]
    before = plan_model(model, resolve(["sim:0", *split]))
    with pytest.raises(
        PlanError, match="no provider that is left keeps the state h from step to step: sim:1: "
    ):
        replanned(model, before, resolve(split), states={"h": "h2"})
