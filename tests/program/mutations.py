"""Programs with one thing changed, and an independent, slow and small checker that says whether they still hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from hetero.program.control import control_fault
from hetero.program.program import NO_SLOT, Instruction, Program, ShapeGuard
from hetero.types import DataType, TensorType

_MANY = 10**9
ARITY = {
    "Relu": (1, 1, 1, 1),
    "Add": (2, 2, 1, 1),
    "Concat": (1, _MANY, 1, 1),
    "Split": (1, 2, 1, _MANY),
    "Clip": (1, 3, 1, 1),
    "If": (1, 1, 1, _MANY),
    "Loop": (2, _MANY, 1, _MANY),
}
"""Fewest and most inputs, fewest and most outputs, of the operators in random graphs."""


def _required(op_type: str, position: int) -> bool:
    """Whether an operator in random graphs must be given this input."""
    if op_type == "Loop":
        return position >= 2
    return position == 0 or op_type in ("Add", "Concat")


def holds(program: Program) -> bool:
    """Whether the program keeps every rule, by scanning all pairs."""
    rows = program.instructions
    ports = [*program.inputs, *program.constants]
    written = [p.slot for p in ports] + [s for r in rows for s in r.outputs if s != NO_SLOT]
    if len(written) != program.n_slots or sorted(written) != list(range(len(written))):
        return False
    if not program.outputs:
        return False
    if not 0 <= program.n_captures <= len(program.inputs) or len({p.name for p in ports}) != len(ports):
        return False
    results = [p.slot for p in program.outputs]
    if not set(results) <= set(written):
        return False
    for at, row in enumerate(rows):
        before = {p.slot for p in ports} | {s for r in rows[:at] for s in r.outputs}
        later = [s for r in rows[at + 1 :] for s in r.inputs] + results
        if any(s != NO_SLOT and (s < 0 or s not in before) for s in row.inputs):
            return False
        if len(row.last_use) > len(row.inputs) or len(row.types) != len(row.outputs):
            return False
        flagged = [s for s, last in zip(row.inputs, row.last_use, strict=False) if last]
        if any(s == NO_SLOT or s in later for s in flagged) or not _operands_hold(row):
            return False
        types = {p.slot: p.type for p in ports}
        types.update((s, t) for r in rows[:at] for s, t in zip(r.outputs, r.types, strict=True))
        if control_fault(row, types) is not None:  # which has tests of its own
            return False
    ranks = {p.name: p.type.shape for p in program.inputs if isinstance(p.type, TensorType)}
    most = {name: 99 if shape is None else len(shape) for name, shape in ranks.items()}
    return all(
        g.input in most and 0 <= g.axis < most[g.input] and g.dim not in ("", -1) for g in program.guards
    )


def _operands_hold(row: Instruction) -> bool:
    op, n_outputs = row.op, len(row.outputs)
    n_own = len(row.inputs) - op.n_captures
    if not 0 <= n_own <= len(row.inputs):
        return False
    own = row.inputs[:n_own]
    least_in, most_in, least_out, most_out = ARITY[op.op_type]
    if not (least_in <= n_own <= most_in and least_out <= n_outputs <= most_out):
        return False
    if [s != NO_SLOT for s in own] != list(op.present_inputs) or NO_SLOT in row.inputs[n_own:]:
        return False
    if [s != NO_SLOT for s in row.outputs] != list(op.present_outputs) or not any(op.present_outputs):
        return False
    if any(s == NO_SLOT and _required(op.op_type, k) for k, s in enumerate(own)):
        return False
    bodies = list(op.bodies().values())
    if op.op_type not in ("If", "Loop"):
        return not bodies and op.n_captures == 0
    formal = 0 if op.op_type == "If" else n_own
    results = n_outputs + (0 if op.op_type == "If" else 1)
    return all(
        b.n_captures == op.n_captures
        and len(b.inputs) - b.n_captures == formal
        and len(b.outputs) == results
        and n_outputs >= formal - 2
        and holds(b)
        for b in bodies
    )


def mutated(draw: st.DrawFn, program: Program) -> Program:
    """The program, or a body inside it, with one random change."""
    if not program.instructions:
        return _of_program(draw, program)
    at = draw(st.integers(0, len(program.instructions) - 1))
    row = program.instructions[at]
    bodies = row.op.bodies()
    places = ["program", "instruction", "instruction"] + (["body", "body"] if bodies else [])
    place = draw(st.sampled_from(places))
    if place == "program":
        return _of_program(draw, program)
    if place == "instruction":
        return _with(program, at, _of_instruction(draw, row, program.n_slots))
    key = draw(st.sampled_from(sorted(bodies)))
    attributes = {**row.op.attributes, key: mutated(draw, bodies[key])}
    return _with(program, at, replace(row, op=replace(row.op, attributes=attributes)))


def _with(program: Program, at: int, row: Instruction) -> Program:
    rows = list(program.instructions)
    rows[at] = row
    return replace(program, instructions=tuple(rows))


def _of_program(draw: st.DrawFn, program: Program) -> Program:
    slot = draw(st.integers(-2, program.n_slots + 1))
    rows = list(program.instructions)
    kinds = ["slots", "captures", "output", "no outputs", "input", "drop input", "guard"]
    kind = draw(st.sampled_from([*kinds, "swap", "remove", "repeat"] if rows else kinds))
    if kind == "slots":
        return replace(program, n_slots=program.n_slots + draw(st.sampled_from([-1, 1, 2**40])))
    if kind == "captures":
        return replace(program, n_captures=program.n_captures + draw(st.sampled_from([-1, 1])))
    if kind == "no outputs":
        return replace(program, outputs=program.outputs[1:])
    if kind == "output" and program.outputs:
        return replace(program, outputs=(replace(program.outputs[0], slot=slot), *program.outputs[1:]))
    if kind == "input" and program.inputs:
        return replace(program, inputs=(replace(program.inputs[0], slot=slot), *program.inputs[1:]))
    if kind == "drop input":
        return replace(program, inputs=program.inputs[1:])
    if kind == "guard":
        name = draw(st.sampled_from(["nowhere", *[p.name for p in program.inputs]]))
        dim: int | str = draw(st.sampled_from(["n", ""]) | st.sampled_from([3, -1]))
        guard = ShapeGuard(name, draw(st.integers(-1, 2)), dim)
        return replace(program, guards=(*program.guards, guard))
    at, other = (draw(st.integers(0, max(len(rows) - 1, 0))) for _ in range(2))
    if kind == "swap":
        rows[at], rows[other] = rows[other], rows[at]
    elif kind == "remove":
        del rows[at]
    elif kind == "repeat":
        rows.insert(other, rows[at])
    return replace(program, instructions=tuple(rows))


def _of_instruction(draw: st.DrawFn, row: Instruction, n_slots: int) -> Instruction:
    slot = draw(st.integers(-2, n_slots + 1))
    kind = draw(
        st.sampled_from(["input", "inputs", "output", "outputs", "flag", "flags", "types", "captures"])
    )
    in_step = draw(st.booleans())
    changed = row
    if kind == "input" and row.inputs:
        changed = replace(row, inputs=_set(draw, row.inputs, slot))
    elif kind == "inputs":
        changed = replace(row, inputs=_resized(draw, row.inputs, slot))
    elif kind == "output" and row.outputs:
        changed = replace(row, outputs=_set(draw, row.outputs, slot))
    elif kind == "outputs":
        outputs = _resized(draw, row.outputs, slot)
        types = (TensorType(DataType.FLOAT),) * len(outputs) if in_step else row.types
        changed = replace(row, outputs=outputs, types=types)
    elif kind == "flag" and row.last_use:
        k = draw(st.integers(0, len(row.last_use) - 1))
        changed = replace(row, last_use=(*row.last_use[:k], not row.last_use[k], *row.last_use[k + 1 :]))
    elif kind == "flags":
        changed = replace(row, last_use=_resized(draw, row.last_use, in_step))
    elif kind == "types":
        changed = replace(row, types=_resized(draw, row.types, None))
    elif kind == "captures":
        step = draw(st.sampled_from([-1, 1]))
        return replace(row, op=replace(row.op, n_captures=row.op.n_captures + step))
    if not in_step:
        return changed
    # The operation is told of the change, so that the fault, if there is one, lies deeper.
    own = changed.inputs[: max(len(changed.inputs) - row.op.n_captures, 0)]
    present = tuple(s != NO_SLOT for s in own), tuple(s != NO_SLOT for s in changed.outputs)
    return replace(changed, op=replace(row.op, present_inputs=present[0], present_outputs=present[1]))


def _set(draw: st.DrawFn, values: Sequence[int], value: int) -> tuple[int, ...]:
    k = draw(st.integers(0, len(values) - 1))
    return (*values[:k], value, *values[k + 1 :])


def _resized(draw: st.DrawFn, values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    return draw(st.sampled_from([values[1:], values[:-1], (*values, value), (value, *values)]))
