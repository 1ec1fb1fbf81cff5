"""Small networks as exporters write them: a CNN, an encoder, a gated block, an LSTM; each with inputs for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Network = tuple[onnx.ModelProto, dict[str, Any]]
"""A model, and values for its inputs."""


class Graph:
    """A graph that grows node by node; every node's first output is named after it."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        """A weight of small random numbers."""
        return self.constant((self.random.standard_normal(shape) * 0.2).astype(np.float32))

    def constant(self, value: Any, dtype: Any = None) -> str:
        """A weight of this value."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; the name of its first output."""
        name = f"{op_type.lower()}{len(self.nodes)}"
        names = [name, *(f"{name}_{k}" for k in range(1, outputs))]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=name, **attributes))
        return name

    def model(self, inputs: list[onnx.ValueInfoProto], *outputs: str, opset: int = 17) -> onnx.ModelProto:
        """The model with these outputs."""
        found = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "network", inputs, found, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def cnn() -> Network:
    """Convolutions with every activation that onnxruntime fuses into them, a shortcut, pooling, a classifier."""
    g = Graph(1)
    x = g.add("Conv", "x", g.weight(8, 3, 3, 3), g.weight(8), pads=[1, 1, 1, 1])
    statistics = [g.weight(8), g.weight(8), g.weight(8), g.constant(np.linspace(0.5, 1.5, 8), np.float32)]
    x = first = g.add("Relu", g.add("BatchNormalization", x, *statistics))
    x = g.add("Conv", x, g.weight(8, 8, 3, 3), pads=[1, 1, 1, 1])
    x = g.add("Relu", g.add("Add", x, first))
    low, high = g.constant(0.0, np.float32), g.constant(6.0, np.float32)
    x = g.add("Clip", g.add("Conv", x, g.weight(8, 8, 1, 1)), low, high)
    x = g.add("LeakyRelu", g.add("Conv", x, g.weight(8, 1, 3, 3), group=8, pads=[1, 1, 1, 1]), alpha=0.1)
    x = g.add("Tanh", g.add("Conv", x, g.weight(8, 8, 1, 1)))
    x = g.add("Conv", x, g.weight(8, 8, 1, 1))
    x = g.add("Mul", x, g.add("Sigmoid", x))
    x = g.add("HardSigmoid", g.add("Conv", x, g.weight(8, 8, 1, 1)), alpha=0.3, beta=0.4)
    x = g.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = g.add("Flatten", g.add("GlobalAveragePool", x))
    x = g.add("Relu", g.add("Gemm", x, g.weight(10, 8), g.weight(10), transB=1))
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])
    return g.model([info], x), {"x": g.random.standard_normal((2, 3, 16, 16)).astype(np.float32)}


def _gelu(g: Graph, x: str, kind: str) -> str:
    one, half = g.constant(1.0, np.float32), g.constant(0.5, np.float32)
    if kind == "sigmoid":
        return g.add("Mul", x, g.add("Sigmoid", g.add("Mul", x, g.constant(1.702, np.float32))))
    if kind == "erf":
        part = g.add("Erf", g.add("Div", x, g.constant(np.sqrt(2), np.float32)))
    else:
        cube = g.add("Mul", g.add("Pow", x, g.constant(3.0, np.float32)), g.constant(0.044715, np.float32))
        part = g.add("Tanh", g.add("Mul", g.add("Add", x, cube), g.constant(np.sqrt(2 / np.pi), np.float32)))
    return g.add("Mul", g.add("Mul", x, g.add("Add", part, one)), half)


