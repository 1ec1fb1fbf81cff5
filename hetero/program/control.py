"""Control flow before it runs: what the declared types of operands and bodies already contradict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from hetero.program.operation import Operation
from hetero.program.program import NO_SLOT, Instruction, Port, Program
from hetero.types import DataType, OptionalType, SequenceType, TensorType, ValueType

Types: TypeAlias = Mapping[int, "ValueType | None"]


def control_fault(instruction: Instruction, types: Types) -> str | None:
    """What is wrong with an If, Loop or Scan whose number of operands is right, or None.

    `types` knows the slots written so far. Only what is declared on both sides is held against each other: dtypes,
    kinds (tensor or sequence), ranks against axes, extents along scan axes.
    """
    op = instruction.op
    if op.domain:
        return None
    own = instruction.inputs[: len(instruction.inputs) - op.n_captures]
    given = [None if s == NO_SLOT else types.get(s) for s in own]
    if op.op_type == "If":
        return _if(op, given)
    if op.op_type == "Loop":
        return _loop(op, given)
    if op.op_type == "Scan":
        return _scan(op, given) if op.version >= 9 else None
    return None


def conflict(a: ValueType | None, b: ValueType | None) -> bool:
    """Whether two declared types cannot be those of one value. Shapes are not looked at."""
    if a is None or b is None:
        return False
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.dtype is not None and b.dtype is not None and a.dtype != b.dtype
    if isinstance(a, SequenceType | OptionalType) and type(a) is type(b):
        return conflict(a.element, b.element)
    # an optional may be given as what it holds
    if isinstance(a, OptionalType):
        return conflict(a.element, b)
    if isinstance(b, OptionalType):
        return conflict(a, b.element)
    return type(a) is not type(b)


def _body(op: Operation, name: str) -> Program:
    body = op.attributes[name]
    assert isinstance(body, Program), "arity was checked before"
    return body


def _if(op: Operation, given: Sequence[ValueType | None]) -> str | None:
    fault = _scalar(given[0], DataType.BOOL, "the condition")
    if fault is not None:
        return fault
    ends = zip(_body(op, "then_branch").outputs, _body(op, "else_branch").outputs, strict=True)
    for k, (yes, no) in enumerate(ends):
        if conflict(yes.type, no.type):
            return f"output {k} is {yes.type} ({yes.name!r}) of then_branch, but {no.type} ({no.name!r}) of else_branch"
    return None


def _loop(op: Operation, given: Sequence[ValueType | None]) -> str | None:
    body = _body(op, "body")
    trips, condition = given[:2]
    fault = (
        _scalar(trips, DataType.INT64, "M")
        or _scalar(condition, DataType.BOOL, "cond")
        or _scalar(body.outputs[0].type, DataType.BOOL, f"the body's condition {body.outputs[0].name!r}")
    )
    if fault is not None:
        return fault
    n = len(given) - 2
    return _states(given[2:], body.inputs[2 : 2 + n], body.outputs[1 : 1 + n]) or _tensors(
        body.outputs[1 + n :]
    )


def _scan(op: Operation, given: Sequence[ValueType | None]) -> str | None:
    body = _body(op, "body")
    n_scanned = op.attr("num_scan_inputs")
    n = len(given) - n_scanned
    scans = body.outputs[n:]
    fault = _states(given[:n], body.inputs[:n], body.outputs[:n]) or _tensors(scans)
    if fault is not None:
        return fault
    for name, count in (
        ("scan_input_axes", n_scanned),
        ("scan_input_directions", n_scanned),
        ("scan_output_axes", len(scans)),
        ("scan_output_directions", len(scans)),
    ):
        values = op.attr(name)
        if values and len(values) != count:
            return f"{name} has {len(values)} entries for {count} values"
        if values and name.endswith("directions") and not set(values) <= {0, 1}:
            return f"{name} must hold 0 (forwards) or 1 (backwards), has {list(values)}"
    axes = op.attr("scan_input_axes") or (0,) * n_scanned
    return _scanned(given[n:], body.inputs[n : n + n_scanned], axes) or _stacked(
        scans, op.attr("scan_output_axes") or (0,) * len(scans)
    )


def _scalar(declared: ValueType | None, dtype: DataType, what: str) -> str | None:
    """The fault of what must be one element of `dtype`."""
    if declared is None or isinstance(declared, OptionalType):
        return None
    if not isinstance(declared, TensorType) or declared.dtype not in (None, dtype):
        return f"{what} must be one {dtype.name.lower()}, but is {declared}"
    if any(isinstance(d, int) and d != 1 for d in declared.shape or ()):
        return f"{what} must be one {dtype.name.lower()}, but is {declared}"
    return None


def _states(given: Sequence[ValueType | None], formal: Sequence[Port], results: Sequence[Port]) -> str | None:
    for k, (first, port, result) in enumerate(zip(given, formal, results, strict=True)):
        if conflict(first, port.type):
            return f"carried value {k} starts as {first}, but the body takes {port.name!r} as {port.type}"
        if conflict(port.type, result.type) or conflict(first, result.type):
            before = port.type if port.type is not None else first
            return f"carried value {k} is {before}, but the body returns {result.name!r} as {result.type}"
    return None


def _tensors(scans: Sequence[Port]) -> str | None:
    for port in scans:
        if isinstance(port.type, SequenceType):
            return f"scan output {port.name!r} is {port.type}, and only tensors can be stacked"
    return None


def _scanned(given: Sequence[ValueType | None], formal: Sequence[Port], axes: Sequence[int]) -> str | None:
    length: tuple[int, str] | None = None
    for declared, port, axis in zip(given, formal, axes, strict=True):
        if isinstance(declared, SequenceType):
            return f"the scan input for {port.name!r} is {declared}, and only tensors can be scanned"
        if conflict(declared, port.type):
            return f"the scan input for {port.name!r} is {declared}, but the body takes {port.type}"
        if not isinstance(declared, TensorType) or declared.shape is None:
            continue
        rank = len(declared.shape)
        if not -rank <= axis < rank:
            return f"scan_input_axes: axis {axis} is out of range for {port.name!r} of rank {rank}"
        extent = declared.shape[axis]
        if not isinstance(extent, int):
            continue
        if length is not None and length[0] != extent:
            return f"scan inputs differ in length: {length[1]!r} has {length[0]}, {port.name!r} has {extent}"
        length = (extent, port.name)
    return None


def _stacked(scans: Sequence[Port], axes: Sequence[int]) -> str | None:
    for port, axis in zip(scans, axes, strict=True):
        if isinstance(port.type, TensorType) and port.type.shape is not None:
            rank = len(port.type.shape) + 1
            if not -rank <= axis < rank:
                return f"scan_output_axes: axis {axis} is out of range for the stacked {port.name!r} of rank {rank}"
    return None
