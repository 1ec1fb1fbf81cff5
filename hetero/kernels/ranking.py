"""ArgMax, ArgMin and TopK: where the largest and smallest elements along an axis are. Ties go to the lower index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.broadcasting import NUMBERS, one_dtype
from hetero.kernels.operands import axis_of, fail, host_reason, known_scalar
from hetero.kernels.quiet import Quiet
from hetero.kernels.reduction import reduced_shape
from hetero.kernels.widen import NARROW, widened
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

INT64 = np.dtype(np.int64)
SEARCH_ELEMENTS = 1024
"""Along an axis this long, TopK of at most an eighth of it selects before it sorts."""


@kernel("ArgMax", "ArgMin", versions=(1, 11, 12, 13))
def arg(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> int64 indices along `axis`, which stays as extent 1 where `keepdims`."""
    x = tensor(op, specs, 0)
    if one_dtype(op, (x,), NUMBERS) in NARROW:
        return widened(arg, op, specs, xp)
    axis = axis_of(op, int(op.attr("axis", 0)), len(x.shape))
    output = TensorSpec(INT64, reduced_shape(x.shape, (axis,), bool(op.attr("keepdims", 1))))
    n = x.shape[axis]
    if n == 0 and output.size:
        fail(op, f"axis {axis} of {list(x.shape)} has no elements")
    last = bool(op.attr("select_last_index", 0))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, out = inputs[0], outputs[0].reshape(reduced_shape(x.shape, (axis,), False))
        if output.size == 0:
            return partial(out.fill, 0)
        if last:
            source = source[(slice(None),) * axis + (slice(None, None, -1),)]
        find = partial(source.argmax if op.op_type == "ArgMax" else source.argmin, axis, out)
        if not last:
            return find

        def call() -> None:
            find()
            xp.subtract(n - 1, out, out)

        return call

    return computed((output,), bind)


@kernel("TopK", versions=(1,))
@kernel("TopK", versions=(10, 11, 24), values=(1,))
def top_k(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, k (an attribute in version 1) -> the k largest (or smallest) along `axis` in order, and their indices.

    NaN counts as larger than every number.
    """
    x = tensor(op, specs, 0)
    if one_dtype(op, (x,), NUMBERS) in NARROW:
        return widened(top_k, op, specs, xp)
    axis = axis_of(op, int(op.attr("axis", -1)), len(x.shape))
    k = op.attr("k") if op.version == 1 else known_scalar(op, specs, 1, "K")
    n = x.shape[axis]
    if k is None or not 0 <= int(k) <= n:
        fail(op, f"{k} of {n} elements along axis {axis}", "K")
    k = int(k)
    largest = bool(op.attr("largest", 1))
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    present = (*op.present_outputs, False)
    outputs = (
        TensorSpec(x.dtype, shape) if present[0] else None,
        TensorSpec(INT64, shape) if present[1] else None,
    )

    def bind(inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        source = xp.moveaxis(inputs[0], axis, -1)
        targets = [None if t is None else xp.moveaxis(t, axis, -1) for t in results]

        def call() -> None:
            indices = _ranked(xp, source, k, largest)
            if targets[0] is not None:
                targets[0][...] = xp.take_along_axis(source, indices, -1)
            if len(targets) > 1 and targets[1] is not None:
                targets[1][...] = indices

        return Quiet(call)

    return computed(outputs[: len(op.present_outputs)], bind, capture=host_reason(xp, "sorting allocates"))


def _ranked(xp: Any, x: Array, k: int, largest: bool) -> Array:
    """Indices of the first k of the last axis in descending (or ascending) order."""
    n = x.shape[-1]
    if xp is np and n >= SEARCH_ELEMENTS and 0 < k <= n // 8:
        rows = [_selected(row, k, largest) for row in x.reshape(-1, n)]
        return np.array(rows, np.int64).reshape(*x.shape[:-1], k)
    return _sorted(xp, x, k, largest)


def _sorted(xp: Any, x: Array, k: int, largest: bool) -> Array:
    if not largest:
        return xp.argsort(x, axis=-1, kind="stable")[..., :k]
    # The stable ascending order of the reversed axis, read backwards, is descending with lower indices first.
    n = x.shape[-1]
    ascending = xp.argsort(x[..., ::-1], axis=-1, kind="stable")
    return n - 1 - ascending[..., ::-1][..., :k]


def _selected(row: Array, k: int, largest: bool) -> Array:
    """`_sorted` of one row, sorting only what is at least (most) the k-th element."""
    n = row.shape[0]
    bound = np.partition(row, n - k if largest else k - 1)[n - k if largest else k - 1]
    if bound != bound:  # NaNs reach into the first k
        return _sorted(np, row, k, largest)
    # Written so that NaNs count as large.
    candidates = np.flatnonzero(~(row < bound) if largest else row <= bound)
    return candidates[_sorted(np, row[candidates], k, largest)]
