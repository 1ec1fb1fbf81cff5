"""Lowering gives operations their versions, attributes and captures, and programs the meaning of their graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given

from hetero.errors import ModelError
from hetero.program.limits import MAX_DEPTH
from hetero.program.lower import Lowering, operation_of
from hetero.program.program import NO_SLOT, Dispatch, Program
from hetero.program.validate import validate
from hetero.types import DataType, TensorType
from tests.program.graphs import alias, graph_of, lower, random_graphs, type_of

NESTED = """(bool c, float[2] x) => (float[2] y) {
    w = Neg(x)
    [outer] y = If (c) <
        then_branch = t () => (float[2] ty) {
            a = Abs(x)
            [inner] ty = If (c) <
                then_branch = tt () => (float[2] tty) { tty = Add(a, w) },
                else_branch = te () => (float[2] tey) { tey = Relu(x) }
            >
        },
        else_branch = e () => (float[2] ey) { ey = Mul(w, w) }
    >
}"""


def test_the_version_is_the_schema_that_the_imported_opset_selects() -> None:
    [node] = graph_of("(float[2] x) => (float[2] y) { y = Relu(x) }")
    assert [operation_of(node, {"": v}).version for v in (5, 13, 14, 21)] == [1, 13, 14, 14]
    assert operation_of(node, {"": 21}).opset == 21


def test_the_domain_ai_onnx_is_the_empty_domain() -> None:
    node = ir.Node("ai.onnx", "Relu", [ir.Value(name="x")], name="n")
    op = operation_of(node, {"ai.onnx": 17})
    assert (op.domain, op.version, op.id) == ("", 14, "Relu")


def test_operators_without_a_schema_get_the_imported_version_or_one() -> None:
    node = ir.Node("com.microsoft", "Gelu", [ir.Value(name="x")], name="n")
    assert operation_of(node, {"": 17, "com.microsoft": 3}).version == 3
    assert operation_of(node, {"": 17}).version == 1


def test_a_deprecated_operator_gets_the_imported_version() -> None:
    node = ir.Node("", "Upsample", [ir.Value(name="x"), ir.Value(name="s")], name="n")
    assert operation_of(node, {"": 9}).version == 9
    assert operation_of(node, {"": 13}).version == 13


def test_a_standard_domain_must_be_imported() -> None:
    node = ir.Node("", "Relu", [ir.Value(name="x")], name="act")
    with pytest.raises(ModelError, match="without importing") as caught:
        operation_of(node, {"com.microsoft": 1})
    assert (caught.value.node, caught.value.op) == ("act", "Relu")


def test_operands_that_are_left_out_are_marked_and_get_no_slot() -> None:
    program = lower(graph_of("(float[2] x, float m) => (float[2] y) { y = Clip(x, , m) }"))
    [clip] = program.instructions
    assert clip.op.present_inputs == (True, False, True)
    assert clip.inputs == (0, NO_SLOT, 1)
    assert clip.last_use == (True, False, True)


def test_outputs_that_are_left_out_keep_their_place() -> None:
    x = ir.Value(name="x")
    node = ir.Node("", "TopK", [x, x], outputs=[ir.Value(name=""), ir.Value(name="i")], name="n")
    op = operation_of(node, {"": 17})
    assert op.present_outputs == (False, True)


def test_bodies_of_one_node_share_their_captures_and_pass_inner_ones_through() -> None:
    program = lower(graph_of(NESTED))
    validate(program)
    outer = program.instructions[1]
    names = {p.slot: p.name for p in program.inputs} | {program.instructions[0].outputs[0]: "w"}
    assert [names[s] for s in outer.inputs] == ["c", "w", "x", "c"]
    assert outer.op.n_captures == 3
    assert outer.op.present_inputs == (True,)
    assert outer.dispatch is Dispatch.CONTROL
    for body in outer.op.bodies().values():
        assert body.n_captures == 3
        assert [p.name for p in body.inputs] == ["w", "x", "c"]
        assert [p.type for p in body.inputs][1:] == [p.type for p in (program.inputs[1], program.inputs[0])]
    inner = outer.op.bodies()["then_branch"].instructions[1]
    assert [p.name for p in inner.op.bodies()["then_branch"].inputs] == ["x", "a", "w"]


def test_a_branch_may_give_back_an_outer_value_itself() -> None:
    x, y = (ir.Value(name=n, type=ir.TensorType(ir.DataType.FLOAT)) for n in "xy")
    c = ir.Value(name="c", type=ir.TensorType(ir.DataType.BOOL))
    branches = [
        ir.AttrGraph(k, ir.Graph([], [alias(x)], nodes=[], name=k)) for k in ("then_branch", "else_branch")
    ]
    node = ir.Node("", "If", [c], branches, outputs=[y], name="if")
    program = lower(ir.Graph([c, x], [y], nodes=[node], opset_imports={"": 17}, name="g"))
    validate(program)
    [instruction] = program.instructions
    assert instruction.inputs == (0, 1)
    assert [b.outputs[0].slot for b in instruction.op.bodies().values()] == [0, 0]


def test_initializers_of_a_body_are_its_constants_and_outer_ones_are_captured() -> None:
    graph = graph_of("""(bool c, float[1] x) => (float[1] y) <float[1] outer = {1.0}> {
        y = If (c) <
            then_branch = t () => (float[1] ty) <float[1] own = {2.0}> { s = Add(outer, own) ty = Add(s, x) },
            else_branch = e () => (float[1] ey) { ey = Neg(outer) }
        >
    }""")
    program = lower(graph)
    validate(program)
    assert [p.name for p in program.constants] == ["outer"]
    body = program.instructions[0].op.bodies()["then_branch"]
    assert [p.name for p in body.constants] == ["own"]
    assert [p.name for p in body.inputs] == ["outer", "x"]


def test_lower_body_gives_the_program_and_what_it_captures_in_order_of_use() -> None:
    graph = graph_of(NESTED)
    body = graph[1].attributes["then_branch"].as_graph()
    program, captures = Lowering(graph.opset_imports, type_of).lower_body(body, "then")
    assert captures == ("x", "c", "w")
    assert (program.name, program.n_captures) == ("then", 3)


def test_graph_lists_become_tuples_of_programs() -> None:
    def body(name: str) -> ir.Graph:
        y = ir.Value(name=name)
        return ir.Graph([], [y], nodes=[ir.Node("", "Neg", [x], outputs=[y], name=f"neg_{name}")], name=name)

    x, z = ir.Value(name="x"), ir.Value(name="z")
    many = ir.Node(
        "custom", "Many", [], [ir.AttrGraphs("cases", [body("a"), body("b")])], outputs=[z], name="m"
    )
    program = lower(ir.Graph([x], [z], nodes=[many], opset_imports={"": 17}, name="g"))
    validate(program)
    cases = program.instructions[0].op.attributes["cases"]
    assert [type(c) for c in cases] == [Program, Program]
    assert [c.inputs[0].name for c in cases] == ["x", "x"]


def test_bodies_nested_too_deep_are_refused() -> None:
    x, c = ir.Value(name="x"), ir.Value(name="c")
    graph = ir.Graph([], [x], nodes=[], name="leaf")
    for k in range(MAX_DEPTH + 1):
        y = ir.Value(name=f"y{k}")
        branches = [ir.AttrGraph("then_branch", graph)]
        graph = ir.Graph(
            [], [y], nodes=[ir.Node("", "If", [c], branches, outputs=[y], name=f"if{k}")], name="b"
        )
    with pytest.raises(ModelError, match="nested deeper"):
        Lowering({"": 17}, type_of).operations(graph)


def test_an_error_in_an_attribute_names_the_node() -> None:
    x = ir.Value(name="x")
    node = ir.Node("", "Elu", [x], [ir.RefAttr("alpha", "a", ir.AttributeType.FLOAT)], name="act")
    with pytest.raises(ModelError, match="not inlined") as caught:
        operation_of(node, {"": 17})
    assert (caught.value.node, caught.value.op, caught.value.operand) == ("act", "Elu", "alpha")


def test_attributes_become_python_values() -> None:
    x = ir.Value(name="x")
    node = ir.Node(
        "custom",
        "Op",
        [x],
        [
            ir.AttrInt64("i", 3),
            ir.AttrFloat32("f", 0.5),
            ir.AttrString("s", "é"),
            ir.AttrInt64s("is", [1, 2]),
            ir.AttrTensor("t", ir.tensor(np.array([[1, 2]], np.int16))),
            ir.AttrTypeProto("tp", ir.TypeAndShape(ir.TensorType(ir.DataType.INT8), ir.Shape([2, "n"]))),
        ],
        name="n",
    )
    got = operation_of(node, {"": 17}).attributes
    assert (got["i"], got["f"], got["s"], got["is"]) == (3, 0.5, "é", (1, 2))
    assert got["t"].dtype == np.int16
    assert got["tp"] == TensorType(DataType.INT8, (2, "n"))


@given(random_graphs())
def test_random_graphs_lower_to_valid_programs_of_the_same_meaning(graph: ir.Graph) -> None:
    program = lower(graph)
    validate(program)
    environment: dict[str, Any] = {v.name or "": ("in", v.name) for v in graph.inputs}
    assert _run(program, [environment[p.name] for p in program.inputs]) == _meaning(graph, environment)


def _meaning(graph: ir.Graph, outer: dict[str, Any]) -> list[Any]:
    """The outputs as expressions over names, by looking names up in the enclosing scopes."""
    scope = dict(outer) | {n: ("weight", n) for n in graph.initializers}
    for node in graph:
        operands = tuple(scope[v.name or ""] if v is not None else None for v in node.inputs)
        bodies = []
        for key in sorted(k for k, a in node.attributes.items() if a.type == ir.AttributeType.GRAPH):
            body = node.attributes[key].as_graph()
            formal = {v.name or "": ("formal", k) for k, v in enumerate(body.inputs)}
            bodies.append(tuple(_meaning(body, scope | formal)))
        for k, value in enumerate(node.outputs):
            scope[value.name or ""] = (node.op_type, operands, tuple(bodies), k)
    return [scope[v.name or ""] for v in graph.outputs]


def _run(program: Program, values: list[Any]) -> list[Any]:
    """The same expressions by way of slots; a slot is gone after its last use, and no slot that was read is left."""
    slots = {p.slot: v for p, v in zip(program.inputs, values, strict=True)}
    slots |= {p.slot: ("weight", p.name) for p in program.constants}
    read: set[int] = set()
    for row in program.instructions:
        operands = [None if s == NO_SLOT else slots[s] for s in row.inputs]
        read.update(row.inputs)
        own = len(operands) - row.op.n_captures
        bodies = []
        for _, body in sorted(row.op.bodies().items()):
            formal = [("formal", k) for k in range(len(body.inputs) - body.n_captures)]
            bodies.append(tuple(_run(body, [*formal, *operands[own:]])))
        for slot, last in zip(row.inputs, row.last_use, strict=True):
            if last:
                slots.pop(slot, None)
        for k, slot in enumerate(row.outputs):
            slots[slot] = (row.op.op_type, tuple(operands[:own]), tuple(bodies), k)
    results = {p.slot for p in program.outputs}
    assert not (read - results - {NO_SLOT}) & slots.keys()
    return [slots[p.slot] for p in program.outputs]
