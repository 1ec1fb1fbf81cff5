"""Programs print so that every fact can be read off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hetero.program.text import format_program
from tests.program.graphs import graph_of, lower
from tests.program.test_lower import NESTED


def test_a_program_prints_ports_types_slots_last_uses_guards_and_nodes() -> None:
    program = lower(
        graph_of("""(float[n, 2] x, float m) => (float[n, 2] y) <float[2] w = {1.0, 2.0}> {
            [add] a = Add(x, w)
            [clip] b = Clip(a, , m)
            [split] y, unused = Split <axis = 1> (b)
        }""")
    )
    assert format_program(program) == str(program)
    assert str(program).splitlines() == [
        "program main: 7 slots",
        "  opsets ai.onnx 17",
        "  input %0 x: float[n, 2]",
        "  input %1 m: float[]",
        "  constant %2 w: float[2]",
        "  guard x[0] == n",
        "  guard x[1] == 2",
        "  %3: ? = Add-14(%0!, %2!)  #0 'add' backend",
        "  %4: ? = Clip-13(%3!, _, %1!)  #1 'clip' backend",
        "  %5: float[n, 2], %6: ? = Split-13(%4!, axis=1)  #2 'split' backend",
        "  output y = %5",
    ]


def test_bodies_are_indented_below_their_instruction_with_their_captures() -> None:
    lines = str(lower(graph_of(NESTED))).splitlines()
    assert "    then_branch = program outer.then_branch: 5 slots, 3 captured" in lines
    assert "      capture %0 w: ?" in lines
    assert "        else_branch = program inner.else_branch: 4 slots, 3 captured" in lines
    assert "          %3: float[2] = Relu-14(%0!)  #0 backend" in lines


def test_long_attributes_are_cut_and_small_tensors_shown() -> None:
    program = lower(graph_of("(float[2] x) => (float[2] y) { y = Relu(x) }"))
    [row] = program.instructions
    attributes = {
        "big": np.zeros((100, 100), np.float32),
        "small": np.array([1, 2], np.int64),
        "text": "x" * 1000,
        "many": tuple(range(1000)),
    }
    changed = replace(program, instructions=(replace(row, op=replace(row.op, attributes=attributes)),))
    text = str(changed)
    assert "big=float32[100, 100]" in text
    assert "small=int64[2] [1, 2]" in text
    assert max(len(line) for line in text.splitlines()) < 250


def test_a_damaged_program_still_prints() -> None:
    program = lower(graph_of("(float[2] x) => (float[2] y) { y = Relu(x) }"))
    [row] = program.instructions
    broken = replace(program, instructions=(replace(row, types=(), last_use=(), inputs=(99,)),))
    assert "%1: ? = Relu-14(%99)" in str(broken)
