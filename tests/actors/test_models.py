"""Whole models over actors: the bits of inline children, for everything that a program can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from benchmarks.models import encoder
from hetero.executor import HeterogeneousExecutor

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]

HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'
# Shape arithmetic that crosses, a loop with captures, a result whose shape depends on data, views that leave.
MIXED = HEAD + (
    "g (float[n, 4] x, int64 trips) => (float[a, b] y, float[4, n] t, int64[1, k] hits, float[c] flat) {"
    " t = Transpose<perm=[1, 0]>(x) s = Shape(t) e = Exp(x) minus = Constant<value_ints=[-1]>()"
    " flat = Reshape(e, minus) go = Constant<value = bool {1}>() k = Tanh(x)"
    " looped = Loop (trips, go, e) <body = b (int64 i, bool c, float[n, 4] v) => (bool c2, float[n, 4] w)"
    " { c2 = Identity(c) w = Add(v, k) }>"
    " y = Reshape(looped, s) r = Relu(flat) q = Round(r) hits = NonZero(q) }"
)
DEALS: dict[str, list[Any]] = {
    "one": ["cpu"],
    "two": [("sim:0", {"except_ops": ["Tanh", "NonZero", "Exp"]}), "cpu"],
    "three": [
        ("sim:0", {"ops": ["Transpose", "Shape", "Loop", "Add", "Identity", "Reshape"]}),
        ("sim:1", {}),
        "cpu",
    ],
}


@pytest.mark.parametrize("deal", DEALS)
def test_a_mixed_model_gives_the_bits_of_inline_children(deal: str) -> None:
    proto = onnx.parser.parse_model(MIXED)
    with (
        HeterogeneousExecutor(proto, DEALS[deal]) as actors,
        HeterogeneousExecutor(proto, ["cpu"], children="inline") as inline,
    ):
        for n, trips in ((3, 2), (3, 2), (5, 0), (1, 4)):
            x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
            feeds = {"x": x, "trips": np.array(trips)}
            got, want = actors.run(feeds), inline.run(feeds)
            assert {k: (v.dtype, v.shape, v.tobytes()) for k, v in got.items()} == {
                k: (v.dtype, v.shape, v.tobytes()) for k, v in want.items()
            }


def test_an_encoder_split_at_its_softmaxes_agrees_with_the_whole() -> None:
    proto = encoder(layers=2, hidden=64, heads=4)
    x = {"x": np.random.default_rng(0).standard_normal((2, 16, 64)).astype(np.float32)}
    with (
        HeterogeneousExecutor(proto, [("sim:0", {"except_ops": ["Softmax"]}), "cpu"]) as split,
        HeterogeneousExecutor(proto, ["cpu"], children="inline") as whole,
    ):
        assert len(split.plan.partitions) == 5
        for _ in range(3):
            (got,), (want,) = split.run(x).values(), whole.run(x).values()
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
