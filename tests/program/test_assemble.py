"""Assembling gives each value one slot, in one order, and flags the last readers."""

from __future__ import annotations

import pytest

from hetero.errors import ProgramError
from hetero.program.assemble import LoweredNode, build_program
from hetero.program.operation import Operation
from hetero.program.program import Dispatch, ShapeGuard
from hetero.program.validate import validate
from hetero.types import DataType, TensorType
from tests.program.graphs import graph_of, lower
from tests.program.test_lower import NESTED

F = TensorType(DataType.FLOAT, ("n", 2))


def node(op_type: str, inputs: str, outputs: str, index: int = 0) -> LoweredNode:
    """A node over space-separated value names."""
    reads, writes = tuple(inputs.split()), tuple(outputs.split())
    op = Operation("", op_type, 14, {}, (True,) * len(reads), (True,) * len(writes), name=f"n_{writes[0]}")
    return LoweredNode(op, reads, writes, (F,) * len(writes), index)


def test_slots_go_to_inputs_then_used_constants_then_results() -> None:
    nodes = [node("Add", "x w2", "a", 4), node("Mul", "a w1", "b", 7)]
    constants = {"w1": F, "unused": F, "w2": F}
    program = build_program("p", nodes, [("x", F), ("y", None)], ["b"], constants)
    validate(program)
    assert [(p.name, p.slot) for p in program.inputs] == [("x", 0), ("y", 1)]
    assert [(p.name, p.slot) for p in program.constants] == [("w2", 2), ("w1", 3)]
    assert [i.outputs for i in program.instructions] == [(4,), (5,)]
    assert [i.node_index for i in program.instructions] == [4, 7]
    assert program.n_slots == 6


def test_the_last_reader_is_flagged_at_every_place_it_reads() -> None:
    nodes = [node("Mul", "x x", "a"), node("Add", "a x", "b"), node("Add", "b b", "c")]
    program = build_program("p", nodes, [("x", F)], ["c"], {})
    assert [i.last_use for i in program.instructions] == [(False, False), (True, True), (True, True)]


def test_outputs_are_never_flagged_and_may_repeat() -> None:
    nodes = [node("Relu", "x", "a"), node("Relu", "a", "b")]
    program = build_program("p", nodes, [("x", F)], ["a", "b", "a", "x"], {"w": F})
    validate(program)
    assert [i.last_use for i in program.instructions] == [(False,), (False,)]
    assert [p.slot for p in program.outputs] == [1, 2, 1, 0]


def test_a_constant_may_be_an_output_that_nothing_reads() -> None:
    program = build_program("p", [], [("x", F)], ["w"], {"w": F})
    validate(program)
    assert [p.slot for p in program.constants] == [1]


def test_guards_come_from_the_declared_inputs() -> None:
    program = build_program("p", [node("Relu", "x", "a")], [("x", F)], ["a"], {})
    assert program.guards == (ShapeGuard("x", 0, "n"), ShapeGuard("x", 1, 2))
    bare = build_program("p", [node("Relu", "x", "a")], [("x", F)], ["a"], {}, guarded=False)
    assert bare.guards == ()


def test_classify_reaches_the_instructions_of_bodies() -> None:
    program = lower(graph_of(NESTED))
    rows = program.instructions
    nodes = [
        LoweredNode(rows[0].op, ("x",), ("w",), rows[0].types, 0),
        LoweredNode(rows[1].op, ("c", "w", "x", "c"), ("y",), rows[1].types, 1),
    ]

    def classify(op: Operation) -> Dispatch:
        return Dispatch.HOST if op.op_type == "Abs" else Dispatch.LIBRARY

    again = build_program("p", nodes, [("c", None), ("x", None)], ["y"], {}, classify)
    validate(again)
    body = again.instructions[1].op.bodies()["then_branch"]
    assert [i.dispatch for i in body.instructions] == [Dispatch.HOST, Dispatch.LIBRARY]
    assert [i.dispatch for i in rows[1].op.bodies()["then_branch"].instructions] == [
        Dispatch.BACKEND,
        Dispatch.CONTROL,
    ]


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "message"),
    [
        ([node("Relu", "z", "a")], ["x"], ["a"], "reads 'z', which nothing before it defines"),
        ([node("Relu", "b", "a"), node("Relu", "x", "b")], ["x"], ["a"], "reads 'b'"),
        ([node("Relu", "x", "a"), node("Relu", "x", "a")], ["x"], ["a"], "'a' is defined twice"),
        ([node("Relu", "x", "x")], ["x"], ["x"], "'x' is defined twice"),
        ([node("Relu", "w", "w")], ["x"], ["w"], "'w' is defined twice"),
        ([node("Relu", "x", "a")], ["x", "x"], ["a"], "input 'x' is defined twice"),
        ([node("Relu", "x", "a")], ["x", ""], ["a"], "input without a name"),
        ([node("Relu", "x", "a")], ["x"], ["b"], "output 'b' is never written"),
    ],
)
def test_names_that_do_not_resolve_are_refused(
    nodes: list[LoweredNode], inputs: list[str], outputs: list[str], message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        build_program("p", nodes, [(n, F) for n in inputs], outputs, {"w": F})
