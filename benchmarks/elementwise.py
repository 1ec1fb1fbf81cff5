"""Elementwise runs in one call, against onnxruntime and against one call for each operator."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

from benchmarks.inline import session, threads_of
from benchmarks.measure import Pair, paired
from hetero import HeterogeneousExecutor, RuntimeOptions

HEAD = '<ir_version: 10, opset_import: ["" : 20]> g '
CASES = {
    "GELU 128x1536": "(float[128, 1536] x) => (float[128, 1536] y) { y = Gelu(x) }",
    "bias + GELU 128x1536": (
        "(float[128, 1536] x, float[1536] b) => (float[128, 1536] y) { t = Add(x, b) y = Gelu(t) }"
    ),
    "x sigmoid(x) 1x3072": "(float[1, 3072] x) => (float[1, 3072] y) { s = Sigmoid(x) y = Mul(x, s) }",
    "bias + residual 128x384": (
        "(float[128, 384] x, float[384] b, float[128, 384] r) => (float[128, 384] y)"
        " { t = Add(x, b) y = Add(t, r) }"
    ),
}
"""What a model's layers do between their products, by name."""


def case(name: str, *, against_unfused: bool = False) -> Pair:
    """The case on one thread (of numba too), against onnxruntime's one, optimised; or against ourselves unfused."""
    model = onnx.parser.parse_model(HEAD + CASES[name])
    rng = np.random.default_rng(0)
    feeds = {
        p.name: rng.standard_normal([d.dim_value for d in p.type.tensor_type.shape.dim]).astype(np.float32)
        for p in model.graph.input
    }
    alone = RuntimeOptions(fuse_elementwise=False)
    with (
        threads_of(1),
        HeterogeneousExecutor(model, ["cpu"], children="inline") as ours,
        HeterogeneousExecutor(model, ["cpu"], children="inline", options=alone) as unfused,
    ):
        assert np.array_equal(ours.run(feeds)["y"], unfused.run(feeds)["y"])
        if against_unfused:
            return paired(lambda: ours.run(feeds), lambda: unfused.run(feeds), runs=31, inner=20)
        theirs = session(model, 1, optimise=True)
        np.testing.assert_allclose(ours.run(feeds)["y"], theirs.run(None, feeds)[0], rtol=1e-3, atol=1e-5)
        return paired(lambda: ours.run(feeds), lambda: theirs.run(None, feeds), runs=31, inner=20)
