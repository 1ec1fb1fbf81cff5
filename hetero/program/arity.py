"""Arity: how many operands an instruction must have, from its schema, its attributes, its bodies and known shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from hetero.program.operation import Operation
from hetero.program.program import NO_SLOT, Instruction, Program
from hetero.program.schema import signature
from hetero.types import TensorType, ValueType

Types: TypeAlias = Mapping[int, "ValueType | None"]
_Rule: TypeAlias = Callable[[Operation, Sequence[int], int, Types], "str | None"]
"""(operation, its own input slots, number of outputs, types of slots) -> what is wrong."""


def arity_fault(instruction: Instruction, types: Types, schemas: bool = True) -> str | None:
    """What is wrong with the number of operands, or None. `types` knows the slots written so far.

    Where onnx has no schema for the operation, or `schemas` are not asked, only the bodies are held against the
    operands.
    """
    op = instruction.op
    own = instruction.inputs[: len(instruction.inputs) - op.n_captures]
    n_outputs = len(instruction.outputs)
    declared = signature(op.domain, op.op_type, op.version) if schemas else None
    if declared is not None:
        if not declared.min_inputs <= len(own) <= declared.max_inputs:
            return f"takes {_range(declared.min_inputs, declared.max_inputs)} inputs, has {len(own)}"
        if not declared.min_outputs <= n_outputs <= declared.max_outputs:
            return f"has wrong output count {n_outputs}, gives {_range(declared.min_outputs, declared.max_outputs)}"
        for index, slot in enumerate(own):
            if slot == NO_SLOT and (name := declared.required(index)) is not None:
                return f"input {index} ({name}) is required but left out"
    rule = _RULES.get(op.op_type) if not op.domain else None
    return rule(op, own, n_outputs, types) if rule is not None else None


def _range(low: int, high: int) -> str:
    if low == high:
        return str(low)
    return f"{low} or more" if high >= 2**31 - 1 else f"{low} to {high}"


def _body(op: Operation, attribute: str) -> Program | str:
    body = op.attributes.get(attribute)
    return body if isinstance(body, Program) else f"has no body {attribute!r}"


def _formal(body: Program) -> int:
    return len(body.inputs) - body.n_captures


def _if(op: Operation, own: Sequence[int], n_outputs: int, types: Types) -> str | None:
    for attribute in ("then_branch", "else_branch"):
        body = _body(op, attribute)
        if isinstance(body, str):
            return body
        if _formal(body) != 0:
            return f"{attribute} takes {_formal(body)} inputs, a branch takes none"
        if len(body.outputs) != n_outputs:
            return f"has wrong output count {n_outputs}, {attribute} gives {len(body.outputs)}"
    return None


def _loop(op: Operation, own: Sequence[int], n_outputs: int, types: Types) -> str | None:
    body = _body(op, "body")
    if isinstance(body, str):
        return body
    carried = max(len(own) - 2, 0)
    if _formal(body) != carried + 2:
        return f"carries {carried} values, but its body takes {_formal(body)} inputs instead of {carried + 2}"
    if len(body.outputs) != n_outputs + 1:
        return f"has wrong output count {n_outputs}, its body gives {len(body.outputs)} with the condition"
    if n_outputs < carried:
        return f"has wrong output count {n_outputs}, it carries {carried} values"
    return None


def _scan(op: Operation, own: Sequence[int], n_outputs: int, types: Types) -> str | None:
    body = _body(op, "body")
    if isinstance(body, str):
        return body
    # Scan-8 has the optional sequence lengths in front.
    operands = len(own) - (1 if op.version < 9 else 0)
    scanned = op.attr("num_scan_inputs")
    if type(scanned) is not int or not 1 <= scanned <= operands:
        return f"num_scan_inputs must be from 1 to {operands}, is {scanned!r}"
    if _formal(body) != operands:
        return f"has {operands} states and scanned inputs, but its body takes {_formal(body)}"
    if len(body.outputs) != n_outputs:
        return f"has wrong output count {n_outputs}, its body gives {len(body.outputs)}"
    if n_outputs < operands - scanned:
        return f"has wrong output count {n_outputs}, it has {operands - scanned} states"
    return None


def _sequence_map(op: Operation, own: Sequence[int], n_outputs: int, types: Types) -> str | None:
    body = _body(op, "body")
    if isinstance(body, str):
        return body
    if _formal(body) != len(own):
        return f"takes {_formal(body)} inputs as its body does, has {len(own)}"
    if len(body.outputs) != n_outputs:
        return f"has wrong output count {n_outputs}, its body gives {len(body.outputs)}"
    return None


def _split(op: Operation, own: Sequence[int], n_outputs: int, types: Types) -> str | None:
    wanted = op.attr("num_outputs")
    if isinstance(wanted, int) and wanted != n_outputs:
        return f"has wrong output count {n_outputs}, num_outputs is {wanted}"
    sizes = op.attr("split")
    if isinstance(sizes, tuple) and len(sizes) != n_outputs:
        return f"has wrong output count {n_outputs}, split has {len(sizes)} sizes"
    if len(own) > 1 and own[1] != NO_SLOT:
        known = types.get(own[1])
        if isinstance(known, TensorType) and known.shape is not None and len(known.shape) == 1:
            extent = known.shape[0]
            if isinstance(extent, int) and extent != n_outputs:
                return f"has wrong output count {n_outputs}, its split operand holds {extent} sizes"
    return None


def _einsum(op: Operation, own: Sequence[int], n_outputs: int, types: Types) -> str | None:
    equation = op.attr("equation")
    if not isinstance(equation, str):
        return "has no equation"
    terms = equation.split("->")[0].count(",") + 1
    return None if terms == len(own) else f"takes {terms} inputs as its equation says, has {len(own)}"


def _optional(op: Operation, own: Sequence[int], n_outputs: int, types: Types) -> str | None:
    empty = all(slot == NO_SLOT for slot in own)
    return "takes an input or a type, has neither" if empty and op.attr("type") is None else None


_RULES: dict[str, _Rule] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
    "Split": _split,
    "Einsum": _einsum,
    "Optional": _optional,
}
