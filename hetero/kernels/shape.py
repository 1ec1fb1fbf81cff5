"""Operators whose results follow from shapes and small values: Shape, Size, Range, constants. On the host.

Their outputs are host arrays whatever the provider, so they are written with NumPy alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import MemoryLimitError, UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.limits import KNOWN_VALUE_ELEMENTS, MAX_VALUE_ELEMENTS, bounded
from hetero.kernels.operands import fail, known, known_ints
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import STRING, HostArray, Spec, TensorSpec


def constant(value: HostArray) -> Compiled:
    """A kernel whose one output is `value`, which is read-only from here on."""
    value.flags.writeable = False

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return partial(np.copyto, outputs[0], value)

    small = value if value.size <= KNOWN_VALUE_ELEMENTS else None
    return computed([TensorSpec(value.dtype, value.shape, small)], bind)


@kernel(
    "Shape", versions=(1, 13, 15, 19, 21, 23, 24, 25), dispatch=Dispatch.HOST, metadata=True, strided=True
)
def shape(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The extents [start, end) as int64; both are clamped to [0, rank] (since 15)."""
    x = tensor(op, specs, 0)
    rank = len(x.shape)

    def clamped(axis: int) -> int:
        return min(max(axis + rank if axis < 0 else axis, 0), rank)

    return constant(np.array(x.shape[clamped(op.attr("start", 0)) : clamped(op.attr("end", rank))], np.int64))


@kernel("Size", versions=(1, 13, 19, 21, 23, 24, 25), dispatch=Dispatch.HOST, metadata=True, strided=True)
def size(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The number of elements, as an int64 scalar."""
    return constant(np.array(tensor(op, specs, 0).size, np.int64))


def range_length(op: Operation, start: float, limit: float, delta: float) -> int:
    """How many elements Range yields: max(0, ceil((limit - start) / delta)); all ints or all floats.

    Raises: KernelError for a delta of 0 or a number that is not finite, MemoryLimitError past 2^40 elements.
    """
    if delta == 0:
        fail(op, "is 0", "delta")
    if isinstance(delta, int):
        count = int(-((start - limit) // delta))
    else:
        steps = (limit - start) / delta
        if not math.isfinite(steps):
            fail(op, f"cannot count from {start} to {limit} by {delta}")
        count = math.ceil(steps)
    if count > MAX_VALUE_ELEMENTS:
        raise MemoryLimitError(
            f"a range from {start} to {limit} by {delta} would hold {count} elements; the bound is"
            f" {MAX_VALUE_ELEMENTS}",
            op=op.id,
            node=op.name,
        )
    return max(0, count)


@kernel("Range", versions=(11, 27), dispatch=Dispatch.HOST, values=(0, 1, 2), strided=True)
def range_(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """start + i · delta. Floats are computed in float64 (at least `stash_type`) and rounded once."""
    bounds: list[Any] = []
    for i, name in enumerate(("start", "limit", "delta")):
        value = known(op, specs, i, name)
        if value is None or value.size != 1:
            fail(op, "must hold one element", name)
        bounds.append(value.reshape(())[()])
    dtype = bounds[0].dtype
    if any(b.dtype != dtype for b in bounds):
        fail(op, f"start, limit and delta are {', '.join(str(b.dtype) for b in bounds)}")
    whole = dtype.kind in "iu"
    start, limit, delta = ((int if whole else float)(b) for b in bounds)
    wide: type[Any] = np.int64 if whole else np.float64
    out = bounded(op, dtype, (range_length(op, start, limit, delta),))

    def values() -> HostArray:
        steps: HostArray = np.arange(out.size, dtype=wide) * wide(delta) + wide(start)
        return steps.astype(dtype)

    if out.size <= KNOWN_VALUE_ELEMENTS:
        return constant(values())

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return partial(np.copyto, outputs[0], values())

    return computed([out], bind)


@kernel(
    "ConstantOfShape", versions=(9, 20, 21, 23, 24, 25), dispatch=Dispatch.HOST, values=(0,), strided=True
)
def constant_of_shape(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A tensor of the given shape, filled with the one element of `value` (float32 0 by default)."""
    extents = known_ints(op, specs, 0, "input")
    if extents is None or any(d < 0 for d in extents):
        fail(op, f"{extents} is no shape", "input")
    value = np.asarray(op.attr("value", np.zeros(1, np.float32)))
    if value.size != 1:
        fail(op, f"must hold one element, has shape {list(value.shape)}", "value")
    fill = value.reshape(())
    out = bounded(op, fill.dtype, extents)
    if out.size <= KNOWN_VALUE_ELEMENTS:
        out = replace(out, value=np.full(out.shape, fill, fill.dtype))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return partial(np.copyto, outputs[0], fill)

    return computed([out], bind)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def constant_value(op: Operation) -> HostArray:
    """The array a Constant node stands for. Raises: KernelError unless exactly one attribute holds it."""
    given = [name for name in op.attributes if name == "sparse_value" or name.startswith("value")]
    if len(given) != 1:
        fail(op, f"a Constant holds one value, this one has {given or 'none'}")
    name, value = given[0], op.attributes[given[0]]
    match name:
        case "value_int" | "value_ints":
            return np.array(value, np.int64)
        case "value_float" | "value_floats":
            return np.array(value, np.float32)
        case "value_string":
            return np.array(_text(value), STRING)
        case "value_strings":
            return np.array([_text(v) for v in value], STRING)
    if not isinstance(value, np.ndarray):
        raise UnsupportedError(f"{name} is no dense tensor", op=op.id, node=op.name, operand=name)
    return value.copy()


@kernel(
    "Constant",
    versions=(1, 9, 11, 12, 13, 19, 21, 23, 24, 25),
    dispatch=Dispatch.HOST,
    metadata=True,
    strided=True,
)
def constant_node(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The value that the node carries."""
    return constant(constant_value(op))
