"""What nodes are taken to cost: products by their operations, all else by bytes; bodies count as they run."""

from __future__ import annotations

import onnx.parser
import pytest

from hetero.model.model import load_model
from hetero.planner.costs import ASSUMED_TRIPS, costs_of, measured
from hetero.planner.planner import graph_of
from hetero.trace import Span

HEAD = '<ir_version: 10, opset_import: ["": 20]>\n'
CALL_PS, PS_PER_BYTE = 1_000_000, 10


def times_of(text: str) -> list[int]:
    return list(costs_of(graph_of(load_model(onnx.parser.parse_model(HEAD + text)))).times_ps)


@pytest.mark.parametrize(
    ("text", "operations"),
    [
        (
            "g (float[512, 256] a, float[256, 128] b) => (float[512, 128] y) { y = MatMul(a, b) }",
            512 * 256 * 128,
        ),
        (
            "g (float[256, 512] a, float[256, 128] b) => (float[512, 128] y) { y = Gemm<transA=1>(a, b) }",
            512 * 256 * 128,
        ),
        (
            "g (float[1, 64, 58, 58] x, float[32, 64, 3, 3] w) => (float[1, 32, 56, 56] y) { y = Conv(x, w) }",
            56 * 56 * 32 * 64 * 9,
        ),
        (
            "g (float[1, 64, 56, 56] x, float[64, 32, 3, 3] w) => (float[1, 32, 58, 58] y)"
            " { y = ConvTranspose(x, w) }",
            56 * 56 * 64 * 32 * 9,
        ),
    ],
)
def test_products_cost_their_operations(text: str, operations: int) -> None:
    assert times_of(text) == [CALL_PS + 2 * operations]


def test_everything_else_costs_the_bytes_it_touches() -> None:
    (time,) = times_of("g (float[1000, 1000] x) => (float[1000, 1000] y) { y = Exp(x) }")
    assert time == CALL_PS + 2 * 4_000_000 * PS_PER_BYTE


def test_extents_that_are_not_known_yet_are_taken_to_be_the_same() -> None:
    one, two = times_of("g (float[n, 4096] x) => (float[n, 4096] y) { t = Exp(x) y = Neg(t) }")
    assert one == two > CALL_PS


def test_extents_that_are_known_count_and_so_do_expressions_over_them() -> None:
    model = onnx.parser.parse_model(
        HEAD + "g (float[n, 4096] x, float[m, 4096] z) => (float[k, 4096] y, float[m, 4096] u)"
        " { y = Concat<axis=0>(x, x) u = Neg(z) }"
    )
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "2*n"
    graph = graph_of(load_model(model))
    few, row = costs_of(graph, extents={"n": 1}), 4 * 4096
    assert few.value_bytes == {"x": row, "z": 64 * row, "y": 2 * row, "u": 64 * row}
    assert few.times_ps == [CALL_PS + 4 * row * PS_PER_BYTE, costs_of(graph).times_ps[1]]


def test_one_branch_of_an_if_counts_and_every_trip_of_a_loop() -> None:
    exp, chosen, looped = times_of(
        "g (bool p, int64 n, float[1000] x) => (float[1000] y) { e = Exp(x)"
        " i = If(p) <then_branch = a () => (float[1000] u) { u = Exp(e) },"
        " else_branch = b () => (float[1000] v) { w = Exp(e) v = Exp(w) }>"
        " y = Loop(n, p, i) <body = c (int64 k, bool q, float[1000] s) => (bool r, float[1000] t)"
        " { r = Identity(q) t = Exp(s) }> }"
    )
    assert chosen == CALL_PS + 2 * exp
    assert looped == pytest.approx(CALL_PS + ASSUMED_TRIPS * (exp + CALL_PS), rel=0.01)


def test_spans_give_the_median_over_steps_and_share_out_fused_calls() -> None:
    def op(name: str, step: int, took: float, **args: object) -> Span:
        return Span(name, "cpu", step, 10.0, 10.0 + took, "op", {"node": name, **args})

    spans = [
        *(op("a", step, took) for step, took in ((1, 0.5), (2, 1.0), (3, 9.0))),
        op("b", 1, 1.0, nodes=["b", "c"]),
        op("loop", 1, 3.0, tracing_s=1.0),
        op("a", 2, 0.25),  # a second call of the same node in that step
        Span("partition 0", "cpu", 1, 0.0, 99.0),
    ]
    assert measured(spans) == pytest.approx({"a": 1.25, "b": 0.5, "c": 0.5, "loop": 2.0})
