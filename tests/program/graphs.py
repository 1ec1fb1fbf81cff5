"""Small onnx-ir graphs to lower: hand-written ones from ONNX text, and random ones from hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx
import onnx.parser
import onnx_ir as ir
from hypothesis import strategies as st

from hetero.program.assemble import build_program
from hetero.program.attributes import type_and_shape
from hetero.program.lower import Lowering
from hetero.program.program import Program
from hetero.types import ValueType


def type_of(value: ir.Value) -> ValueType | None:
    """The declared type of a value."""
    return None if value.type is None else type_and_shape(ir.TypeAndShape(value.type, value.shape))


def graph_of(text: str, opsets: str = '"" : 17') -> ir.Graph:
    """The graph of ONNX text such as "(float[2] x) => (float[2] y) { y = Relu(x) }"."""
    header = f"<ir_version: 10, opset_import: [{opsets}]>\n"
    model = onnx.parser.parse_model(f"{header}g {text}")
    return ir.from_proto(model).graph


def lower(graph: ir.Graph, name: str = "main") -> Program:
    """The whole graph as one program."""
    lowering = Lowering(graph.opset_imports, type_of)
    return build_program(
        name,
        lowering.operations(graph),
        [(v.name or "", type_of(v)) for v in graph.inputs],
        [v.name or "" for v in graph.outputs],
        {n: type_of(v) for n, v in graph.initializers.items()},
        opsets=graph.opset_imports,
    )


def alias(value: ir.Value) -> ir.Value:
    """Another value of the same name: how a body's output names a value of an enclosing scope."""
    return ir.Value(name=value.name, type=value.type, shape=value.shape)


def _scalar(name: str, dtype: ir.DataType) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([]))


@dataclass
class _Names:
    """Names values and nodes; `flag` and `trips` are what conditions and trip counts are taken from."""

    count: int = 0
    flag: ir.Value = field(default_factory=lambda: _scalar("flag", ir.DataType.BOOL))
    trips: ir.Value = field(default_factory=lambda: _scalar("trips", ir.DataType.INT64))

    def value(self) -> ir.Value:
        self.count += 1
        return ir.Value(
            name=f"v{self.count}",
            type=ir.TensorType(ir.DataType.FLOAT),
            shape=ir.Shape(["n", self.count % 3]),
        )

    def node(self) -> str:
        self.count += 1
        return f"node{self.count}"


@st.composite
def random_graphs(draw: st.DrawFn) -> ir.Graph:
    """Graphs of 1 to 8 nodes: unary, binary, variadic, several outputs, operands left out, initializers, and If and
    Loop whose bodies capture values of every enclosing scope."""
    names = _Names()
    inputs = [names.value() for _ in range(draw(st.integers(1, 3)))]
    weights = [names.value() for _ in range(draw(st.integers(0, 2)))]
    nodes, known = _nodes(draw, names, [*inputs, *weights], 2)
    outputs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))
    inputs += [names.flag, names.trips]
    return ir.Graph(
        inputs, outputs, nodes=nodes, initializers=_filled(weights), opset_imports={"": 17}, name="random"
    )


def _filled(weights: list[ir.Value]) -> list[ir.Value]:
    for weight in weights:
        weight.const_value = ir.tensor([1.0], name=weight.name)
    return weights


def _nodes(
    draw: st.DrawFn, names: _Names, known: list[ir.Value], depth: int
) -> tuple[list[ir.Node], list[ir.Value]]:
    known = list(known)
    nodes = []
    kinds = ["Relu", "Add", "Concat", "Split", "Clip"] + (["If", "Loop"] if depth else [])
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=8 if depth == 2 else 3)):
        node = _node(draw, names, kind, known, depth)
        nodes.append(node)
        known.extend(node.outputs)
    return nodes, known


def _node(draw: st.DrawFn, names: _Names, kind: str, known: list[ir.Value], depth: int) -> ir.Node:
    def pick() -> ir.Value:
        return draw(st.sampled_from(known))

    attributes: list[ir.Attr] = []
    outputs = [names.value()]
    inputs: list[ir.Value | None]
    if kind == "Add":
        inputs = [pick(), pick()]
    elif kind == "Concat":
        inputs = [pick() for _ in range(draw(st.integers(1, 4)))]
        attributes = [ir.AttrInt64("axis", draw(st.integers(-2, 1)))]
    elif kind == "Clip":
        inputs = [pick(), None, pick()]
    elif kind == "Split":
        inputs = [pick()]
        outputs = [names.value() for _ in range(draw(st.integers(1, 3)))]
    elif kind == "If":
        inputs = [names.flag]
        outputs = [names.value() for _ in range(draw(st.integers(1, 2)))]
        for branch in ("then_branch", "else_branch"):
            attributes.append(ir.AttrGraph(branch, _body(draw, names, known, 0, len(outputs), depth)))
    elif kind == "Loop":
        carried = draw(st.integers(0, 2))
        inputs = [names.trips, draw(st.sampled_from([None, names.flag])), *[pick() for _ in range(carried)]]
        scans = draw(st.integers(0 if carried else 1, 1))
        outputs = [names.value() for _ in range(carried + scans)]
        attributes = [ir.AttrGraph("body", _body(draw, names, known, carried + 2, 1 + len(outputs), depth))]
    else:
        inputs = [pick()]
    return ir.Node("", kind, inputs, attributes, outputs=outputs, name=names.node())


def _body(
    draw: st.DrawFn, names: _Names, known: list[ir.Value], n_inputs: int, n_outputs: int, depth: int
) -> ir.Graph:
    formal = [names.value() for _ in range(n_inputs)]
    weights = [names.value() for _ in range(draw(st.integers(0, 1)))]
    nodes, inner = _nodes(draw, names, [*known, *formal, *weights], depth - 1)
    outer = {v.name for v in known}
    chosen = [draw(st.sampled_from(inner)) for _ in range(n_outputs)]
    outputs = [alias(v) if v.name in outer else v for v in chosen]
    if n_inputs:
        outputs[0] = alias(names.flag)  # the condition of a Loop's body
    return ir.Graph(formal, outputs, nodes=nodes, initializers=_filled(weights), name=names.node())
