"""What a Loop's body hands on as it came is captured by it; all else about the loop stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.model import load_model

HEAD = '<ir_version: 9, opset_import: ["": 18]>\n'
X, W = np.array([1.0, -2.0], np.float32), np.array([0.5, 3.0], np.float32)


def loops_of(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph.all_nodes() if node.op_type == "Loop"]


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    results: list[np.ndarray] = session.run(None, feeds)
    return results


def loaded(text: str, trips: int = 3, **more: np.ndarray) -> list[ir.Node]:
    """The loops of the model in normal form, after checking that its outputs are what they were."""
    proto = onnx.parser.parse_model(HEAD + text)
    normal = load_model(proto)
    names = {i.name for i in proto.graph.input}
    feeds = {k: v for k, v in {"M": np.array(trips), "x": X, "w": W, **more}.items() if k in names}
    want = run(proto, feeds)
    result = ir.to_proto(normal.ir)
    onnx.checker.check_model(result, full_check=True)
    assert [o.name for o in result.graph.output] == [o.name for o in proto.graph.output]
    for expected, got in zip(want, run(result, feeds), strict=True):
        np.testing.assert_array_equal(got, expected)
    return loops_of(normal.ir.graph)


BODY = (
    "<body = body (int64 i, bool c, float[2] v, float[2] u) => (bool c, float[2] s, float[2] {})"
    " {{ {} s = Add(v, u) }}>"
)
HANDED_ON = {"as it is": ("u", ""), "by way of Identity": ("t", "r = Identity(u) t = Identity(r)")}


@pytest.mark.parametrize("trips", [0, 1, 3])
@pytest.mark.parametrize("how", HANDED_ON)
def test_a_value_that_is_handed_on_is_captured_and_read_from_outside_behind_the_loop(
    how: str, trips: int
) -> None:
    (loop,) = loaded(
        'g (int64 M, float[2] x, float[2] w) => (float[2] y, float[2] z) { y, last = Loop (M, "", x, w) '
        + BODY.format(*HANDED_ON[how])
        + " z = Mul(last, y) }",
        trips,
    )
    assert [v.name if v else None for v in loop.inputs] == ["M", None, "x"]
    assert [v.name for v in loop.outputs] == ["y"]
    body = loop.attributes["body"].as_graph()
    assert len(body.inputs) == 3
    assert [v.name for node in body for v in node.inputs if v] == [body.inputs[2].name, "w"]


def test_a_loop_keeps_its_name_and_scan_outputs() -> None:
    (loop,) = loaded(
        'g (int64 M, float[2] x, float[2] w) => (float[2] y, float[k,2] all) { [kept] y, last, all = Loop (M, "", x, w)'
        " <body = body (int64 i, bool c, float[2] v, float[2] u) => (bool c, float[2] s, float[2] u, float[2] t)"
        " { s = Add(v, u) t = Mul(s, u) }> }"
    )
    assert loop.name == "kept"
    assert [v.name for v in loop.outputs] == ["y", "all"]


STAY = {
    "it is an output of the model": (
        "float[2] y, float[2] last",
        'y, last = Loop (M, "", x, w) ' + BODY.format("u", ""),
    ),
    "each iteration gives it out too": (
        "float[2] y, float[k,2] all",
        'y, last, all = Loop (M, "", x, w) <body = body (int64 i, bool c, float[2] v, float[2] u)'
        " => (bool c, float[2] s, float[2] u, float[2] t) { t = Identity(u) s = Add(v, u) }>",
    ),
    "two values change places": (
        "float[2] y, float[2] last",
        'y, last = Loop (M, "", x, w) <body = body (int64 i, bool c, float[2] v, float[2] u)'
        " => (bool c, float[2] a, float[2] b) { a = Identity(u) b = Identity(v) }>",
    ),
    "it changes": (
        "float[2] y, float[2] last",
        'y, last = Loop (M, "", x, w) ' + BODY.format("t", "t = Neg(u)"),
    ),
}


@pytest.mark.parametrize("why", [k for k in STAY if k != "each iteration gives it out too"])
def test_a_value_stays_carried_where(why: str) -> None:
    outputs, loop_text = STAY[why]
    (loop,) = loaded(f"g (int64 M, float[2] x, float[2] w) => ({outputs}) {{ {loop_text} }}")
    assert len(loop.inputs) == 4


def test_a_copy_that_each_iteration_gives_out_is_made_from_the_captured_value() -> None:
    outputs, loop_text = STAY["each iteration gives it out too"]
    (loop,) = loaded(f"g (int64 M, float[2] x, float[2] w) => ({outputs}) {{ {loop_text} }}")
    assert len(loop.inputs) == 3


def test_what_the_inner_loop_hands_on_the_outer_one_hands_on_too() -> None:
    outer, inner = loaded(
        'g (int64 M, float[2] x, float[2] w) => (float[2] y) { y, last = Loop (M, "", x, w)'
        " <body = outer (int64 i, bool c, float[2] v, float[2] u) => (bool c, float[2] s, float[2] t)"
        ' { s, t = Loop (M, "", v, u) <body = inner (int64 k, bool d, float[2] p, float[2] q)'
        " => (bool d, float[2] r, float[2] q) { r = Add(p, q) }> }> }",
        trips=2,
    )
    assert len(outer.inputs) == len(inner.inputs) == 3


def test_a_body_returns_no_value_from_around_it() -> None:
    """Of the inner loop, the initial value is captured; what the outer body returns must be a value of its own."""
    outer, inner = loaded(
        'g (int64 M, float[2] x, float[2] w) => (float[2] y, float[k,2] all) { y, all = Loop (M, "", x)'
        " <body = outer (int64 i, bool c, float[2] v) => (bool c, float[2] s, float[2] t)"
        ' { s, t = Loop (M, "", v, w) <body = inner (int64 k, bool d, float[2] p, float[2] q)'
        " => (bool d, float[2] r, float[2] q) { r = Add(p, q) }> }> }",
        trips=2,
    )
    assert (len(outer.inputs), len(inner.inputs)) == (3, 4)


@given(st.data())
def test_any_carried_values_are_handed_on_or_changed(data: st.DataObject) -> None:
    """A number of carried values, each handed on, copied, changed or replaced by another one."""
    n = data.draw(st.integers(1, 5))
    makes = [data.draw(st.sampled_from(("stay", "copy", "change", "other"))) for _ in range(n)]
    lines, returned = [], []
    for k, make in enumerate(makes):
        if make == "stay":
            returned.append(f"v{k}")
            continue
        source = data.draw(st.integers(0, n - 1)) if make == "other" else k
        op = f"Add(v{k}, v{source})" if make == "change" else f"Identity(v{source})"
        lines.append(f"r{k} = {op}")
        returned.append(f"r{k}")
    first, last = ", ".join(f"a{k}" for k in range(n)), ", ".join(f"b{k}" for k in range(n))
    formals, results = (
        ", ".join(f"float[2] v{k}" for k in range(n)),
        ", ".join(f"float[2] {r}" for r in returned),
    )
    starts = " ".join(f"k{k} = Constant<value_float={k}.5>() a{k} = Add(x, k{k})" for k in range(n))
    ends = " ".join(f"y{k} = Neg(b{k})" for k in range(n))
    outputs = ", ".join(f"float[2] y{k}" for k in range(n))
    loops = loaded(
        f'g (int64 M, float[2] x) => ({outputs}) {{ {starts} {last} = Loop (M, "", {first})'
        f" <body = body (int64 i, bool c, {formals}) => (bool c, {results}) {{ {' '.join(lines)} }}> {ends} }}",
        trips=data.draw(st.integers(0, 3)),
    )
    for loop in loops:
        body = loop.attributes["body"].as_graph()
        handed = [k for k in range(len(loop.inputs) - 2) if body.outputs[1 + k] is body.inputs[2 + k]]
        assert not handed
