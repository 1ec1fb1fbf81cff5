"""Shape arithmetic: the operators that models count extents and mask positions with, on small arrays, without a kernel.

Compiling a kernel, giving it memory and binding it takes several times as long as adding two integers, or comparing
some hundred. What is computed here is what the kernels would give, to the bit; anything unusual (other dtypes, an index
out of range) is left to them, errors included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero.kernels.layout import clamped_slice
from hetero.program.operation import Operation
from hetero.types import HostArray, Spec, TensorSpec

MOST_ELEMENTS = 64
"""Of an operand or a result that is looked at one by one."""
MOST_POSITIONS = 4096
"""Of one that NumPy takes as a whole. Beyond it a kernel costs little in comparison."""
_INT64: np.dtype[Any] = np.dtype(np.int64)
_INT32: np.dtype[Any] = np.dtype(np.int32)
_BOOL: np.dtype[Any] = np.dtype(np.bool_)
_WHOLE = frozenset((_INT64, _INT32))
_TRUTHS = frozenset((_BOOL,))
_NOTHING = np.bool_(False)
_CODES: dict[int, np.dtype[Any]] = {7: _INT64, 6: _INT32}
"""ONNX's numbers of the dtypes that Cast is computed for."""
Values = Sequence[HostArray | None]
Evaluate = Callable[[Operation, Values], "HostArray | None"]


def evaluated(op: Operation, specs: Sequence[Spec], values: Values) -> HostArray | None:
    """The one result of `op` over operands of these specs and values; None where a kernel has to compute it."""
    if op.domain:
        return None
    of_specs = _OF_SPECS.get(op.op_type)
    if of_specs is not None:
        return of_specs(op, specs[0]) if isinstance(specs[0], TensorSpec) else None
    whole = _OF_ARRAYS.get(op.op_type)
    evaluate = _OF_VECTORS.get(op.op_type) if whole is None else whole
    if evaluate is None or len(op.present_outputs) != 1:
        return None
    most, axes = (MOST_ELEMENTS, 1) if whole is None else (MOST_POSITIONS, MOST_ELEMENTS)
    for value in values:
        if value is None:
            continue
        if value.ndim > axes or value.size > most or (value.dtype not in _WHOLE and value.dtype != _BOOL):
            return None
    return evaluate(op, values)


# -- of shapes -----------------------------------------------------------------------------------------------------
def _shape(op: Operation, spec: TensorSpec) -> HostArray:
    if not op.attributes:
        return np.array(spec.shape, _INT64)
    rank = len(spec.shape)
    start, end = (
        min(max(a + rank if a < 0 else a, 0), rank) for a in (op.attr("start", 0), op.attr("end", rank))
    )
    return np.array(spec.shape[start:end], _INT64)


def _size(op: Operation, spec: TensorSpec) -> HostArray:
    return np.array(spec.size, _INT64)


# -- of arrays -----------------------------------------------------------------------------------------------------
def _binary(op: Operation, values: Values) -> HostArray | None:
    pair = _pair(op, values, _WHOLE)
    if pair is None:
        return None
    a, b, shape = pair
    out = np.empty(shape, _BOOL if op.op_type in _COMPARING else a.dtype)
    _UFUNCS[op.op_type](a, b, out=out)
    return out


def _logical(op: Operation, values: Values) -> HostArray | None:
    pair = _pair(op, values, _TRUTHS)
    if pair is None:
        return None
    a, b, shape = pair
    out = np.empty(shape, _BOOL)
    _LOGICAL[op.op_type](a, b, out=out)
    return out


def _not(op: Operation, values: Values) -> HostArray | None:
    data = values[0]
    if data is None or data.dtype != _BOOL:
        return None
    out = np.empty(data.shape, _BOOL)
    np.logical_not(data, out=out)
    return out


def _div(op: Operation, values: Values) -> HostArray | None:
    """Truncated towards zero; by 0, and the least integer by -1, are the kernel's."""
    pair = _pair(op, values, _WHOLE)
    if pair is None or not np.all(pair[1] > 0):
        return None
    a, b, shape = pair
    out = np.empty(shape, a.dtype)
    np.fmod(a, b, out=out)
    np.subtract(a, out, out=out)
    np.floor_divide(out, b, out=out)
    return out


def _pair(
    op: Operation, values: Values, dtypes: frozenset[np.dtype[Any]]
) -> tuple[HostArray, HostArray, tuple[int, ...]] | None:
    """Two operands of one of `dtypes`, and the shape that they broadcast to."""
    if len(values) != 2 or op.attr("broadcast") is not None:  # early versions broadcast in a way of their own
        return None
    a, b = values
    if a is None or b is None or a.dtype != b.dtype or a.dtype not in dtypes:
        return None
    shape = _common(a, b)
    return None if shape is None else (a, b, shape)


def _common(*arrays: HostArray) -> tuple[int, ...] | None:
    """The shape that they broadcast to; None where they do not, or it is too large."""
    try:
        common = np.broadcast(*arrays)
    except ValueError:
        return None
    return common.shape if common.size <= MOST_POSITIONS else None


def _where(op: Operation, values: Values) -> HostArray | None:
    if len(values) != 3:
        return None
    condition, a, b = values
    if condition is None or a is None or b is None or condition.dtype != _BOOL or a.dtype != b.dtype:
        return None
    if _common(condition, a, b) is None:
        return None
    return np.asarray(np.where(condition, a, b))


