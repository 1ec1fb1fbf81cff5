"""Normal form: lifting, unique names, order, unused nodes; the meaning stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero.errors import ModelError
from hetero.model import Model, load_model
from hetero.model.normalise import normalise
from tests.model.build import graph, info, model, node, with_branches


def values(graph_: ir.Graph) -> Iterator[ir.Value]:
    yield from graph_.inputs
    yield from graph_.initializers.values()
    for n in graph_:
        yield from n.outputs
        for a in n.attributes.values():
            if a.type == ir.AttributeType.GRAPH:
                yield from values(a.as_graph())


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    result: list[np.ndarray] = session.run(None, feeds)
    return result


def same(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Model:
    """Load, and check that the normal form computes what the model does."""
    loaded = load_model(proto)
    for want, got in zip(run(proto, feeds), run(ir.to_proto(loaded.ir), feeds), strict=True):
        np.testing.assert_array_equal(got, want)
    return loaded


X = np.array([-1.0, 2.0, 3.0], np.float32)


@pytest.mark.parametrize(
    ("attribute", "want"),
    [
        ({"value": numpy_helper.from_array(np.array([[1, 2]], np.int8), "t")}, np.array([[1, 2]], np.int8)),
        ({"value_float": 0.1}, np.array(0.1, np.float32)),
        ({"value_floats": [0.1, 2.0]}, np.array([0.1, 2.0], np.float32)),
        ({"value_int": 2**40}, np.array(2**40)),
        ({"value_ints": [1, -2]}, np.array([1, -2])),
        ({"value_string": "é\0"}, np.array("é\0", object)),
        ({"value_strings": ["a", "ü"]}, np.array(["a", "ü"], object)),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_every_kind_of_constant_is_lifted(attribute: dict[str, Any], want: np.ndarray) -> None:
    loaded = load_model(
        model(
            [node("Constant", [], ["k"], **attribute), node("Shape", ["k"], ["y"])],
            [],
            [info("y", None, TensorProto.INT64)],
        )
    )
    assert [n.op_type for n in loaded.ir.graph] == ["Shape"]
    got = loaded.weights["k"]
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_a_constant_that_is_a_graph_output_keeps_its_name() -> None:
    loaded = load_model(model([node("Constant", [], ["y"], value_float=2.0)], []))
    assert len(loaded.ir.graph) == 0
    assert loaded.outputs[0][0] == "y"
    assert loaded.weights["y"] == 2.0


@pytest.mark.parametrize("attributes", [{}, {"value_int": 1, "value_float": 1.0}, {"value_other": 1}])
def test_a_constant_without_exactly_one_value_is_refused(attributes: dict[str, Any]) -> None:
    proto = model([helper.make_node("Constant", [], ["y"], **attributes)], [])
    with pytest.raises(ModelError, match="Constant"):
        load_model(proto)


def test_constants_and_initializers_of_bodies_move_to_the_main_graph() -> None:
    then = graph(
        [node("Constant", [], ["k"], value_floats=[5.0]), node("Add", ["x", "k"], ["a"])], outputs=[info("a")]
    )
    other = graph([node("Mul", ["x", "w"], ["b"])], outputs=[info("b")], w=np.array([2.0], np.float32))
    for c in (True, False):
        loaded = same(with_branches(then, other), {"c": np.array(c), "x": X})
    assert set(loaded.weights) == {"k", "w"}
    for attribute in loaded.ir.graph[0].attributes.values():
        assert len(attribute.as_graph().initializers) == 0
        assert [n.op_type for n in attribute.as_graph()] in (["Add"], ["Mul"])


def test_a_body_that_returns_a_constant_returns_it_through_an_identity() -> None:
    then = graph([node("Constant", [], ["k"], value_floats=[5.0])], outputs=[info("k")])
    other = graph([], outputs=[info("w")], w=np.array([2.0], np.float32))
    for c in (True, False):
        loaded = same(with_branches(then, other), {"c": np.array(c), "x": X})
    for attribute in loaded.ir.graph[0].attributes.values():
        assert [n.op_type for n in attribute.as_graph()] == ["Identity"]
    assert len(loaded.weights) == 2


def test_names_are_unique_through_all_bodies_and_signature_names_stay() -> None:
    def branch(op: str) -> onnx.GraphProto:  # both bodies use the same names, one shadows the graph's
        return graph(
            [node(op, ["x"], ["a"], name="n"), node("Neg", ["a"], ["z"], name="n")], outputs=[info("z")]
        )

    proto = model(
        [
            node("Abs", ["x"], ["t"], name="n"),
            node("If", ["c"], ["z2"], then_branch=branch("Relu"), else_branch=branch("Exp")),
            node("Add", ["z2", "t"], ["y"]),
        ],
        [info("c", (), TensorProto.BOOL), info("x")],
    )
    loaded = load_model(proto)
    for c in (True, False):
        feeds = {"c": np.array(c), "x": X}
        want: Any = next(
            iter(ReferenceEvaluator(proto).run(None, feeds))
        )  # onnxruntime refuses two nodes of one name
        np.testing.assert_allclose(run(ir.to_proto(loaded.ir), feeds)[0], want, rtol=1e-6)
    names = [v.name for v in values(loaded.ir.graph)]
    nodes = [n.name for n in loaded.ir.graph.all_nodes()]
    assert all(names)
    assert all(nodes)
    assert len(set(names)) == len(names) == 10 - 1
    assert len(set(nodes)) == len(nodes) == 7
    assert [n for n, _ in loaded.inputs] == ["c", "x"]


def test_a_body_value_gives_way_to_a_graph_value_of_its_name() -> None:
    then = graph([node("Relu", ["x"], ["late"])], outputs=[info("late")])
    other = graph([node("Exp", ["x"], ["e"])], outputs=[info("e")])
    proto = model(
        [
            node("If", ["c"], ["t"], then_branch=then, else_branch=other),
            node("Neg", ["t"], ["late"]),
            node("Abs", ["late"], ["y"]),
        ],
        [info("c", (), TensorProto.BOOL), info("x")],
    )
    loaded = load_model(proto)
    assert [n.outputs[0].name for n in loaded.ir.graph] == ["t", "late", "y"]
    body = loaded.ir.graph[0].attributes["then_branch"].as_graph()
    assert body.outputs[0].name not in ("late", "t", "y")


def test_nodes_are_sorted_bodies_included() -> None:
    then = graph([node("Neg", ["h"], ["a"]), node("Add", ["x", "later"], ["h"])], outputs=[info("a")])
    other = graph([node("Exp", ["x"], ["e"])], outputs=[info("e")])
    proto = model(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other), node("Abs", ["x"], ["later"])],
        [info("c", (), TensorProto.BOOL), info("x")],
    )
    loaded = load_model(proto)
    assert [n.op_type for n in loaded.ir.graph] == ["Abs", "If"]
    assert [n.op_type for n in loaded.ir.graph[1].attributes["then_branch"].as_graph()] == ["Add", "Neg"]


def test_a_body_that_needs_its_own_node_is_a_cycle() -> None:
    then = graph([node("Neg", ["y"], ["a"])], outputs=[info("a")])
    other = graph([node("Exp", ["x"], ["e"])], outputs=[info("e")])
    with pytest.raises(ModelError, match="cycle"):
        load_model(with_branches(then, other))


def test_a_long_cycle_is_found_in_linear_time() -> None:
    nodes = [node("Relu", [f"v{k}"], [f"v{(k + 1) % 5_000}"]) for k in range(5_000)]
    with pytest.raises(ModelError, match="cycle"):
        load_model(model([*nodes, node("Abs", ["x"], ["y"])]))


def test_unused_nodes_go_with_what_only_they_captured() -> None:
    then = graph([node("Neg", ["h"], ["a"])], outputs=[info("a")])
    other = graph([node("Exp", ["h"], ["e"])], outputs=[info("e")])
    proto = model(
        [
            node("Abs", ["x"], ["h"]),
            node("If", ["c"], ["dead"], then_branch=then, else_branch=other),
            node("Identity", ["x"], ["same"]),
            node("Relu", ["same"], ["y"]),
        ],
        [info("c", (), TensorProto.BOOL), info("x")],
        unused=np.ones(3, np.float32),
    )
    loaded = same(proto, {"c": np.array(True), "x": X})
    assert [n.op_type for n in loaded.ir.graph] == ["Identity", "Relu"]
    assert len(loaded.weights) == 0


def test_an_omitted_output_keeps_the_empty_name() -> None:
    proto = model(
        [node("LayerNormalization", ["x", "w"], ["y", "", "inv"]), node("Relu", ["inv"], ["z"])],
        [info("x", (2, 3))],
        [info("y", None), info("z", None)],
        w=np.ones(3, np.float32),
    )
    first = load_model(proto).ir.graph[0]
    assert [v.name for v in first.outputs] == ["y", "", "inv"]


def test_the_long_spelling_of_the_domain_becomes_the_short_one() -> None:
    proto = model([node("Relu", ["x"], ["y"], domain="ai.onnx")])
    proto.opset_import[0].domain = "ai.onnx"
    loaded = load_model(proto)
    assert loaded.opsets == {"": 21}
    assert loaded.ir.graph[0].domain == ""


def test_a_second_round_changes_nothing() -> None:
    then = graph([node("Constant", [], ["k"], value_floats=[5.0])], outputs=[info("k")])
    other = graph([node("Dropout", ["x"], ["b", "mask"])], outputs=[info("b")])
    loaded = load_model(with_branches(then, other))
    before = ir.to_proto(loaded.ir).SerializeToString(deterministic=True)
    normalise(loaded.ir)
    assert ir.to_proto(loaded.ir).SerializeToString(deterministic=True) == before
