"""Shape arithmetic: the operators that models count extents with, on small integer vectors, without a kernel.

Compiling a kernel, giving it memory and binding it takes ten times as long as adding two integers. What is computed
here is what the kernels would give, to the bit; anything unusual (other dtypes, more axes, an index out of range) is
left to them, errors included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero.kernels.layout import clamped_slice
from hetero.program.operation import Operation
from hetero.types import HostArray, Spec, TensorSpec

MOST_ELEMENTS = 64
"""Of an operand or a result. Beyond it a kernel costs little in comparison."""
_INT64: np.dtype[Any] = np.dtype(np.int64)
_INT32: np.dtype[Any] = np.dtype(np.int32)
_BOOL: np.dtype[Any] = np.dtype(np.bool_)
_WHOLE = frozenset((_INT64, _INT32))
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
    evaluate = _OF_VALUES.get(op.op_type)
    if evaluate is None or len(op.present_outputs) != 1:
        return None
    for value in values:
        if value is not None and (
            value.ndim > 1
            or value.size > MOST_ELEMENTS
            or (value.dtype not in _WHOLE and value.dtype != _BOOL)
        ):
            return None
    return evaluate(op, values)


# -- of shapes -----------------------------------------------------------------------------------------------------
def _shape(op: Operation, spec: TensorSpec) -> HostArray:
    rank = len(spec.shape)
    start, end = (
        min(max(a + rank if a < 0 else a, 0), rank) for a in (op.attr("start", 0), op.attr("end", rank))
    )
    return np.array(spec.shape[start:end], _INT64)


def _size(op: Operation, spec: TensorSpec) -> HostArray:
    return np.array(spec.size, _INT64)


# -- of values -----------------------------------------------------------------------------------------------------
def _binary(op: Operation, values: Values) -> HostArray | None:
    pair = _pair(values)
    if pair is None:
        return None
    a, b, shape = pair
    out = np.empty(shape, _BOOL if op.op_type in _COMPARING else a.dtype)
    _UFUNCS[op.op_type](a, b, out=out)
    return out


def _div(op: Operation, values: Values) -> HostArray | None:
    """Truncated towards zero; by 0, and the least integer by -1, are the kernel's."""
    pair = _pair(values)
    if pair is None or not np.all(pair[1] > 0):
        return None
    a, b, shape = pair
    out = np.empty(shape, a.dtype)
    np.fmod(a, b, out=out)
    np.subtract(a, out, out=out)
    np.floor_divide(out, b, out=out)
    return out


def _pair(values: Values) -> tuple[HostArray, HostArray, tuple[int, ...]] | None:
    """Two operands of one integer dtype, and the shape that they broadcast to."""
    if len(values) != 2:
        return None
    a, b = values
    if a is None or b is None or a.dtype != b.dtype or a.dtype not in _WHOLE:
        return None
    shape = _common(a, b)
    return None if shape is None else (a, b, shape)


def _common(*arrays: HostArray) -> tuple[int, ...] | None:
    """The shape that scalars and vectors broadcast to."""
    shapes = {x.shape for x in arrays}
    long = {s for s in shapes if s not in ((), (1,))}
    if len(long) > 1:
        return None
    return long.pop() if long else max(shapes, key=len)


def _where(op: Operation, values: Values) -> HostArray | None:
    if len(values) != 3:
        return None
    condition, a, b = values
    if condition is None or a is None or b is None or condition.dtype != _BOOL or a.dtype != b.dtype:
        return None
    if _common(condition, a, b) is None:
        return None
    return np.asarray(np.where(condition, a, b))


def _gather(op: Operation, values: Values) -> HostArray | None:
    data, indices = values
    if data is None or indices is None or data.ndim != 1 or op.attr("axis", 0) not in (0, -1):
        return None
    if indices.dtype not in _WHOLE or any(not -data.size <= k < data.size for k in indices.flat):
        return None
    return np.asarray(data[indices])


def _unsqueeze(op: Operation, values: Values) -> HostArray | None:
    data = values[0]
    return data.reshape(1) if data is not None and data.ndim == 0 and _axis_0(op, values) else None


def _squeeze(op: Operation, values: Values) -> HostArray | None:
    data = values[0]
    if data is None or data.shape != (1,):
        return None
    every = op.attr("axes") is None if op.version < 13 else len(values) < 2 or values[1] is None
    return data.reshape(()) if every or _axis_0(op, values) else None


def _axis_0(op: Operation, values: Values) -> bool:
    """Whether `axes` (an attribute before version 13) names the one axis that there is."""
    if op.version < 13:
        return tuple(op.attr("axes") or ()) in ((0,), (-1,))
    axes = values[1] if len(values) > 1 else None
    return axes is not None and axes.dtype == _INT64 and axes.shape == (1,) and int(axes[0]) in (0, -1)


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
    return np.arange(count, dtype=_INT64) * delta + start if count <= MOST_ELEMENTS else None


_COMPARING = frozenset(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"))
_UFUNCS: dict[str, Any] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum,
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
}  # fmt: skip
_OF_SPECS: dict[str, Callable[[Operation, TensorSpec], HostArray]] = {"Shape": _shape, "Size": _size}
_OF_VALUES: dict[str, Evaluate] = {
    **dict.fromkeys(_UFUNCS, _binary), "Div": _div, "Where": _where, "Gather": _gather, "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze, "Concat": _concat, "Slice": _slice, "Cast": _cast, "Range": _range,
}  # fmt: skip
OPERATORS = frozenset((*_OF_SPECS, *_OF_VALUES))
"""What is computed here, where it is small."""