def encoder(gelu: str = "erf", layers: int = 2) -> Network:
    """A BERT encoder in single operators: embeddings, masked attention, GELU as `erf`, `tanh` or `sigmoid` has it."""
    hidden, heads, length, words = 32, 4, 8, 50
    g = Graph(2)
    x = g.add(
        "Add", g.add("Gather", g.weight(words, hidden), "ids"), g.add("Gather", g.weight(2, hidden), "types")
    )
    x = g.add("Add", x, g.add("Gather", g.weight(16, hidden), g.constant(np.arange(length)[None])))
    x = g.add("LayerNormalization", x, g.weight(hidden), g.weight(hidden), epsilon=1e-12)
    mask = g.add("Cast", g.add("Unsqueeze", "mask", g.constant([1, 2])), to=TensorProto.FLOAT)
    mask = g.add("Mul", g.add("Sub", g.constant(1.0, np.float32), mask), g.constant(-1e4, np.float32))

    def dense(value: str, width: int, out: int) -> str:
        return g.add("Add", g.add("MatMul", value, g.weight(width, out)), g.weight(out))

    def heads_of(value: str, order: list[int]) -> str:
        split = g.add("Reshape", dense(value, hidden, hidden), g.constant([0, 0, heads, hidden // heads]))
        return g.add("Transpose", split, perm=order)

    for _ in range(layers):
        scores = g.add("MatMul", heads_of(x, [0, 2, 1, 3]), heads_of(x, [0, 2, 3, 1]))
        scores = g.add("Add", g.add("Div", scores, g.constant(np.sqrt(hidden / heads), np.float32)), mask)
        mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), heads_of(x, [0, 2, 1, 3]))
        mixed = g.add("Reshape", g.add("Transpose", mixed, perm=[0, 2, 1, 3]), g.constant([0, 0, hidden]))
        x = g.add("Add", dense(mixed, hidden, hidden), x)
        x = g.add("LayerNormalization", x, g.weight(hidden), g.weight(hidden), epsilon=1e-12)
        inner = dense(_gelu(g, dense(x, hidden, 2 * hidden), gelu), 2 * hidden, hidden)
        x = g.add(
            "LayerNormalization", g.add("Add", inner, x), g.weight(hidden), g.weight(hidden), epsilon=1e-12
        )
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.INT64, ["b", length]) for n in ("ids", "types", "mask")
    ]
    present = np.ones((2, length), np.int64)
    present[1, 5:] = 0
    ids, types = g.random.integers(0, words, (2, length)), g.random.integers(0, 2, (2, length))
    return g.model(inputs, x), {"ids": ids, "types": types, "mask": present}


def gated() -> Network:
    """What decoders are made of: root mean squares, x · sigmoid(x), scaled products with transposed operands."""
    width = 16
    g = Graph(3)
    x = "x"
    for _ in range(2):
        squares = g.add("ReduceMean", g.add("Pow", x, g.constant(2.0, np.float32)), axes=[-1])
        norm = g.add("Div", x, g.add("Sqrt", g.add("Add", squares, g.constant(1e-6, np.float32))))
        inner = g.add("MatMul", g.add("Mul", norm, g.weight(width)), g.weight(width, width))
        inner = g.add("Mul", inner, g.add("Sigmoid", inner))
        scores = g.add("MatMul", x, g.add("Transpose", inner, perm=[0, 2, 1]))
        x = g.add("Add", x, g.add("MatMul", g.add("Mul", scores, g.constant(0.125, np.float32)), x))
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8, width])
    return g.model([info], g.add("Relu", x)), {
        "x": g.random.standard_normal((2, 8, width)).astype(np.float32)
    }


def lstm() -> Network:
    """A bidirectional LSTM and a projection of what it yields."""
    g = Graph(4)
    operands = ["x", g.weight(2, 64, 8), g.weight(2, 64, 16), g.weight(2, 128)]
    x = g.add("LSTM", *operands, outputs=3, hidden_size=16, direction="bidirectional")
    x = g.add("Reshape", g.add("Transpose", x, perm=[0, 2, 1, 3]), g.constant([0, 0, -1]))
    x = g.add("Add", g.add("MatMul", x, g.weight(32, 4)), g.weight(4))
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["t", "n", 8])
    return g.model([info], x), {"x": g.random.standard_normal((5, 2, 8)).astype(np.float32)}


NETWORKS: dict[str, Callable[[], Network]] = {
    "cnn": cnn,
    "encoder": encoder,
    "encoder_tanh": lambda: encoder("tanh", layers=1),
    "encoder_sigmoid": lambda: encoder("sigmoid", layers=1),
    "gated": gated,
    "lstm": lstm,
}
