"""Random models over a handful of operator kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

N = 4
"""Every value is float32[batch, N, N], so that any two can meet."""


@dataclass(frozen=True)
class RandomModel:
    """A model and the names of its nodes."""

    proto: onnx.ModelProto
    nodes: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(
            f"{n.op_type}({', '.join(n.input)}) -> {', '.join(n.output)}" for n in self.proto.graph.node
        )


_CONSTANTS: dict[str, np.ndarray] = {
    "w": np.linspace(-1, 1, N * N, dtype=np.float32).reshape(N, N),
    "flat": np.array([0, -1], np.int64),
    "cube": np.array([0, N, N], np.int64),
    "lo": np.array([1], np.int64),
    "hi": np.array([2**31], np.int64),
    "axis2": np.array([2], np.int64),
    "last_first": np.array([N - 1, 0], np.int64),
    "halves": np.array([1, N - 1], np.int64),
    "pads": np.array([0, 1, 0, 0, 0, 0], np.int64),
    "zero": np.array(0, np.float32),
}


class _Author:
    """Appends operators that take and give float32[batch, N, N]."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.count = 0

    def node(self, op: str, inputs: Sequence[str], n_outputs: int = 1, **attributes: Any) -> list[str]:
        """A node; returns its output names."""
        self.count += 1
        outputs = [f"v{self.count}_{k}" for k in range(n_outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), outputs, name=f"n{self.count}", **attributes))
        return outputs


def _unary(op: str, **attributes: Any) -> Callable[[_Author, str, str], str]:
    return lambda g, a, b: g.node(op, [a], **attributes)[0]


def _binary(op: str) -> Callable[[_Author, str, str], str]:
    return lambda g, a, b: g.node(op, [a, b])[0]


def _there_and_back(g: _Author, a: str, b: str) -> str:
    (flat,) = g.node("Reshape", [a, "flat"])
    return g.node("Reshape", [flat, "cube"])[0]


def _by_shape(g: _Author, a: str, b: str) -> str:
    (shape,) = g.node("Shape", [b])
    return g.node("Reshape", [a, shape])[0]


def _cut_and_glue(g: _Author, a: str, b: str) -> str:
    first, second = g.node("Split", [a, "halves"], 2, axis=1)
    return g.node("Concat", [second, first], axis=1)[0]


def _slice_and_pad(g: _Author, a: str, b: str) -> str:
    (cut,) = g.node("Slice", [a, "lo", "hi", "lo"])
    return g.node("Pad", [cut, "pads", "zero"])[0]


def _pick(g: _Author, a: str, b: str) -> str:
    (rows,) = g.node("Gather", [a, "last_first"], axis=1)
    (total,) = g.node("ReduceSum", [rows, "axis2"], keepdims=1)
    (few,) = g.node("ReduceMax", [total], axes=[1], keepdims=1)
    return g.node("Add", [b, few])[0]


def _choose(g: _Author, a: str, b: str) -> str:
    (mask,) = g.node("Greater", [a, b])
    return g.node("Where", [mask, a, b])[0]


_STEPS: dict[str, Callable[[_Author, str, str], str]] = {
    "add": _binary("Add"),
    "sub": _binary("Sub"),
    "mul": _binary("Mul"),
    "max": _binary("Max"),
    "neg": _unary("Neg"),
    "tanh": _unary("Tanh"),
    "relu": _unary("Relu"),
    "sigmoid": _unary("Sigmoid"),
    "identity": _unary("Identity"),
    "transpose": _unary("Transpose", perm=[0, 2, 1]),
    "softmax": _unary("Softmax", axis=-1),
    "matmul": _binary("MatMul"),
    "weight": lambda g, a, b: g.node("MatMul", [a, "w"])[0],
    "reshape": _there_and_back,
    "shape": _by_shape,
    "split": _cut_and_glue,
    "slice": _slice_and_pad,
    "pick": _pick,
    "choose": _choose,
}


@st.composite
def models(draw: st.DrawFn, max_steps: int = 12) -> RandomModel:
    """Random DAGs of up to `max_steps` operator groups with one to three outputs."""
    g, values = _Author(), ["x", "y"]
    for _ in range(draw(st.integers(1, max_steps))):
        step = _STEPS[draw(st.sampled_from(sorted(_STEPS)))]
        a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        # keep magnitudes bounded, so that products of products do not overflow
        values.append(g.node("Tanh", [step(g, a, b)])[0])
    outputs = draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3, unique=True))
    if values[-1] not in outputs:
        outputs.append(values[-1])

    def port(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", N, N])

    graph = helper.make_graph(
        g.nodes,
        "random",
        [port("x"), port("y")],
        [port(name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in _CONSTANTS.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return RandomModel(proto, tuple(n.name for n in g.nodes))
