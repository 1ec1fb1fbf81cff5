"""Softmax, LogSoftmax and Hardmax: along one axis, or over everything from an axis on before version 13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.broadcasting import elements, one_dtype
from hetero.kernels.fused import in_turn, piece_elements
from hetero.kernels.operands import axis_of
from hetero.kernels.quiet import Quiet
from hetero.kernels.row_loops import bind_unary, takes_rows
from hetero.kernels.softmax_rows import softmax_rows
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec, TensorSpec


def blocks(op: Operation, x: TensorSpec) -> tuple[int, int, int]:
    """(outer, n, inner): the input as that many blocks whose middle axis is normalised.

    Version 13 normalises `axis` alone (default -1); earlier ones flatten to two dimensions at `axis` (default 1)
    and normalise the second.
    """
    rank = len(x.shape)
    if op.version >= 13:
        axis = axis_of(op, op.attr("axis", -1), max(rank, 1))
        shape = x.shape or (1,)
        return elements(shape[:axis]), shape[axis], elements(shape[axis + 1 :])
    axis = op.attr("axis", 1)
    axis = rank if axis == rank else axis_of(op, axis, max(rank, 1))
    return elements(x.shape[:axis]), elements(x.shape[axis:]), 1


def softmax_into(xp: Any, x: Array, out: Array, row: Array) -> None:
    """out = softmax of x along the middle of three axes; `row` is scratch with that axis 1. `out` may be `x`."""
    x.max(1, row, True)
    xp.subtract(x, row, out)
    xp.exp(out, out)
    out.sum(1, None, row, True)
    xp.divide(out, row, out)


def _log_softmax_into(xp: Any, x: Array, out: Array, row: Array, exponent: Array) -> None:
    x.max(1, row, True)
    xp.subtract(x, row, out)
    xp.exp(out, exponent)
    exponent.sum(1, None, row, True)
    xp.log(row, row)
    xp.subtract(out, row, out)


def _hardmax_into(xp: Any, x: Array, out: Array, row: Array, hit: Array) -> None:
    x.argmax(1, row.reshape(row.shape[0], row.shape[2]))
    places = xp.arange(x.shape[1]).reshape(1, -1, 1)
    xp.equal(places, row, hit)
    out[...] = hit


def _compiled(op: Operation, x: TensorSpec, xp: Any) -> Compiled:
    """The compiled loops over rows."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source = inputs[0]
        outer, n, _ = blocks(op, TensorSpec(source.dtype, source.shape))
        return bind_unary(softmax_rows, outer, n, source, outputs[0])

    def stretch(specs: Sequence[Spec]) -> tuple[TensorSpec, int] | None:
        other = tensor(op, specs, 0)
        outer, n, inner = blocks(op, other)
        return (other, 0) if inner == 1 and takes_rows(xp, outer, n, other.dtype) else None

    return computed(
        (TensorSpec(x.dtype, x.shape),), bind, contiguous=(0,), overwrites=((0, 0),), stretch=stretch
    )


@kernel("Softmax", "LogSoftmax", "Hardmax", versions=(1, 11, 13))
def softmax(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> the same float dtype and shape. Hardmax: 1 at the first maximum along the axis, else 0."""
    x = tensor(op, specs, 0)
    if one_dtype(op, (x,), FLOATS) in NARROW:
        return widened(softmax, op, specs, xp)
    outer, n, inner = blocks(op, x)
    step: Callable[..., None]
    row_dtype: np.dtype[Any] = x.dtype
    extra: tuple[np.dtype[Any], ...] = ()
    if op.op_type == "Softmax":
        step = softmax_into
    elif op.op_type == "LogSoftmax":
        step, extra = _log_softmax_into, (x.dtype,)
    else:
        step, extra, row_dtype = _hardmax_into, (np.dtype(bool),), np.dtype(np.intp)
    if op.op_type == "Softmax" and inner == 1 and takes_rows(xp, outer, n, x.dtype):
        return _compiled(op, x, xp)
    rows = min(outer, max(1, piece_elements(xp, x) // max(1, n * inner)))
    parts: list[Part] = [((rows, 1, inner), row_dtype), *(((rows, n, inner), dtype) for dtype in extra)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if x.size == 0:
            return in_turn([])
        source, out = inputs[0].reshape(outer, n, inner), outputs[0].reshape(outer, n, inner)
        scratch = carve(workspace, *parts)
        return Quiet(
            in_turn(
                [
                    partial(
                        step, xp, source[i : i + rows], out[i : i + rows], *(s[: outer - i] for s in scratch)
                    )
                    for i in range(0, outer, rows)
                ]
            )
        )

    return computed(
        (TensorSpec(x.dtype, x.shape),),
        bind,
        contiguous=(0,),
        overwrites=((0, 0),),
        workspace_bytes=carved_bytes(*parts),
    )
