"""A program as readable text: one line per instruction, bodies indented below the one that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hetero.program.program import NO_SLOT, Instruction, Port, Program, is_body
from hetero.types import ValueType

_STEP = "  "
_SHOWN = 40


def format_program(program: Program) -> str:
    """The listing. `%3` is slot 3, `%3!` its last use, `_` an operand left out; `#12` the node's index in its graph.

    ```
    program main: 4 slots
      input %0 x: float[batch, 4]
      constant %1 w: float[4, 8]
      guard x[1] == 4
      %2: float[batch, 8] = MatMul-13(%0!, %1!)  #0 'mm' backend
      %3: float[batch, 8] = Relu-14(%2!)  #1 'act' backend
      output y = %3
    ```
    """
    return "\n".join(_lines(program))


def _lines(program: Program) -> Iterator[str]:
    captures = f", {program.n_captures} captured" if program.n_captures else ""
    yield f"program {program.name}: {program.n_slots} slots{captures}"
    if program.opsets:
        imports = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in sorted(program.opsets.items()))
        yield f"{_STEP}opsets {imports}"
    first_capture = len(program.inputs) - program.n_captures
    for k, port in enumerate(program.inputs):
        yield _STEP + _port("input" if k < first_capture else "capture", port)
    for port in program.constants:
        yield _STEP + _port("constant", port)
    for guard in program.guards:
        yield f"{_STEP}guard {guard.input}[{guard.axis}] == {guard.dim}"
    for instruction in program.instructions:
        yield _STEP + _line(instruction)
        for key, body in sorted(instruction.op.bodies().items(), key=lambda item: item[0].partition("[")[0]):
            rows = _lines(body)
            yield f"{_STEP * 2}{key} = {next(rows)}"
            for row in rows:
                yield _STEP * 2 + row
    for port in program.outputs:
        yield f"{_STEP}output {port.name} = {_slot(port.slot)}"


def _port(role: str, port: Port) -> str:
    return f"{role} {_slot(port.slot)} {port.name}: {_type(port.type)}"


def _line(instruction: Instruction) -> str:
    op = instruction.op
    results = []
    for k, slot in enumerate(instruction.outputs):
        declared = instruction.types[k] if k < len(instruction.types) else None
        results.append(_slot(slot) if slot == NO_SLOT else f"{_slot(slot)}: {_type(declared)}")
    operands = []
    for k, slot in enumerate(instruction.inputs):
        last = k < len(instruction.last_use) and instruction.last_use[k]
        operands.append(_slot(slot) + ("!" if last else ""))
    plain = {k: v for k, v in sorted(op.attributes.items()) if not is_body(v)}
    attributes = "".join(f", {k}={_short(v)}" for k, v in plain.items())
    call = f"{op.id}-{op.version}({', '.join(operands)}{attributes if operands else attributes[2:]})"
    name = f" {op.name!r}" if op.name else ""
    return f"{', '.join(results)} = {call}  #{instruction.node_index}{name} {instruction.dispatch}"


def _slot(slot: int) -> str:
    return "_" if slot == NO_SLOT else f"%{slot}"


def _type(declared: ValueType | None) -> str:
    return "?" if declared is None else str(declared)


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        shown = f"{value.dtype}{list(value.shape)}"
        return f"{shown} {value.tolist()}" if 0 < value.size <= 4 else shown
    text = repr(value) if isinstance(value, str | bytes | tuple | float | int) else str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
