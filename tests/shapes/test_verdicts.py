"""The guards' verdict over random symbolic graphs is what running them shows."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import hetero
from hetero.errors import GuardError, HeteroError

SYMBOLS = ["n", "m", "k", None, 2]
OPS = ["Concat", "Slice", "Reshape", "Computed", "MatMul", "Add", "Conv", "MaxPool", "Transpose", "ReduceSum", "Split",
       "Squeeze", "Gemm", "Expand", "Flatten"]  # fmt: skip


@dataclass
class Draft:
    """A graph of matrices: every value has rank 2 (or is an integer vector on the way to a shape)."""

    draw: st.DrawFn
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    count: int = 0

    def small(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def pick(self) -> str:
        return self.draw(st.sampled_from(self.values))

    def integers(self, *values: int) -> str:
        self.count += 1
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), f"c{self.count}"))
        return self.weights[-1].name

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        self.count += 1
        names = [f"v{self.count}", *(f"v{self.count}_{k}" for k in range(1, outputs))]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"{op}{self.count}", **attributes))
        return names[0]

    def step(self, op: str) -> None:
        x = self.pick()
        match op:
            case "Concat":
                y = self.node("Concat", x, self.pick(), axis=self.small(0, 1))
            case "Slice":
                step = self.draw(st.sampled_from([-2, -1, 1, 2]))
                bounds = [self.integers(self.small(-4, 4)) for _ in range(2)]
                y = self.node("Slice", x, *bounds, self.integers(self.small(-2, 1)), self.integers(step))
            case "Reshape":
                wanted = self.draw(st.sampled_from([(-1, 2), (3, -1), (0, -1), (-1, 0), (2, 3), (-1, 4)]))
                y = self.node("Reshape", x, self.integers(*wanted))
            case "Computed":
                shape = self.node("Shape", self.pick())
                part = self.node("Gather", shape, self.integers(self.small(0, 1)))
                if self.draw(st.booleans()):
                    part = self.node("Mul", part, self.integers(2))
                y = self.node(
                    "Reshape", x, self.node("Concat", part, self.integers(self.small(-1, 3)), axis=0)
                )
            case "MatMul" | "Add":
                y = self.node(op, x, self.pick())
            case "Gemm":
                y = self.node(
                    op, x, self.pick(), self.pick(), transA=self.small(0, 1), transB=self.small(0, 1)
                )
            case "Conv" | "MaxPool":
                y = self._window(op, x)
            case "Transpose":
                y = self.node(op, x)
            case "ReduceSum":
                y = self.node(op, x, self.integers(self.small(-2, 1)))
            case "Split":
                y = self.node(op, x, self.integers(1, self.small(0, 2)), outputs=2, axis=self.small(0, 1))
            case "Squeeze":
                axis = self.integers(self.small(0, 1))
                y = self.node("Unsqueeze", self.node("Squeeze", x, axis), axis)
            case "Expand":
                y = self.node(op, x, self.node("Shape", self.pick()))
            case _:
                y = self.node("Flatten", x, axis=self.small(0, 2))
        self.values.append(y)

    def _window(self, op: str, x: str) -> str:
        """Over the columns, the rows being the batch."""
        planes = self.node("Unsqueeze", x, self.integers(1))
        size = self.small(1, 3)
        shared = {"strides": [self.small(1, 2)], "dilations": [self.small(1, 2)]}
        if self.draw(st.booleans()):
            shared["auto_pad"] = self.draw(st.sampled_from(["SAME_UPPER", "VALID"]))
        else:
            shared["pads"] = [self.small(0, size - 1), self.small(0, size - 1)]
        if op == "MaxPool":
            found = self.node(op, planes, kernel_shape=[size], **shared)
        else:
            self.count += 1
            kernel = numpy_helper.from_array(np.ones((1, 1, size), np.float32), f"c{self.count}")
            self.weights.append(kernel)
            found = self.node(op, planes, kernel.name, **shared)
        return self.node("Squeeze", found, self.integers(1))


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    draft = Draft(draw)
    inputs = [
        helper.make_tensor_value_info(
            name, TensorProto.FLOAT, [draw(st.sampled_from(SYMBOLS)) for _ in range(2)]
        )
        for name in ("a", "b")[: draw(st.integers(1, 2))]
    ]
    draft.values = [i.name for i in inputs]
    for op in draw(st.lists(st.sampled_from(OPS), min_size=1, max_size=6)):
        draft.step(op)
    made = [n for n in draft.values if n not in {i.name for i in inputs}]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in made]
    graph = helper.make_graph(draft.nodes, "g", inputs, outputs, draft.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.lists(st.lists(st.integers(0, 6), min_size=4, max_size=4), min_size=4, max_size=4))
def test_a_feed_is_refused_exactly_when_running_it_fails(
    model: onnx.ModelProto, extents: list[list[int]]
) -> None:
    with hetero.HeterogeneousExecutor(model, ["cpu"], children="inline") as ex:
        guarded = ex._feeds
        assume(guarded._obligations is not None)  # all extents are numbers: the kernels themselves say so
        ex._feeds = copy.copy(guarded)  # takes what the other one refuses
        ex._feeds._obligations = None
        for given_ in extents:
            numbers = iter(given_)
            env: dict[str, int] = {}
            feeds = {}
            for value in model.graph.input:
                dims = value.type.tensor_type.shape.dim
                shape = [
                    d.dim_value
                    or (env.setdefault(d.dim_param, next(numbers)) if d.dim_param else next(numbers))
                    for d in dims
                ]
                feeds[value.name] = np.ones(shape, np.float32)
            verdict = None
            try:
                guarded.check(feeds)
            except GuardError as error:
                verdict = error
            try:
                ex.run(feeds)
                failure = None
            except HeteroError as error:
                failure = error
            shapes = {name: x.shape for name, x in feeds.items()}
            assert (verdict is None) == (failure is None), f"{shapes}: guards {verdict}; run {failure}"