def _expand(op: Operation, values: Values) -> HostArray | None:
    if len(values) != 2:
        return None
    data, shape = values
    if (
        data is None
        or shape is None
        or shape.ndim != 1
        or shape.size > MOST_ELEMENTS
        or shape.dtype != _INT64
    ):
        return None
    wanted = shape.tolist()
    if any(extent < 0 for extent in wanted) or math.prod(wanted) > MOST_POSITIONS:
        return None
    if wanted == list(data.shape):
        return data.view()
    common = _common(data, np.broadcast_to(_NOTHING, wanted))
    return None if common is None else np.broadcast_to(data, common).copy()


def _reshape(op: Operation, values: Values) -> HostArray | None:
    """With at most one extent to be found, and none to be taken over."""
    if len(values) != 2:
        return None
    data, shape = values
    if data is None or shape is None or shape.ndim != 1 or shape.size > MOST_ELEMENTS or not data.size:
        return None
    wanted = shape.tolist()
    if wanted.count(-1) > 1 or any(extent < 1 and extent != -1 for extent in wanted):
        return None
    known = math.prod(n for n in wanted if n != -1)
    fits = data.size % known == 0 if -1 in wanted else data.size == known
    return data.reshape(wanted) if fits else None


def _unsqueeze(op: Operation, values: Values) -> HostArray | None:
    data, axes = values[0], _axes(op, values)
    if data is None or axes is None:
        return None
    rank = data.ndim + len(axes)
    if any(not -rank <= a < rank for a in axes):
        return None
    new = {a % rank for a in axes}
    if len(new) != len(axes):
        return None
    old = iter(data.shape)
    return data.reshape([1 if k in new else next(old) for k in range(rank)])


def _squeeze(op: Operation, values: Values) -> HostArray | None:
    data = values[0]
    if data is None:
        return None
    every = op.attr("axes") is None if op.version < 13 else len(values) < 2 or values[1] is None
    if every:
        return data.reshape([n for n in data.shape if n != 1])
    axes, rank = _axes(op, values), data.ndim
    if axes is None or any(not -rank <= a < rank or data.shape[a] != 1 for a in axes):
        return None
    gone = {a % rank for a in axes}
    return data.reshape([n for k, n in enumerate(data.shape) if k not in gone])


def _axes(op: Operation, values: Values) -> list[int] | None:
    """`axes`, an attribute before version 13; None where it is none."""
    if op.version < 13:
        return list(op.attr("axes") or ())
    axes = values[1] if len(values) > 1 else None
    if axes is None or axes.dtype != _INT64 or axes.ndim != 1 or axes.size > MOST_ELEMENTS:
        return None
    return [int(a) for a in axes]


def _range(op: Operation, values: Values) -> HostArray | None:
    if len(values) != 3:
        return None
    bounds = [x.item() for x in values if x is not None and x.size == 1 and x.dtype == _INT64]
    if len(bounds) != 3 or bounds[2] == 0:
        return None
    start, limit, delta = bounds
    if abs(start) > 1 << 40 or abs(limit) > 1 << 40 or abs(delta) > 1 << 40:
        return None
    count = max(0, -((start - limit) // delta))
    if count > MOST_POSITIONS:
        return None
    return (
        np.arange(start, limit, dtype=_INT64)
        if delta == 1
        else np.arange(count, dtype=_INT64) * delta + start
    )


# -- of vectors ----------------------------------------------------------------------------------------------------
def _gather(op: Operation, values: Values) -> HostArray | None:
    data, indices = values
    if data is None or indices is None or data.ndim != 1 or op.attr("axis", 0) not in (0, -1):
        return None
    if indices.dtype not in _WHOLE or any(not -data.size <= k < data.size for k in indices.flat):
        return None
    return np.asarray(data[indices])


def _concat(op: Operation, values: Values) -> HostArray | None:
    parts = [x for x in values if x is not None and x.ndim == 1]
    if not parts or len(parts) != len(values) or op.attr("axis", 1) not in (0, -1):
        return None
    if any(x.dtype != parts[0].dtype for x in parts):
        return None
    return np.concatenate(parts)


def _slice(op: Operation, values: Values) -> HostArray | None:
    if op.version < 10 or len(values) < 3:
        return None
    data, *bounds = values
    starts, ends, axes, steps = (*bounds, None, None)[:4]
    if data is None or data.ndim != 1 or starts is None or ends is None:
        return None
    if any(x is not None and (x.shape != (1,) or x.dtype not in _WHOLE) for x in (starts, ends, axes, steps)):
        return None
    step = 1 if steps is None else int(steps[0])
    if step == 0 or (axes is not None and int(axes[0]) not in (0, -1)):
        return None
    return data[clamped_slice(int(starts[0]), int(ends[0]), step, data.size)[0]].copy()


def _cast(op: Operation, values: Values) -> HostArray | None:
    data = values[0]
    target = _CODES.get(op.attr("to", 0))
    if data is None or target is None:
        return None
    out: HostArray = np.empty(data.shape, target)
    out[...] = data
    return out


_COMPARING = frozenset(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"))
_UFUNCS: dict[str, Any] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum,
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
}  # fmt: skip
_LOGICAL: dict[str, Any] = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}
_OF_SPECS: dict[str, Callable[[Operation, TensorSpec], HostArray]] = {"Shape": _shape, "Size": _size}
_OF_ARRAYS: dict[str, Evaluate] = {
    **dict.fromkeys(_UFUNCS, _binary), **dict.fromkeys(_LOGICAL, _logical), "Not": _not, "Div": _div, "Where": _where,
    "Expand": _expand, "Reshape": _reshape, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Range": _range,
}  # fmt: skip
_OF_VECTORS: dict[str, Evaluate] = {"Gather": _gather, "Concat": _concat, "Slice": _slice, "Cast": _cast}
OPERATORS = frozenset((*_OF_SPECS, *_OF_ARRAYS, *_OF_VECTORS))
"""What is computed here, where it is small."""
