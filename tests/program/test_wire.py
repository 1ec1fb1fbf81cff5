"""Programs survive their bytes, byte for byte; damaged bytes give a valid program or an error, never anything else."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.errors import ProgramError
from hetero.program.limits import MAX_DEPTH
from hetero.program.operation import Operation
from hetero.program.packing import dumps, loads
from hetero.program.program import Instruction, Port, Program, ShapeGuard
from hetero.program.validate import validate
from hetero.program.wire import MAGIC, decode, encode, pack_program, unpack_program
from hetero.types import DataType, OptionalType, SequenceType, TensorType
from tests.program.graphs import graph_of, lower, random_graphs
from tests.program.test_lower import NESTED

F = TensorType(DataType.FLOAT, ("n", 2))


def relu_with(**attributes: Any) -> Program:
    """One custom node with these attributes."""
    op = Operation("custom", "Act", 3, attributes, (True,), (True,), name="act", opset=4)
    rows = (Instruction(op, (0,), (1,), (F,), (True,), 5),)
    guards = (ShapeGuard("x", 0, "n"), ShapeGuard("x", 1, 2))
    ports = (Port("x", 0, F),), (), (Port("y", 1, OptionalType(SequenceType(F))),)
    return Program("p", rows, *ports, 2, guards, 0, {"": 17, "custom": 4})


RICH = relu_with(
    a=1, b=float("nan"), c="text", d=b"raw", e=(1, 2**40), f=(0.5, -0.0), g=("x", "y"), h=(),
    t=np.array([[1 + 2j]], np.complex128), u=np.array(["é", ""], object), v=F,
)  # fmt: skip


@given(random_graphs())
def test_random_programs_survive(graph: ir.Graph) -> None:
    program = lower(graph)
    data = encode(program)
    back = decode(data)
    assert encode(back) == data
    assert str(back) == str(program)


def test_everything_an_instruction_holds_survives() -> None:
    back = decode(encode(RICH))
    assert encode(back) == encode(RICH)
    assert (back.name, back.n_slots, back.n_captures, back.guards) == ("p", 2, 0, RICH.guards)
    assert dict(back.opsets) == dict(RICH.opsets)
    [row], [want] = back.instructions, RICH.instructions
    assert (row.inputs, row.outputs, row.types, row.last_use) == (
        want.inputs,
        want.outputs,
        want.types,
        want.last_use,
    )
    assert (row.node_index, row.dispatch) == (5, want.dispatch)
    op = row.op
    assert (op.id, op.version, op.opset, op.name) == ("custom::Act", 3, 4, "act")
    assert [type(v) for _, v in sorted(op.attributes.items())] == [
        type(v) for _, v in sorted(want.op.attributes.items())
    ]
    assert [(p.name, p.slot, p.type) for p in back.outputs] == [
        (p.name, p.slot, p.type) for p in RICH.outputs
    ]


def test_bodies_survive_with_their_captures() -> None:
    program = lower(graph_of(NESTED))
    back = decode(encode(program))
    assert str(back) == str(program)
    assert [p.name for p in back.instructions[1].op.bodies()["else_branch"].inputs] == ["w", "x", "c"]


def test_lists_of_bodies_survive() -> None:
    body = Program("b", (), (Port("x", 0, F),), (), (Port("x", 0, F),), 1)
    back = decode(encode(relu_with(cases=(body, body))))
    assert [b.name for b in back.instructions[0].op.attributes["cases"]] == ["b", "b"]


def test_bodies_survive_down_to_the_depth_limit_and_no_further() -> None:
    program = Program("leaf", (), (Port("x", 0, F),), (), (Port("x", 0, F),), 1)
    for _ in range(MAX_DEPTH):
        program = relu_with(body=program)
    assert encode(decode(encode(program))) == encode(program)
    with pytest.raises(ProgramError, match="nest deeper"):
        encode(relu_with(body=program))


def test_the_order_of_attributes_and_opsets_does_not_change_the_bytes() -> None:
    [row] = RICH.instructions
    turned = replace(row, op=replace(row.op, attributes=dict(reversed([*row.op.attributes.items()]))))
    other = replace(RICH, instructions=(turned,), opsets=dict(reversed([*RICH.opsets.items()])))
    assert encode(other) == encode(RICH)


def test_another_process_with_another_hash_seed_writes_the_same_bytes() -> None:
    code = (
        "import sys; from tests.program.test_wire import RICH, lower, graph_of, NESTED, encode;"
        "sys.stdout.buffer.write(encode(RICH) + encode(lower(graph_of(NESTED))))"
    )
    root, environment = Path(__file__).parents[2], {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code]
    got = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=True).stdout
    assert got == encode(RICH) + encode(lower(graph_of(NESTED)))


def test_equal_operations_are_stored_once() -> None:
    def chain(n: int) -> Program:
        op = Operation("custom", "Act", 1, {"text": "x" * 1000}, (True,), (True,))
        rows = tuple(Instruction(op, (k,), (k + 1,), (F,), (True,), k) for k in range(n))
        return Program("p", rows, (Port("x", 0, F),), (), (Port("y", n, F),), n + 1)

    assert len(encode(chain(100))) < len(encode(chain(1))) + 100 * 15


def test_plain_lists_can_travel_inside_another_message() -> None:
    message = loads(dumps(["plan", pack_program(RICH)]))
    program = unpack_program(message[1])
    validate(program)
    assert encode(program) == encode(RICH)


def test_decoded_constants_are_read_only() -> None:
    array = decode(encode(RICH)).instructions[0].op.attributes["t"]
    assert not array.flags.writeable


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no program"),
        (b"hello there, this is text", "no program"),
        (MAGIC, "no program"),
        (MAGIC + b"\x02\x00", "program format 2, this release reads 1"),
        (MAGIC + b"\x01\x00", "end early"),
        (encode(RICH) + b"\x00", "after the end"),
        (MAGIC + b"\x01\x00" + dumps([[], [], []]), "expected 21 items, got 0"),
        (MAGIC + b"\x01\x00" + dumps([1, [], []]), "string table: expected a list"),
        (MAGIC + b"\x01\x00" + dumps("x"), "program: expected a list, got str"),
    ],
)
def test_bytes_of_something_else_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        decode(data)


def test_decoding_ends_with_validation() -> None:
    [row] = RICH.instructions
    broken = replace(RICH, instructions=(replace(row, inputs=(1,)),))
    with pytest.raises(ProgramError, match="reads slot %1 before anything writes it"):
        decode(encode(broken))


def test_what_has_no_wire_form_is_refused_when_writing() -> None:
    for value in (object(), 2**63, "\ud800", np.float64(1)):
        with pytest.raises(ProgramError):
            encode(relu_with(a=value))
    with pytest.raises(ProgramError):
        encode(replace(RICH, n_slots=2**70))


REPLACEMENTS: list[Any] = [
    None,
    0,
    1,
    -1,
    3,
    2**31,
    2**63,
    1.5,
    "",
    "x",
    b"",
    b"\x01\x00",
    b"\x01\x7f",
    [],
    [[]],
]
SAMPLES = [encode(RICH), encode(lower(graph_of(NESTED)))]


@given(st.sampled_from(SAMPLES), st.data())
def test_every_truncation_is_refused(sample: bytes, data: st.DataObject) -> None:
    with pytest.raises(ProgramError):
        decode(sample[: data.draw(st.integers(0, len(sample) - 1))])


@given(st.sampled_from(SAMPLES), st.data())
def test_mutated_bytes_give_a_valid_program_or_the_one_error(sample: bytes, data: st.DataObject) -> None:
    changed = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(len(MAGIC), len(changed) - 1))
        kind = data.draw(st.sampled_from(["set", "insert", "delete"]))
        if kind == "set":
            changed[at] = data.draw(st.integers(0, 255))
        elif kind == "insert":
            changed[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        else:
            del changed[at]
    _decodes_or_raises(bytes(changed))


@given(st.sampled_from(SAMPLES), st.data())
def test_mutated_messages_give_a_valid_program_or_the_one_error(sample: bytes, data: st.DataObject) -> None:
    """Changes one item of the decoded message, so that most mutants get past msgpack."""
    start = len(MAGIC) + 2
    plain = loads(sample[start:])
    here = plain
    while True:
        at = data.draw(st.integers(0, len(here) - 1))
        if isinstance(here[at], list) and here[at] and data.draw(st.integers(0, 9)):
            here = here[at]
            continue
        here[at] = data.draw(st.sampled_from(REPLACEMENTS))
        break
    _decodes_or_raises(sample[:start] + dumps(plain))


def _decodes_or_raises(data: bytes) -> None:
    try:
        program = decode(data)
    except ProgramError:
        return
    validate(program)
    again = encode(program)
    assert encode(decode(again)) == again
