"""Each rule of a program's form has its own error, which names the instruction and the slot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.errors import ProgramError
from hetero.program.limits import MAX_DEPTH
from hetero.program.operation import Operation
from hetero.program.program import NO_SLOT, Instruction, Port, Program, ShapeGuard
from hetero.program.validate import validate
from hetero.types import DataType, SequenceType, TensorType
from tests.program.graphs import graph_of, lower, random_graphs
from tests.program.mutations import holds, mutated

F = TensorType(DataType.FLOAT, ("n", 2))


def op(op_type: str, n_in: int = 1, n_out: int = 1, **attributes: Any) -> Operation:
    return Operation("", op_type, 13, attributes, (True,) * n_in, (True,) * n_out, name=f"my_{op_type}")


def row(operation: Operation, inputs: tuple[int, ...], outputs: tuple[int, ...], *last: bool) -> Instruction:
    return Instruction(operation, inputs, outputs, (F,) * len(outputs), last, 0)


GOOD = Program(
    "p",
    (row(op("Add", 2), (0, 1), (2,), True, False), row(op("Relu"), (2,), (3,), True)),
    (Port("x", 0, F),),
    (Port("w", 1, F),),
    (Port("y", 3, F),),
    4,
    (ShapeGuard("x", 1, 2),),
)


def with_row(at: int, **changes: Any) -> Program:
    rows = list(GOOD.instructions)
    rows[at] = replace(rows[at], **changes)
    return replace(GOOD, instructions=tuple(rows))


def test_a_good_program_passes() -> None:
    validate(GOOD)
    validate(GOOD, require_constants={"w"})


@pytest.mark.parametrize(
    ("program", "message", "operand"),
    [
        (with_row(0, inputs=(0, 9)), "input slot %9 is out of range, there are 4", "%9"),
        (with_row(0, inputs=(0, -2)), "input slot %-2 is out of range", "%-2"),
        (with_row(0, outputs=(4,)), "output slot %4 is out of range", "%4"),
        (with_row(0, inputs=(0, 3)), "reads slot %3 before anything writes it", "%3"),
        (with_row(0, inputs=(2, 1)), "reads slot %2 before anything writes it", "%2"),
        (with_row(1, inputs=(0,)), "reads slot %0 after its last use in instruction 0", "%0"),
        (with_row(1, outputs=(2,)), "writes slot %2, which instruction 0 writes too", "%2"),
        (with_row(1, outputs=(0,)), "writes slot %0, which holds input 'x'", "%0"),
        (with_row(1, outputs=(1,)), "writes slot %1, which holds constant 'w'", "%1"),
        (with_row(0, types=()), "has 1 outputs, but 0 shape and type entries", None),
        (with_row(0, types=(F, F)), "has 1 outputs, but 2 shape and type entries", None),
        (with_row(0, types=("float",)), "has 'float' for a type", None),
        (with_row(0, types=(TensorType(None, (-1,)),)), "has extent -1", None),
        (with_row(0, types=(SequenceType(None),)), "no element", None),  # type: ignore[arg-type]
        (with_row(0, last_use=(True, False, False)), "has 2 inputs, but 3 last-use flags", None),
        (with_row(0, outputs=(), types=()), "has no outputs", None),
        (with_row(0, outputs=(NO_SLOT,)), "has no outputs", None),
        (
            with_row(0, op=op("Add", 2, 2), outputs=(2, 3), types=(F, F)),
            "has wrong output count 2, gives 1",
            None,
        ),
        (with_row(0, op=op("Add", 1), inputs=(0,), last_use=()), "takes 2 inputs, has 1", None),
        (with_row(0, op=op("Add", 3), inputs=(0, 1, 1)), "takes 2 inputs, has 3", None),
        (with_row(0, op=op("Add", 3)), "has 2 inputs, but its operation speaks of 3", None),
        (with_row(0, inputs=(0, NO_SLOT)), "its operation says it is present", "%-1"),
        (
            with_row(0, op=replace(op("Add", 2), n_captures=1)),
            "has 1 inputs, but its operation speaks of 2",
            None,
        ),
        (with_row(0, op=replace(op("Add", 2), n_captures=3)), "captures 3 values, but has 2 inputs", None),
        (with_row(0, op=replace(op("Add", 2), n_captures=-1)), "captures -1 values", None),
        (with_row(0, op=replace(op("Add", 1), n_captures=1)), "captures 1 values, but has no body", None),
    ],
)
def test_a_broken_instruction_is_named_with_its_slot(
    program: Program, message: str, operand: str | None
) -> None:
    with pytest.raises(ProgramError) as caught:
        validate(program)
    error = caught.value
    assert message in error.message
    at = 1 if program.instructions[0] is GOOD.instructions[0] else 0
    assert f"instruction {at} " in error.message
    assert (error.node, error.op) == (program.instructions[at].op.name, program.instructions[at].op.id)
    assert error.operand == operand


def test_an_omitted_operand_must_be_optional_and_unflagged() -> None:
    omitted = replace(op("Add", 2), present_inputs=(True, False))
    with pytest.raises(ProgramError, match=r"input 1 \(B\) is required but left out"):
        validate(with_row(0, op=omitted, inputs=(0, NO_SLOT)))
    clip = replace(op("Clip", 2), present_inputs=(True, False))
    validate(with_row(0, op=clip, inputs=(0, NO_SLOT)))
    with pytest.raises(ProgramError, match="flags an input that is left out"):
        validate(with_row(0, op=clip, inputs=(0, NO_SLOT), last_use=(False, True)))


def test_a_program_output_is_never_flagged() -> None:
    program = replace(GOOD, outputs=(*GOOD.outputs, Port("x", 0, F)))
    with pytest.raises(ProgramError, match="flags slot %0 as last used, but it is a program output"):
        validate(program)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": ()}, "the program has no outputs"),
        ({"outputs": (Port("y", 7, F),)}, "output 'y' slot %7 is out of range"),
        ({"outputs": (Port("y", NO_SLOT, F),)}, "output 'y' slot %-1 is out of range"),
        ({"outputs": (Port("z", 4, F),), "n_slots": 5}, "output 'z' is slot %4, which is never written"),
        ({"n_slots": 5}, "has 5 slots, but only 4 are ever written"),
        ({"n_slots": 2**60}, "slots, but only 4 are ever written"),
        ({"n_slots": -1}, "slot count -1"),
        ({"n_slots": 3}, "output slot %3 is out of range"),
        ({"n_captures": 2}, "2 captures of 1 inputs"),
        ({"n_captures": -1}, "-1 captures"),
        ({"inputs": (Port("x", 0, F), Port("x", 4, F)), "n_slots": 5}, "input 'x' has a name that is taken"),
        ({"inputs": (Port("", 0, F),)}, "input '' has no name"),
        ({"constants": (Port("w", 0, F),)}, "constant 'w' and input 'x' share slot %0"),
        ({"constants": (Port("w", 9, F),)}, "constant 'w' slot %9 is out of range"),
        ({"guards": (ShapeGuard("z", 0, 1),)}, "guard 0 .* speaks of an input that does not exist"),
        ({"guards": (ShapeGuard("w", 0, 1),)}, "speaks of an input that does not exist"),
        ({"guards": (ShapeGuard("x", 2, 1),)}, "axis out of range for rank 2"),
        ({"guards": (ShapeGuard("x", -1, 1),)}, "axis out of range"),
        ({"guards": (ShapeGuard("x", 0, -1),)}, "-1 is no extent"),
        ({"guards": (ShapeGuard("x", 0, ""),)}, "'' is no extent"),
        ({"inputs": (Port("x", 0, SequenceType(F)),)}, "speaks of an input that is no tensor"),
    ],
)
def test_a_broken_program_says_what_is_wrong(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        validate(replace(GOOD, **changes))


def test_a_constant_must_be_in_the_weight_store() -> None:
    with pytest.raises(ProgramError, match="constant 'w' has no bytes") as caught:
        validate(GOOD, require_constants={"v"})
    assert caught.value.operand == "%1"


def test_a_fault_in_a_body_names_the_way_to_it() -> None:
    good = lower(
        graph_of("""(bool c, float[2] x) => (float[2] y) {
            [choose] y = If (c) <
                then_branch = t () => (float[2] a) { [deep] a = Neg(x) },
                else_branch = e () => (float[2] b) { b = Abs(x) }
            >
        }""")
    )
    validate(good)
    choose = good.instructions[0]
    body = choose.op.bodies()["then_branch"]
    inner = replace(body.instructions[0], inputs=(1,))
    broken = replace(body, instructions=(inner,))
    attributes = {**choose.op.attributes, "then_branch": broken}
    bad = replace(good, instructions=(replace(choose, op=replace(choose.op, attributes=attributes)),))
    with pytest.raises(
        ProgramError, match=r"main, instruction 0, then_branch: instruction 0 reads slot %1"
    ) as caught:
        validate(bad)
    assert caught.value.node == "deep"


def test_captures_of_bodies_must_agree_with_the_operation() -> None:
    body = Program("b", (), (Port("x", 0, F),), (), (Port("x", 0, F),), 1, n_captures=0)
    many = replace(op("If", 0, cases=(body,)), domain="custom", present_inputs=(), n_captures=1)
    program = replace(GOOD, instructions=(row(many, (0,), (2,)), GOOD.instructions[1]))
    with pytest.raises(ProgramError, match="captures 1 values, but its cases expects 0"):
        validate(program)
    with pytest.raises(ProgramError, match="leaves a captured value out"):
        validate(replace(GOOD, instructions=(row(many, (NO_SLOT,), (2,)), GOOD.instructions[1])))


def test_bodies_that_nest_too_deep_are_refused() -> None:
    program = Program("leaf", (), (Port("x", 0, F),), (), (Port("x", 0, F),), 1)
    for _ in range(MAX_DEPTH + 1):
        nest = Operation("custom", "Nest", 1, {"body": program}, (True,), (True,))
        program = Program("p", (row(nest, (0,), (1,)),), (Port("x", 0, F),), (), (Port("y", 1, F),), 2)
    with pytest.raises(ProgramError, match="nest deeper"):
        validate(program)


@st.composite
def mutants(draw: st.DrawFn) -> Program:
    program = lower(draw(random_graphs()))
    for _ in range(draw(st.integers(1, 2))):
        program = mutated(draw, program)
    return program


@given(random_graphs())
def test_the_independent_checker_accepts_what_lowering_gives(graph: ir.Graph) -> None:
    assert holds(lower(graph))


@given(mutants())
def test_a_mutated_program_is_refused_exactly_when_the_independent_checker_refuses_it(
    program: Program,
) -> None:
    if holds(program):
        validate(program)
    else:
        with pytest.raises(ProgramError):
            validate(program)
