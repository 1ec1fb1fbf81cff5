"""Functions of a model mean what they say, whatever their names, attributes, opsets and bodies: run end to end."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import hetero
from hetero.errors import ModelError
from tests.model.test_functions import call, calling, function, graph, info, node

X = np.array([[-1.0, 2.0, 3.0], [0.5, 0.25, -4.0]], np.float32)
HEAD = '<ir_version: 10, opset_import: ["": 21, "f": 1]>\n'
MAIN = "g (float[2, 3] x) => (float[2, 3] y) "
F = '<domain: "f", opset_import: ["": 21, "f": 1]>\n'
ROWS = X.sum(1, keepdims=True)


def importing(opset: int, *more: str) -> str:
    imports = "".join(f", {m}" for m in more)
    return f'<domain: "f", opset_import: ["": {opset}{imports}]>\n'


def result(model: str | onnx.ModelProto, providers: Any = ("sim:0", "cpu"), **feeds: Any) -> Any:
    proto = onnx.parser.parse_model(model) if isinstance(model, str) else model
    with hetero.HeterogeneousExecutor(proto, providers, children="inline") as ex:
        first = ex.run({"x": X, **feeds})["y"]
        assert ex.run({"x": X, **feeds})["y"].tobytes() == first.tobytes()
    return first


def softmax(x: Any, axes: Any) -> Any:
    e = np.exp(x - x.max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


CASES: dict[str, tuple[str, Any]] = {
    "an attribute handed down two levels": (
        HEAD + MAIN + "{ y = f.Outer <k = 0.5> (x) }\n"
        + F + "Inner <alpha> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }\n"
        + F + "Outer <k> (a) => (b) { b = f.Inner <alpha: float = @k> (a) }",
        np.where(X < 0, X / 2, X),
    ),
    "an attribute left out on the way, with a default at the end": (
        HEAD + MAIN + "{ y = f.Outer (x) }\n"
        + F + "Inner <alpha: float = 0.25> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }\n"
        + F + "Outer <k> (a) => (b) { b = f.Inner <alpha: float = @k> (a) }",
        np.where(X < 0, X / 4, X),
    ),
    "the name of a standard operator": (
        '<ir_version: 10, opset_import: ["": 21]>\n' + MAIN + "{ y = Relu(x) }\n"
        '<domain: "", opset_import: ["": 21]>\nRelu (a) => (b) { b = Neg(a) }',
        -X,
    ),
    "the same under the domain's other name, in a body": (
        '<ir_version: 10, opset_import: ["": 21]>\n' + MAIN + "{ c = Constant<value = bool {1}>()"
        " y = If(c) <then_branch = t () => (p) { p = Abs(x) }, else_branch = e () => (q) { q = Identity(x) }> }\n"
        '<domain: "ai.onnx", opset_import: ["": 21]>\nAbs (a) => (b) { b = Neg(a) }',
        -X,
    ),
    "an older opset: axes as an attribute": (
        HEAD + MAIN + "{ r = f.R(x) y = Add(x, r) }\n"
        + importing(11) + "R (a) => (b) { b = ReduceSum <axes = [1]> (a) }",
        X + ROWS,
    ),
    "an older opset: another meaning of the same text": (
        HEAD + "g (float[2, 3, 1] z, float[2, 3] x) => (float[2, 3, 1] y) { u = Unsqueeze(x, k) y = f.R(u)"
        " k = Constant<value = int64[1] {2}>() }\n".replace("float[2, 3, 1] z, ", "")
        + importing(12) + "R (a) => (b) { b = Softmax(a) }",
        softmax(X[..., None], (1, 2)),
    ),
    "an older opset: bounds as attributes": (
        HEAD + MAIN + "{ y = f.R(x) }\n" + importing(9)
        + "R (a) => (b) { c = Clip <min = 0.0, max = 1.0> (a) d = Unsqueeze <axes = [0]>(c)"
        " b = Squeeze <axes = [0]>(d) }",
        X.clip(0, 1),
    ),
    "a newer opset than the model's": (
        '<ir_version: 10, opset_import: ["": 11, "f": 1]>\n' + MAIN + "{ y = f.R(x) }\n" + importing(18)
        + "R (a) => (b) { k = Constant <value = int64[1] {1}>() s = ReduceSum(a, k) b = Add(a, s) }",
        X + ROWS,
    ),
    "two functions of two opsets, and a shape that follows from both": (
        HEAD + "g (float[n, 3] x) => (float[m] y) { p = f.A(x) q = f.B(p) s = Shape(q) y = Reshape(q, s) }\n"
        + importing(11) + "A (a) => (b) { b = ReduceSum<axes = [1], keepdims = 0>(a) }\n"
        + importing(13) + "B (a) => (b) { k = Constant<value = int64[1] {0}>() c = Unsqueeze(a, k) b = Squeeze(c, k) }",
        X.sum(1),
    ),
    "an operator of an older opset that has a body of its own": (
        HEAD + MAIN + "{ y = f.R(x) }\n"
        + importing(12) + "R (a) => (b) { c = Celu(a) d = ReduceSumSquare<axes = [1]>(c) b = Add(c, d) }",
        np.where(X < 0, np.expm1(X), X) + (np.where(X < 0, np.expm1(X), X) ** 2).sum(1, keepdims=True),
    ),
    "older opsets of two domains": (
        '<ir_version: 10, opset_import: ["": 21, "f": 1, "ai.onnx.ml": 3]>\n' + MAIN + "{ y = f.R(x) }\n"
        + importing(9, '"ai.onnx.ml": 1')
        + "R (a) => (b) { c = ai.onnx.ml.Scaler<offset = [1.0], scale = [2.0]>(a)"
        ' s = Constant<value = float[2] {1.0, 1.0}>() b = Upsample<mode = "nearest">(c, s) }',
        2 * (X - 1),
    ),
    "an older opset inside a branch": (
        HEAD + MAIN + "{ y = f.R(x) }\n" + importing(10)
        + "R (a) => (b) { c = Constant<value = bool {1}>()"
        " b = If(c) <then_branch = t () => (p) { p = Clip<min = 0.0>(a) }, else_branch = e () => (q) { q = Neg(a) }> }",
        X.clip(0),
    ),
    "an operator of another vendor": (
        HEAD + MAIN + "{ y = f.R(x) }\n" + importing(21, '"com.microsoft": 1')
        + "R (a) => (b) { b = com.microsoft.QuickGelu <alpha = 1.0> (a) }",
        X / (1 + np.exp(-X)),
    ),
    "a call in a loop": (
        HEAD + MAIN + "{ n = Constant<value = int64 {3}>() t = Constant<value = bool {1}>()"
        " y = Loop(n, t, x) <body = b (int64 i, bool c, float[2, 3] s) => (bool c2, float[2, 3] s2)"
        " { c2 = Identity(c) s2 = f.R(s) }> }\n" + F + "R (a) => (b) { b = Add(a, a) }",
        8 * X,
    ),
    "a call in a scan": (
        HEAD + MAIN + "{ i = Constant<value = float[3] {0, 0, 0}>() z, y = Scan<num_scan_inputs = 1,"
        " body = b (float[3] s, float[3] v) => (float[3] s2, float[3] o) { s2 = f.R(s, v) o = Identity(s2) }>(i, x) }\n"
        + F + "R (a, c) => (b) { b = Add(a, c) }",
        X.cumsum(0),
    ),
    "outputs left out": (
        HEAD + MAIN + "{ , y = f.R(x) }\n" + F + "R (a) => (b, c) { b = Add(a, a) c = Neg(a) }",
        -X,
    ),
    "names that the model uses too": (
        HEAD + MAIN + "{ b = Neg(x) x1 = f.R(b) y = f.R(x1) }\n"
        + F + "R (x) => (y) { b = Neg(x) x1 = Add(b, x) y = Sub(x1, b) }",
        -X,
    ),
    "a branch that captures the function's input and its attribute, and calls another": (
        HEAD + MAIN + "{ c = Constant<value = bool {0}>() y = f.R <k = 2.0> (x, c) }\n" + F
        + "R <k> (a, c) => (b) { b = If(c) <then_branch = t () => (p) { p = f.N(a) }, else_branch = e () => (q)"
        " { kk = Constant<value_float: float = @k>() m = Mul(a, kk) q = f.N(m) }> }\n"
        + F + "N (a) => (b) { b = Neg(a) }",
        -2 * X,
    ),
    "functions that nobody calls, of domains that nobody knows": (
        HEAD + MAIN + '{ y = Neg(x) }\n<domain: "zz", opset_import: ["nope": 3]>\nU (a) => (b) { b = nope.X(a) }',
        -X,
    ),
    "a domain that only the call names": (
        '<ir_version: 10, opset_import: ["": 21]>\n' + MAIN + "{ y = f.R(x) }\n" + importing(21)
        + "R (a) => (b) { b = Neg(a) }",
        -X,
    ),
    "the exporter's library of functions": (
        '<ir_version: 10, opset_import: ["": 18, "pkg.onnxscript.torch_lib": 1,'
        ' "pkg.onnxscript.torch_lib.common": 1]>\n'
        "g (float[n, 3] x) => (float[k] y) { y = pkg.onnxscript.torch_lib.aten_view(x) }\n"
        '<domain: "pkg.onnxscript.torch_lib", opset_import: ["": 18, "pkg.onnxscript.torch_lib.common": 1]>\n'
        "aten_view (self) => (r) { m1 = Constant<value = int64[1] {-1}>()"
        " rank = pkg.onnxscript.torch_lib.common.Rank(self) zero = Constant<value_int = 0>() s = Equal(rank, zero)"
        " flat = Reshape(self, m1) r = If(s) <then_branch = t () => (p) { p = Identity(self) },"
        " else_branch = e () => (q) { q = Identity(flat) }> }\n"
        '<domain: "pkg.onnxscript.torch_lib.common", opset_import: ["": 18]>\n'
        "Rank (i) => (r) { s = Shape(i) r = Size(s) }",
        X.reshape(-1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_function_means_what_it_says(case: str) -> None:
    model, expected = CASES[case]
    np.testing.assert_allclose(result(model), expected, rtol=1e-5, atol=1e-6)


def test_nodes_of_an_older_opset_are_placed_and_split_like_others() -> None:
    model = (
        HEAD + MAIN + "{ y = f.R(x) }\n" + importing(11)
        + "R (a) => (b) { c = ReduceSum<axes = [1]>(a) d = Softmax<axis = 0>(a) b = Add(c, d) }"
    )  # fmt: skip
    split = result(model, [("sim:0", {"except_ops": ["Softmax"]}), "cpu"])
    np.testing.assert_allclose(split, ROWS + softmax(X, (0, 1)), rtol=1e-5)
    assert split.tobytes() == result(model, ["cpu"]).tobytes()


def test_an_overload_is_never_taken_for_the_operator_of_its_name() -> None:
    proto = calling([call("T", ["x"], ["h"]), call("T", ["h"], ["y"])])
    for which, op in (("first", "Neg"), ("second", "Abs")):
        proto.functions.append(function("T", ["a"], ["b"], [node(op, ["a"], ["b"])], overload=which))
    gelu = onnx.FunctionProto()
    gelu.CopyFrom(proto.functions[0])
    gelu.domain, gelu.name = "com.microsoft", "QuickGelu"  # of which there is a kernel
    proto.functions.append(gelu)
    proto.graph.node[0].overload, proto.graph.node[1].overload = "first", "second"
    np.testing.assert_array_equal(result(proto), abs(X))
    proto.graph.node[0].domain, proto.graph.node[0].op_type = gelu.domain, gelu.name
    proto.graph.node[1].overload = "first"
    proto.opset_import.add(domain="com.microsoft", version=1)
    np.testing.assert_array_equal(result(proto), X)


def test_a_graph_that_the_call_gives_may_use_the_callers_values() -> None:
    then = graph([node("Mul", ["x", "two"], ["p"])], outputs=[info("p", None)])
    other = graph([node("Neg", ["x"], ["q"])], outputs=[info("q", None)])
    choose = node("If", ["c"], ["b"])
    for name in ("then_branch", "else_branch"):
        choose.attribute.add(name=name, ref_attr_name=name, type=onnx.AttributeProto.GRAPH)
    pick = function("Pick", ["c"], ["b"], [choose], attributes=["then_branch", "else_branch"])
    proto = calling(
        [
            call("Pick", ["yes"], ["h"], then_branch=then, else_branch=other),
            call("Pick", ["no"], ["k"], then_branch=then, else_branch=other),
            node("Add", ["h", "k"], ["y"]),
        ],
        pick,
        yes=np.array(True),
        no=np.array(False),
        two=np.array(2.0, np.float32),
    )
    np.testing.assert_array_equal(result(proto), X)


@pytest.mark.parametrize(
    "functions",
    [
        F + "R (a) => (b) { b = f.R(a) }",
        F + "R (a) => (b) { b = f.S(a) }\n" + F + "S (a) => (b) { b = f.R(a) }",
        F + "R (a) => (b) { c = Constant<value = bool {1}>() b = If(c) <then_branch = t () => (p) { p = f.R(a) },"
        " else_branch = e () => (q) { q = Neg(a) }> }",
        F + "R (a) => (b) { b = Abs(a) }\n"
        '<domain: "ai.onnx", opset_import: ["": 21]>\nAbs (a) => (b) { b = Abs(a) }',
    ],
)  # fmt: skip
def test_recursion_is_refused(functions: str) -> None:
    with pytest.raises(ModelError, match="calls itself"):
        result(HEAD + MAIN + "{ y = f.R(x) }\n" + functions)
