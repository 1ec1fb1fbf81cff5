"""Operators that find positions by value: NonZero, Unique, Compress, OneHot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, dynamic, kernel, tensor
from hetero.kernels.limits import bounded
from hetero.kernels.operands import axis_of, fail, host_reason, known_scalar
from hetero.kernels.workspace import carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec


@kernel("NonZero", versions=(9, 13), strided=True)
def non_zero(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The indices of the elements that are not zero, [rank, n] in row-major order; [0, n] for a scalar."""
    x = tensor(op, specs, 0)
    rank = len(x.shape)

    def run(inputs: Sequence[Any]) -> tuple[Array, ...]:
        if rank == 0:
            return (xp.empty((0, int(bool(inputs[0]))), xp.int64),)
        return (xp.stack(xp.nonzero(inputs[0])).astype(xp.int64, copy=False),)

    return dynamic(run)


@kernel("Compress", versions=(9, 11, 28), strided=True)
def compress(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The slices along `axis` (the elements, without it) whose condition holds; a short condition is False."""
    x, condition = tensor(op, specs, 0), tensor(op, specs, 1)
    if len(condition.shape) != 1:
        fail(op, f"must have one axis, has shape {list(condition.shape)}", "condition")
    axis = op.attr("axis")
    at = None if axis is None else axis_of(op, axis, len(x.shape))
    extent = x.size if at is None else x.shape[at]

    def run(inputs: Sequence[Any]) -> tuple[Array, ...]:
        data, picked = inputs[0], inputs[1]
        if picked.shape[0] > extent and bool(picked[extent:].any()):
            fail(op, f"selects index {int(picked.nonzero()[0][-1])} of an extent of {extent}", "condition")
        index = picked[:extent].nonzero()[0]
        if at is None:
            return (data.reshape(-1)[index],)
        return (data[(*(slice(None),) * at, index)],)

    return dynamic(run)


def _ranks(rows: Array, xp: Any) -> Array:
    """For each of `rows` (any shape behind axis 0) the rank among the distinct ones, compared element by element.

    Elements are replaced by the ranks of their values first: unique's own axis= takes neither strings nor
    empty slices.
    """
    n = rows.shape[0]
    width = math.prod(rows.shape[1:])
    _, codes = xp.unique(rows, return_inverse=True)
    codes = codes.reshape(n, width)
    if n == 0 or width == 0:
        return xp.zeros(n, xp.int64)
    order = xp.lexsort(codes.T[::-1])
    ordered = codes[order]
    fresh = xp.zeros(n, xp.int64)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    ranks = xp.empty(n, xp.int64)
    ranks[order] = xp.cumsum(fresh)
    return ranks


@kernel("Unique", versions=(11, 28), strided=True)
def unique(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Distinct elements (or slices along `axis`), sorted or by first occurrence, with where they came from."""
    x = tensor(op, specs, 0)
    axis = op.attr("axis")
    at = None if axis is None else axis_of(op, axis, len(x.shape))
    by_value = bool(op.attr("sorted", 1))

    def run(inputs: Sequence[Any]) -> tuple[Array | None, ...]:
        data = inputs[0]
        rows = data.reshape(-1) if at is None else data.swapaxes(0, at)
        key = rows if at is None else _ranks(rows, xp)
        _, first, inverse, counts = xp.unique(key, return_index=True, return_inverse=True, return_counts=True)
        inverse = inverse.reshape(-1)
        if not by_value:
            order = xp.argsort(first)
            rank = xp.empty_like(order)
            rank[order] = xp.arange(len(order))
            first, counts, inverse = first[order], counts[order], rank[inverse]
        distinct = rows[first] if at is None else rows[first].swapaxes(0, at)
        results = (distinct, *(a.astype(xp.int64, copy=False) for a in (first, inverse, counts)))
        return tuple(
            r if op.present_outputs[i] else None for i, r in enumerate(results[: len(op.present_outputs)])
        )

    return dynamic(run)


@kernel("OneHot", versions=(9, 11, 28), values=(1,), strided=True)
def one_hot(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """on_value where an index (truncated to an integer) points along the new axis, off_value elsewhere.

    Negative indices count from the end since 11; before, and beyond the depth, they point nowhere.
    """
    indices, values = tensor(op, specs, 0), tensor(op, specs, 2)
    depth = int(known_scalar(op, specs, 1, "depth"))
    if depth < 0:
        fail(op, f"{depth} is negative", "depth")
    if values.shape != (2,):
        fail(op, f"must be [off_value, on_value], has shape {list(values.shape)}", "values")
    rank = len(indices.shape) + 1
    axis = axis_of(op, op.attr("axis", -1), rank)
    out = bounded(op, values.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:]))
    masks = ((out.shape, np.bool_), (out.shape, np.bool_))
    wraps = op.version >= 11 and indices.dtype.kind != "u"
    whole = indices.dtype.kind in "iu"

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        picked = inputs[0].reshape((*indices.shape[:axis], 1, *indices.shape[axis:]))
        off, on, target = inputs[2][0:1].reshape(()), inputs[2][1:2].reshape(()), outputs[0]
        front = xp.arange(depth).reshape((depth,) + (1,) * (rank - 1 - axis))
        back = front - depth
        hit, also = carve(workspace, *masks)

        def call() -> None:
            index = picked if whole else picked.astype(xp.int64)
            xp.equal(index, front, out=hit)
            if wraps:
                xp.equal(index, back, out=also)
                xp.logical_or(hit, also, out=hit)
            xp.copyto(target, off)
            xp.copyto(target, on, where=hit)

        return call

    capture = None if whole else host_reason(xp, "converts its indices into a new array")
    return computed([out], bind, workspace_bytes=carved_bytes(*masks), capture=capture)
