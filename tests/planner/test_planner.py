"""Planning whole models: functions, initializers, odd outputs, determinism; and random graphs over random providers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from hetero.errors import OptionError, PlanError, ProviderError, UnsupportedNodeError
from hetero.model.model import load_model
from hetero.planner.check import check_plan
from hetero.planner.plan import CALLER, Plan
from hetero.planner.planner import plan_model
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import ValueType
from tests.planner.fakes import FakeProvider, graph, ints, node, plan_of


def value(name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    g = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(v, k) for k, v in (weights or {}).items()]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    return helper.make_model(g, opset_imports=opsets, functions=functions or [], ir_version=9)


def mlp() -> onnx.ModelProto:
    weight = np.ones((4, 4), np.float32)
    return model(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
            helper.make_node("Softmax", ["a"], ["b"], name="soft"),
            helper.make_node("MatMul", ["b", "w"], ["y"], name="second"),
        ],
        [value("x", 2, 4)],
        [value("y", 2, 4)],
        {"w": weight},
    )


def test_a_model_is_split_by_what_providers_take() -> None:
    plan = plan_model(load_model(mlp()), [FakeProvider("gpu", ["MatMul"]), FakeProvider("cpu")])
    assert [(p.child, p.node_indices) for p in plan.partitions] == [(0, (0,)), (1, (1,)), (0, (2,))]
    assert plan.weights == (("w",), ())
    assert [(t.value, t.source, t.destination, t.nbytes) for t in plan.transfers] == [
        ("x", CALLER, 0, 32),
        ("a", 0, 1, 32),
        ("b", 1, 0, 32),
        ("y", 0, CALLER, 32),
    ]
    assert plan.model == "g"
    check_plan(plan)


def test_the_same_model_and_options_give_the_same_plan() -> None:
    providers = [FakeProvider("gpu", ["MatMul"]), FakeProvider("cpu")]
    first, second = plan_model(load_model(mlp()), providers), plan_model(load_model(mlp()), providers)
    assert first == second
    assert first.to_bytes() == second.to_bytes()
    assert first != plan_model(load_model(mlp()), [FakeProvider("cpu")])
    assert Plan.from_bytes(first.to_bytes()) == first


def test_providers_must_be_some_and_distinct() -> None:
    loaded = load_model(mlp())
    with pytest.raises(ProviderError, match="empty"):
        plan_model(loaded, [])
    with pytest.raises(ProviderError, match="gpu is given twice"):
        plan_model(loaded, [FakeProvider("gpu"), FakeProvider("cpu"), FakeProvider("gpu")])


def test_provider_options_that_are_no_plain_data_are_refused_when_planning() -> None:
    from hetero.providers.base import ProviderConfig

    odd = FakeProvider("gpu")
    odd.config = ProviderConfig("gpu", (("hook", print),))
    with pytest.raises(OptionError, match="plain data") as caught:
        plan_model(load_model(mlp()), [odd])
    assert caught.value.operand == "hook"


def test_strict_refuses_a_model_that_is_not_whole_on_the_first_provider() -> None:
    providers = [FakeProvider("gpu", ["MatMul"]), FakeProvider("cpu")]
    with pytest.raises(
        PlanError, match=r"soft.*Softmax-13, opset 18.*float\[2, 4\].*gpu has no kernel for Softmax"
    ):
        plan_model(load_model(mlp()), providers, strict=True)
    assert plan_model(load_model(mlp()), [FakeProvider("gpu")], strict=True).partitions


def nested_functions() -> onnx.ModelProto:
    inner = helper.make_function(
        "my",
        "Half",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 18)],
    )
    outer = helper.make_function(
        "my",
        "Twice",
        ["a"],
        ["c"],
        [helper.make_node("Half", ["a"], ["b"], domain="my"), helper.make_node("Mul", ["b", "b"], ["c"])],
        [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)],
    )
    return model(
        [
            helper.make_node("Twice", ["x"], ["y"], domain="my", name="one"),
            helper.make_node("Half", ["y"], ["z"], domain="my", name="two"),
        ],
        [value("x", 2)],
        [value("z", 2)],
        functions=[inner, outer],
    )


def ops(plan: Plan) -> list[str]:
    return [p.op for p in plan.placements]


def test_functions_that_nobody_claims_are_inlined_all_the_way() -> None:
    plan = plan_model(load_model(nested_functions()), [FakeProvider("cpu", ["Add", "Mul"], reference=True)])
    assert ops(plan) == ["Add", "Mul", "Add"]


def test_a_function_that_a_provider_claims_is_kept_whole_even_inside_another() -> None:
    providers = [FakeProvider("gpu", ["my::Half"]), FakeProvider("cpu", ["Add", "Mul"])]
    plan = plan_model(load_model(nested_functions()), providers)
    assert ops(plan) == ["my::Half", "Mul", "my::Half"]
    assert [p.provider for p in plan.placements] == ["gpu", "cpu", "gpu"]


def test_the_reference_is_used_only_for_what_cannot_be_inlined() -> None:
    soft = model([helper.make_node("Softmax", ["x"], ["y"])], [value("x", 2, 3)], [value("y", 2, 3)])
    parts = ["ReduceMax", "Sub", "Exp", "ReduceSum", "Div"]
    plan = plan_model(load_model(soft), [FakeProvider("cpu", parts, reference=True)])
    assert "Softmax" not in ops(plan)
    dft = model([helper.make_node("Erf", ["x"], ["y"])], [value("x", 2, 3)], [value("y", 2, 3)])
    plan = plan_model(load_model(dft), [FakeProvider("cpu", parts, reference=True)])
    assert [(p.op, p.reason) for p in plan.placements] == [("Erf", "through onnx.reference")]


def test_what_is_left_after_inlining_and_nobody_takes_is_an_error() -> None:
    with pytest.raises(UnsupportedNodeError, match="cpu has no kernel for Mul"):
        plan_model(load_model(nested_functions()), [FakeProvider("cpu", ["Add"])])


def test_inputs_and_initializers_returned_as_they_are_need_no_partition() -> None:
    plain = model(
        [], [value("x", 2), value("u", 2)], [value("x", 2), value("w", 2)], {"w": np.zeros(2, np.float32)}
    )
    plan = plan_model(load_model(plain), [FakeProvider("gpu"), FakeProvider("cpu")])
    assert [len(part) for part in (plan.partitions, plan.parcels, plan.transfers, plan.placements)] == [0] * 4
    assert [p.name for p in plan.inputs] == ["x", "u"]
    assert [p.name for p in plan.outputs] == ["x", "w"]
    assert plan.weights == ((), ())
    assert Plan.from_bytes(plan.to_bytes()) == plan
    assert "0 nodes" in plan.explain()


def test_bodies_that_capture_values_and_weights_bring_them_to_their_child() -> None:
    def branch(op: str) -> onnx.GraphProto:
        inside = [helper.make_node(op, ["a", "w"], [f"r_{op}"], name=f"in_{op}")]
        return helper.make_graph(inside, op, [], [value(f"r_{op}", 2)])

    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="neg"),
        helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch("Add"), else_branch=branch("Mul")),
    ]
    inputs = [value("x", 2), value("c", dtype=TensorProto.BOOL)]
    loaded = load_model(model(nodes, inputs, [value("y", 2)], {"w": np.ones(2, np.float32)}))
    plan = plan_model(loaded, [FakeProvider("gpu", ["Neg", "If", "Add"]), FakeProvider("cpu")])
    assert [(p.child, len(p.program.instructions)) for p in plan.partitions] == [(0, 1), (1, 1)]
    assert plan.weights == ((), ("w",))
    assert {(t.value, t.destination) for t in plan.transfers} == {("x", 0), ("c", 1), ("a", 1), ("y", CALLER)}
    assert [(p.node, p.path) for p in plan.placements] == [
        ("neg", ()),
        ("if", ()),
        *((f"in_{op}", (f"if.{key}_branch",)) for key, op in (("else", "Mul"), ("then", "Add"))),
    ]
    assert plan.partitions[1].program.instructions[0].dispatch is Dispatch.CONTROL


def test_a_loop_on_one_child_moves_nothing_between_children() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Shape", ["v"], ["s"], name="shape"),
            helper.make_node("Expand", ["v", "s"], ["v_out"], name="expand"),
            helper.make_node("Identity", ["go"], ["go_out"], name="same"),
        ],
        "body",
        [value("i", dtype=TensorProto.INT64), value("go", dtype=TensorProto.BOOL), value("v", 2)],
        [value("go_out", dtype=TensorProto.BOOL), value("v_out", 2)],
    )
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["y"], name="loop", body=body)]
    loaded = load_model(model(nodes, [value("n", dtype=TensorProto.INT64), value("x", 2)], [value("y", 2)]))
    providers = [FakeProvider("gpu", ["Loop", "Expand", "Identity"]), FakeProvider("cpu")]
    plan = plan_model(loaded, providers, strict=True)
    assert {p.provider for p in plan.placements} == {"gpu"}
    assert {(t.source, t.destination) for t in plan.transfers} == {(CALLER, 0), (0, CALLER)}
    dispatch = {
        i.op.name: i.dispatch
        for body_ in plan.partitions[0].program.instructions[0].op.bodies().values()
        for i in body_.instructions
    }
    assert dispatch["shape"] is Dispatch.HOST
    assert dispatch["expand"] is Dispatch.BACKEND


def test_inputs_with_a_default_are_constants_that_their_child_holds() -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    proto = model(nodes, [value("x", 2), value("w", 2)], [value("y", 2)], {"w": np.ones(2, np.float32)})
    plan = plan_model(load_model(proto), [FakeProvider("cpu")])
    assert [p.name for p in plan.inputs] == ["x"]
    assert plan.parcels[0].values == ("x",)
    assert plan.weights == (("w",),)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_random_graphs_on_random_providers_give_sound_plans(data: st.DataObject) -> None:
    n_providers = data.draw(st.integers(1, 3))
    values = ["x", "y", "w"]
    nodes = []
    unread: list[str] = []
    types: dict[str, ValueType | None] = {}
    for i in range(data.draw(st.integers(0, 16))):
        reads = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        home = data.draw(st.integers(0, n_providers - 1))
        shapely = data.draw(st.integers(0, 4)) == 0
        nodes.append(
            node("Shape", reads[0], f"v{i}") if shapely else node(f"my::P{home}", " ".join(reads), f"v{i}")
        )
        unread = [v for v in unread if v not in (reads[:1] if shapely else reads)] + [f"v{i}"]
        values.append(f"v{i}")
        if shapely:
            types[f"v{i}"] = ints(2)
    more = data.draw(st.lists(st.sampled_from(values), max_size=2))
    g = graph(nodes, "x y", " ".join(dict.fromkeys([*unread, *more])), {"w": 3}, types)

    def only(k: int) -> FakeProvider:
        def rule(op: Operation, types: object) -> bool:
            return int(op.op_type[1:]) == k

        return FakeProvider(f"p{k}", rule=rule)

    plan = plan_of(g, [only(k) for k in range(n_providers)])
    check_plan(plan)
    assert sorted(i for p in plan.partitions for i in p.node_indices) == list(range(len(nodes)))
    for placement in plan.placements:
        if placement.op != "Shape":
            assert placement.provider == f"p{placement.op[-1]}"
    again = Plan.from_bytes(plan.to_bytes())
    assert again == plan
    assert again.transfers == plan.transfers
    assert plan_of(g, [only(k) for k in range(n_providers)]).to_bytes() == plan.to_bytes()
    assert plan.to_dot()
    assert plan.explain(nodes=True)
