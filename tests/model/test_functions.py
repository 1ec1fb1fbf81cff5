"""Inlining keeps the meaning: the inlined model computes what the calls did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from hetero.errors import ModelError
from hetero.model import Model, inline, load_model
from tests.model.build import graph, info, model, node

X = np.array([[-1.0, 2.0, 3.0], [0.5, 0.25, -4.0]], np.float32)


def function(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    nodes: Sequence[onnx.NodeProto],
    *,
    opset: int = 21,
    overload: str = "",
    **more: Any,
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("f", 1)]
    proto = helper.make_function("f", name, list(inputs), list(outputs), list(nodes), imports, **more)
    proto.overload = overload
    return proto


def calling(nodes: Sequence[onnx.NodeProto], *functions: onnx.FunctionProto, **more: Any) -> onnx.ModelProto:
    more = {"inputs": [info("x", (2, 3))], "outputs": [info("y", None)], **more}
    return model(nodes, domains={"f": 1}, functions=functions, **more)


def call(name: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return node(name, inputs, outputs, domain="f", **attributes)


def is_plain(n: ir.Node) -> bool:
    return n.domain != "f"


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    result: list[np.ndarray] = session.run(None, feeds)
    return result


def check(
    proto: onnx.ModelProto, feeds: dict[str, np.ndarray], keep: Callable[[ir.Node], bool] = is_plain
) -> Model:
    """Inline until nothing is left to inline and compare with the original, run by onnx's own evaluator."""
    loaded = load_model(proto)
    levels = 0
    while inline(loaded, keep):
        levels += 1
        assert levels < 10
    assert levels > 0
    wanted = run(proto, feeds)
    result = ir.to_proto(loaded.ir)
    del result.functions[:]
    for want, got in zip(wanted, run(result, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    names = [v.name for n in loaded.ir.graph.all_nodes() for v in n.outputs if v.name]
    assert len(set(names)) == len(names)
    return loaded


def test_two_calls_of_one_function_get_names_of_their_own() -> None:
    twice = function(
        "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["t"], name="n"), node("Neg", ["t"], ["b"])]
    )
    loaded = check(calling([call("Twice", ["x"], ["h"]), call("Twice", ["h"], ["y"])], twice), {"x": X})
    assert [n.op_type for n in loaded.ir.graph] == ["Add", "Neg", "Add", "Neg"]
    assert loaded.outputs == (("y", loaded.inputs[0][1]),)


def test_one_level_at_a_time() -> None:
    inner = function("Inner", ["a"], ["b"], [node("Neg", ["a"], ["b"])])
    outer = function("Outer", ["a"], ["b"], [call("Inner", ["a"], ["t"]), call("Inner", ["t"], ["b"])])
    proto = calling([call("Outer", ["x"], ["y"])], inner, outer)
    loaded = load_model(proto)
    assert inline(loaded, is_plain)
    assert [n.op_type for n in loaded.ir.graph] == ["Inner", "Inner"]
    assert inline(loaded, is_plain)
    assert [n.op_type for n in loaded.ir.graph] == ["Neg", "Neg"]
    assert not inline(loaded, is_plain)
    check(proto, {"x": X})


def test_what_is_to_be_kept_stays() -> None:
    twice = function("Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])])
    loaded = load_model(calling([call("Twice", ["x"], ["y"])], twice))
    assert not inline(loaded, lambda n: True)
    assert [n.op_type for n in loaded.ir.graph] == ["Twice"]


def referring(
    op: str, inputs: Sequence[str], outputs: Sequence[str], **refs: tuple[str, int]
) -> onnx.NodeProto:
    made = node(op, inputs, outputs)
    for name, (target, kind) in refs.items():
        made.attribute.add(name=name, ref_attr_name=target, type=kind)
    return made


FLOAT_ATTR, INT_ATTR = onnx.AttributeProto.FLOAT, onnx.AttributeProto.INT


def test_attributes_come_from_the_call_the_default_or_not_at_all() -> None:
    leaky = function(
        "Leaky",
        ["a"],
        ["b"],
        [referring("LeakyRelu", ["a"], ["b"], alpha=("slope", FLOAT_ATTR))],
        attributes=["slope"],
    )
    soft = function(
        "Soft",
        ["a"],
        ["b"],
        [referring("Elu", ["a"], ["b"], alpha=("k", FLOAT_ATTR))],
        attribute_protos=[helper.make_attribute("k", 3.0)],
    )
    proto = calling(
        [
            call("Leaky", ["x"], ["p"], slope=0.5),
            call("Leaky", ["p"], ["q"]),
            call("Soft", ["q"], ["r"]),
            call("Soft", ["r"], ["y"], k=0.5),
        ],
        leaky,
        soft,
    )
    loaded = load_model(proto)
    assert inline(loaded, is_plain)
    given = [dict(n.attributes) for n in loaded.ir.graph]
    assert [a["alpha"].as_float() if a else None for a in given] == [0.5, None, 3.0, 0.5]


def test_attributes_reach_constants_and_bodies() -> None:
    then = graph([referring("LeakyRelu", ["a"], ["p"], alpha=("k", FLOAT_ATTR))], outputs=[info("p", None)])
    other = graph(
        [referring("Constant", [], ["q"], value_float=("k", FLOAT_ATTR))], outputs=[info("q", None)]
    )
    choose = function(
        "Choose",
        ["c", "a"],
        ["b"],
        [node("If", ["c"], ["b"], then_branch=then, else_branch=other)],
        attributes=["k"],
    )
    proto = calling(
        [call("Choose", ["c", "x"], ["h"], k=0.25), call("Choose", ["c", "h"], ["y"], k=0.125)],
        choose,
        inputs=[info("c", (), TensorProto.BOOL), info("x", (2, 3))],
    )
    for c in (True, False):
        loaded = check(proto, {"c": np.array(c), "x": X})
    assert sorted(float(loaded.weights[name]) for name in loaded.weights) == [0.125, 0.25]


def test_calls_inside_bodies_are_inlined_with_what_they_capture() -> None:
    twice = function("Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])])
    then = graph([call("Twice", ["x"], ["p"])], outputs=[info("p", None)])
    other = graph([call("Twice", ["h"], ["q"])], outputs=[info("q", None)])
    proto = calling(
        [node("Neg", ["x"], ["h"]), node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        twice,
        inputs=[info("c", (), TensorProto.BOOL), info("x", (2, 3))],
    )
    for c in (True, False):
        check(proto, {"c": np.array(c), "x": X})


def test_a_function_with_a_loop_is_inlined() -> None:
    body = graph(
        [node("Add", ["s", "a"], ["s2"]), node("Identity", ["go"], ["go2"])],
        [info("i", (), TensorProto.INT64), info("go", (), TensorProto.BOOL), info("s", None)],
        [info("go2", (), TensorProto.BOOL), info("s2", None)],
    )
    times = function(
        "Times",
        ["a"],
        ["b"],
        [
            node("Constant", [], ["n"], value_int=3),
            node("Constant", [], ["t"], value=helper.make_tensor("t", 9, [], [1])),
            node("Loop", ["n", "t", "a"], ["b"], body=body),
        ],
    )
    loaded = check(calling([call("Times", ["x"], ["h"]), call("Times", ["h"], ["y"])], times), {"x": X})
    assert str(loaded.outputs[0][1]).startswith("float")


def test_outputs_that_are_inputs_or_one_value_get_identities() -> None:
    odd = function("Odd", ["a"], ["a", "b", "b"], [node("Neg", ["a"], ["b"])])
    proto = calling(
        [call("Odd", ["x"], ["y", "z", "w"])],
        odd,
        outputs=[info("y", None), info("z", None), info("w", None)],
    )
    loaded = load_model(proto)
    assert inline(loaded, is_plain)
    assert [n for n, _ in loaded.outputs] == ["y", "z", "w"]
    (y, z, w) = ReferenceEvaluator(ir.to_proto(loaded.ir)).run(None, {"x": X})
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(z, -X)
    np.testing.assert_array_equal(w, -X)


def test_inputs_left_out_are_left_out_inside() -> None:
    clip = function("Cut", ["a", "lo", "hi"], ["b"], [node("Clip", ["a", "lo", "hi"], ["b"])])
    proto = calling([call("Cut", ["x", "", "m"], ["y"])], clip, m=np.array(1.0, np.float32))
    check(proto, {"x": X})
    one = function("One", ["a"], ["b"], [node("Neg", ["a"], ["b"])])
    with pytest.raises(ModelError, match="3 inputs are given, the function takes 1"):
        inline(load_model(calling([call("One", ["x", "x", "x"], ["y"])], one)), is_plain)
    with pytest.raises(ModelError, match="2 outputs are wanted"):
        inline(
            load_model(
                calling(
                    [call("One", ["x"], ["y", "z"]), node("Neg", ["z"], ["w"])],
                    one,
                    outputs=[info("y"), info("w")],
                )
            ),
            is_plain,
        )


def test_overloads_are_told_apart() -> None:
    first = function("F", ["a"], ["b"], [node("Neg", ["a"], ["b"])], overload="neg")
    second = function("F", ["a"], ["b"], [node("Abs", ["a"], ["b"])], overload="abs")
    calls = [call("F", ["x"], ["h"]), call("F", ["h"], ["y"])]
    calls[0].overload, calls[1].overload = "neg", "abs"
    loaded = load_model(calling(calls, first, second))  # at once: a provider knows no overloads
    assert [n.op_type for n in loaded.ir.graph] == ["Neg", "Abs"]


def test_another_opset_leaves_a_version_where_the_operators_differ() -> None:
    same = function("F", ["a"], ["b"], [node("Abs", ["a"], ["b"])], opset=15)
    check(calling([call("F", ["x"], ["y"])], same), {"x": X})
    nodes = [node("Abs", ["a"], ["t"]), node("ReduceSum", ["t"], ["b"], axes=[0], keepdims=0)]
    loaded = load_model(calling([call("F", ["x"], ["y"])], function("F", ["a"], ["b"], nodes, opset=11)))
    assert inline(loaded, is_plain)
    assert [(n.op_type, n.version) for n in loaded.ir.graph] == [("Abs", 11), ("ReduceSum", 11)]
    assert (
        str(loaded.outputs[0][1]) == "float[3]"
    )  # by the rule of version 11, which has axes as an attribute


def test_a_model_that_grows_without_bound_is_refused() -> None:
    levels = 40
    functions = [function("F0", ["a"], ["b"], [node("Neg", ["a"], ["b"])])]
    for k in range(1, levels):
        doubled = [call(f"F{k - 1}", ["a"], ["t"]), call(f"F{k - 1}", ["t"], ["b"])]
        functions.append(function(f"F{k}", ["a"], ["b"], doubled))
    with pytest.raises(ModelError, match="expand to more than"):
        load_model(calling([call(f"F{levels - 1}", ["x"], ["y"])], *functions))


SCHEMA_CASES: dict[str, tuple[onnx.NodeProto, int]] = {
    "Softmax": (node("Softmax", ["x"], ["y"], axis=1), 21),  # depends on the opset alone
    "Softmax-13": (node("Softmax", ["x"], ["y"]), 13),
    "HardSwish": (node("HardSwish", ["x"], ["y"]), 21),
    "Gelu": (node("Gelu", ["x"], ["y"], approximate="tanh"), 21),
    "Celu": (node("Celu", ["x"], ["y"], alpha=2.0), 21),
    "Clip": (node("Clip", ["x", "", "m"], ["y"]), 21),
    "LayerNormalization": (node("LayerNormalization", ["x", "w"], ["y"]), 21),
    "MeanVarianceNormalization": (node("MeanVarianceNormalization", ["x"], ["y"], axes=[0, 1]), 21),
    "ThresholdedRelu": (node("ThresholdedRelu", ["x"], ["y"]), 21),
    "ReduceSumSquare": (node("ReduceSumSquare", ["x"], ["y"], keepdims=0), 21),
    "CastLike": (node("CastLike", ["x", "m"], ["y"]), 21),
}


@pytest.mark.parametrize("case", SCHEMA_CASES)
def test_operators_with_a_schema_body_are_inlined(case: str) -> None:
    call_, opset = SCHEMA_CASES[case]
    proto = model(
        [call_],
        [info("x", (2, 3))],
        opset=opset,
        m=np.array(1.0, np.float32),
        w=np.array([1, 2, 3], np.float32),
    )
    loaded = check(proto, {"x": X}, keep=lambda n: n.op_type != call_.op_type)
    assert call_.op_type not in [n.op_type for n in loaded.ir.graph]
    assert loaded.outputs[0][1] is not None


def test_a_body_that_needs_an_unknown_type_is_left_alone() -> None:
    proto = model(
        [node("Odd", ["x"], ["h"], domain="my"), node("Clip", ["h", "", "m"], ["y"])],
        domains={"my": 1},
        m=np.array(1.0, np.float32),
    )
    loaded = load_model(proto)
    assert not inline(loaded, lambda n: n.op_type != "Clip")
    assert [n.op_type for n in loaded.ir.graph] == ["Odd", "Clip"]


def test_plain_operators_stay_whatever_is_asked() -> None:
    loaded = load_model(model([node("Abs", ["x"], ["y"])]))
    assert not inline(loaded, lambda n: False)


def test_inlining_leaves_the_digest() -> None:
    proto = model([node("Celu", ["x"], ["y"])], [info("x", (2, 3))])
    loaded = load_model(proto)
    assert inline(loaded, lambda n: n.op_type != "Celu")
    assert loaded.digest == load_model(proto).digest


def test_what_a_given_graph_captures_is_found_again_in_the_operators_body() -> None:
    modify = graph(
        [
            node("Constant", [], ["two"], value_float=2.0),
            node("Mul", ["s", "two"], ["d"]),
            node("Add", ["d", "bias"], ["o"]),
        ],
        [info("s", (1, 2, 3, 3))],
        [info("o", (1, 2, 3, 3))],
    )
    attention = node("FlexAttention", ["q", "q", "q"], ["y"], domain="ai.onnx.preview", score_mod=modify)
    proto = model(
        [attention],
        [info("q", (1, 2, 3, 4))],
        domains={"ai.onnx.preview": 1},
        opset=26,
        bias=np.array(0.5, np.float32),
    )
    loaded = load_model(proto)
    assert inline(loaded, lambda n: n.op_type != "FlexAttention")
    assert "FlexAttention" not in [n.op_type for n in loaded.ir.graph]
    assert {"two", "bias"} <= set(loaded.weights)
    q = np.linspace(-1, 1, 24, dtype=np.float32).reshape(1, 2, 3, 4)
    scores = 2 * (q @ q.transpose(0, 1, 3, 2) / 2) + 0.5
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(run(ir.to_proto(loaded.ir), {"q": q})[0], weights @ q, rtol=1e-5)
