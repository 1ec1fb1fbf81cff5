"""Normalisations over chosen axes of a tensor: LpNormalization, MeanVarianceNormalization and LRN."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.broadcasting import BOOL, elements, one_dtype
from hetero.kernels.operands import axes_of, axis_of, fail
from hetero.kernels.quiet import quiet
from hetero.kernels.reduction import reduced_shape
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec, TensorSpec

MVN_EPSILON = 1e-9
"""Added to the standard deviation, as the operator's function body does."""


def _lp(xp: Any, p: int, axis: int, x: Array, out: Array, norm: Array, zero: Array) -> None:
    if p == 1:
        xp.absolute(x, out)
        out.sum(axis, None, norm, True)
    else:
        xp.multiply(x, x, out)
        out.sum(axis, None, norm, True)
        xp.sqrt(norm, norm)
    # Only zeros have norm 0, and they stay zeros.
    xp.equal(norm, 0, zero)
    xp.add(norm, zero, norm)
    xp.divide(x, norm, out)


@kernel("LpNormalization", versions=(1, 22))
def lp_norm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> X divided by its `p`-norm (1 or 2) along `axis`; rows of zeros stay zeros."""
    x = tensor(op, specs, 0)
    if one_dtype(op, (x,), FLOATS) in NARROW:
        return widened(lp_norm, op, specs, xp)
    axis = axis_of(op, int(op.attr("axis", -1)), len(x.shape))
    p = op.attr("p", 2)
    if p not in (1, 2):
        fail(op, f"{p} is neither 1 nor 2", "p")
    row = reduced_shape(x.shape, (axis,), True)
    parts: tuple[Part, ...] = ((row, x.dtype), (row, BOOL))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return quiet(_lp, xp, p, axis, inputs[0], outputs[0], *carve(workspace, *parts))

    return computed((TensorSpec(x.dtype, x.shape),), bind, workspace_bytes=carved_bytes(*parts))


def _mvn(xp: Any, axes: tuple[int, ...], count: int, x: Array, out: Array, row: Array, t: Array) -> None:
    x.sum(axes, None, row, True)
    xp.divide(row, count, row)
    xp.subtract(x, row, out)
    xp.multiply(out, out, t)
    t.sum(axes, None, row, True)
    xp.divide(row, count, row)
    xp.sqrt(row, row)
    xp.add(row, MVN_EPSILON, row)
    xp.divide(out, row, out)


@kernel("MeanVarianceNormalization", versions=(9, 13))
def mean_variance_norm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> X with mean 0 and variance 1 over `axes` (default 0, 2, 3)."""
    x = tensor(op, specs, 0)
    if one_dtype(op, (x,), FLOATS) in NARROW:
        return widened(mean_variance_norm, op, specs, xp)
    axes = axes_of(op, op.attr("axes", (0, 2, 3)), len(x.shape))
    count = elements(x.shape[a] for a in axes)
    parts: tuple[Part, ...] = ((reduced_shape(x.shape, axes, True), x.dtype), (x.shape, x.dtype))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return quiet(_mvn, xp, axes, count, inputs[0], outputs[0], *carve(workspace, *parts))

    return computed(
        (TensorSpec(x.dtype, x.shape),), bind, overwrites=((0, 0),), workspace_bytes=carved_bytes(*parts)
    )


def _lrn(
    xp: Any, size: int, factor: float, bias: float, beta: float, x: Array, out: Array, squares: Array
) -> None:
    """x, out, squares: (N, C, S)."""
    channels = x.shape[1]
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    xp.multiply(x, x, squares)
    out[...] = squares
    for shift in range(1, min(after, channels - 1) + 1):
        xp.add(out[:, :-shift], squares[:, shift:], out[:, :-shift])
    for shift in range(1, min(before, channels - 1) + 1):
        xp.add(out[:, shift:], squares[:, :-shift], out[:, shift:])
    xp.multiply(out, factor, out)
    xp.add(out, bias, out)
    xp.power(out, beta, out)
    xp.divide(x, out, out)


@kernel("LRN", versions=(1, 13))
def lrn(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, …) -> X / (bias + alpha / size * sum of squares over `size` neighbouring channels) ** beta."""
    x = tensor(op, specs, 0)
    if one_dtype(op, (x,), FLOATS) in NARROW:
        return widened(lrn, op, specs, xp)
    size = op.attr("size")
    if size is None or size < 1 or len(x.shape) < 2:
        fail(op, f"{size} for an input of shape {list(x.shape)}", "size")
    factor, bias, beta = (float(op.attr(n, d)) for n, d in (("alpha", 1e-4), ("bias", 1.0), ("beta", 0.75)))
    flat = (x.shape[0], x.shape[1], elements(x.shape[2:]))
    parts: tuple[Part, ...] = ((flat, x.dtype),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        arrays = (inputs[0].reshape(flat), outputs[0].reshape(flat), *carve(workspace, *parts))
        return quiet(partial(_lrn, xp, int(size), factor / size, bias, beta), *arrays)

    return computed(
        (TensorSpec(x.dtype, x.shape),), bind, contiguous=(0,), workspace_bytes=carved_bytes(*parts)
    )
