"""Models made on the spot: a chain of tiny Adds, and a BERT-like encoder with seeded weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def add_chain(n: int, width: int = 8) -> onnx.ModelProto:
    """x + c + c + … (n Adds) over float32[width]."""
    nodes = [helper.make_node("Add", [f"v{k}", "c"], [f"v{k + 1}"], name=f"add{k}") for k in range(n)]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [width])],
        [helper.make_tensor_value_info(f"v{n}", TensorProto.FLOAT, [width])],
        [numpy_helper.from_array(np.full(width, 1e-3, np.float32), "c")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def encoder(layers: int = 6, hidden: int = 384, heads: int = 12, seed: int = 0) -> onnx.ModelProto:
    """float32[batch, tokens, hidden] through `layers` transformer layers (post-norm, GELU by Erf, mask-free)."""
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        weights.append(numpy_helper.from_array((rng.standard_normal(shape) * 0.05).astype(np.float32), name))
        return name

    def constant(name: str, value: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(value, name))
        return name

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    split = constant("split_shape", np.array([0, 0, heads, hidden // heads], np.int64))
    join = constant("join_shape", np.array([0, 0, hidden], np.int64))
    scale = constant("scale", np.array(1 / np.sqrt(hidden // heads), np.float32))
    root2 = constant("root2", np.array(np.sqrt(2), np.float32))
    one, half = constant("one", np.array(1, np.float32)), constant("half", np.array(0.5, np.float32))
    x = "x"
    for n in range(layers):
        p = f"l{n}_"

        def dense(source: str, name: str, i: int, o: int, p: str = p) -> str:
            product = node("MatMul", [source, weight(p + name + "_w", i, o)], p + name + "_mm")
            return node("Add", [product, weight(p + name + "_b", o)], p + name)

        heads_of = {}
        for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            parts = node("Reshape", [dense(x, name, hidden, hidden), split], p + name + "_split")
            heads_of[name] = node("Transpose", [parts], p + name + "_heads", perm=perm)
        scores = node("MatMul", [heads_of["q"], heads_of["k"]], p + "qk")
        scores = node("Mul", [scores, scale], p + "scaled")
        attention = node("Softmax", [scores], p + "softmax", axis=-1)
        context = node("MatMul", [attention, heads_of["v"]], p + "context")
        context = node("Transpose", [context], p + "context_t", perm=[0, 2, 1, 3])
        context = node("Reshape", [context, join], p + "joined")
        x = node("Add", [x, dense(context, "o", hidden, hidden)], p + "res1")
        x = node(
            "LayerNormalization", [x, weight(p + "g1", hidden), weight(p + "b1", hidden)], p + "ln1", axis=-1
        )
        inner = dense(x, "f1", hidden, 4 * hidden)
        erf = node("Erf", [node("Div", [inner, root2], p + "div")], p + "erf")
        inner = node(
            "Mul", [node("Mul", [inner, node("Add", [erf, one], p + "erf1")], p + "gelu2"), half], p + "gelu"
        )
        x = node("Add", [x, dense(inner, "f2", 4 * hidden, hidden)], p + "res2")
        x = node(
            "LayerNormalization", [x, weight(p + "g2", hidden), weight(p + "b2", hidden)], p + "ln2", axis=-1
        )
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "tokens", hidden])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", "tokens", hidden])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
