"""The Reduce family: axes from an attribute or an input, identity elements for empty extents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, CompileFunction, computed, kernel, tensor
from hetero.kernels.broadcasting import BOOL, NUMBERS, elements, one_dtype
from hetero.kernels.fused import in_turn, piece_elements
from hetero.kernels.operands import axes_of, known_ints
from hetero.kernels.quiet import Quiet
from hetero.kernels.row_loops import bind_unary, mean_rows, takes_rows
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec, TensorSpec


def reduced_axes(op: Operation, specs: Sequence[Spec], rank: int, *, as_input: bool) -> tuple[int, ...]:
    """The axes to reduce: all of them where none are given, unless `noop_with_empty_axes`."""
    axes = known_ints(op, specs, 1, "axes") if as_input else op.attr("axes")
    if not axes:
        return () if op.attr("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(axes_of(op, axes, rank)))


def reduced_shape(shape: tuple[int, ...], axes: Sequence[int], keep: bool) -> tuple[int, ...]:
    """The shape after reducing `axes`, which stay as extents of 1 where `keep`."""
    return tuple(1 if i in axes else d for i, d in enumerate(shape) if keep or i not in axes)


def lowest(dtype: np.dtype[Any]) -> Any:
    """-inf, or the least value of an integer dtype, or False."""
    if dtype in FLOATS:
        return dtype.type(-np.inf)
    return False if dtype == BOOL else np.iinfo(dtype).min


def highest(dtype: np.dtype[Any]) -> Any:
    """inf, or the greatest value of an integer dtype, or True."""
    if dtype in FLOATS:
        return dtype.type(np.inf)
    return True if dtype == BOOL else np.iinfo(dtype).max


def _mean(xp: Any, axes: tuple[int, ...], count: int, x: Array, out: Array) -> None:
    x.sum(axes, out.dtype, out, True)
    xp.divide(out, count, out)


def _mean_on_host(axes: tuple[int, ...], count: Array, x: Array, out: Array) -> None:
    """As `_mean`, without the Python frame and the conversion of the count that double a small mean's time."""
    np.add.reduce(x, axes, out.dtype, out, keepdims=True)
    np.divide(out, count, out)


def _l1(xp: Any, axes: tuple[int, ...], x: Array, out: Array, t: Array) -> None:
    xp.absolute(x, t)
    t.sum(axes, out.dtype, out, True)


def _sum_square(xp: Any, axes: tuple[int, ...], x: Array, out: Array, t: Array) -> None:
    xp.multiply(x, x, t)
    t.sum(axes, out.dtype, out, True)


def _l2(xp: Any, axes: tuple[int, ...], x: Array, out: Array, t: Array) -> None:
    _sum_square(xp, axes, x, out, t)
    xp.sqrt(out, out)


def _log_sum(xp: Any, axes: tuple[int, ...], x: Array, out: Array) -> None:
    x.sum(axes, out.dtype, out, True)
    xp.log(out, out)


def _log_sum_exp(
    xp: Any, axes: tuple[int, ...], x: Array, out: Array, t: Array, top: Array, odd: Array
) -> None:
    """log(sum(exp(x - m))) + m with m the maximum, or 0 where that is infinite or NaN."""
    x.max(axes, top, True)
    xp.isfinite(top, odd)
    xp.logical_not(odd, odd)
    xp.copyto(top, top.dtype.type(0), where=odd)
    xp.subtract(x, top, t)
    xp.exp(t, t)
    t.sum(axes, out.dtype, out, True)
    xp.log(out, out)
    xp.add(out, top, out)


COMPOSITE: dict[str, Callable[..., None]] = {
    "ReduceL1": _l1,
    "ReduceL2": _l2,
    "ReduceSumSquare": _sum_square,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
}
REAL = frozenset(("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean"))
"""Computed in float64 for integers, then truncated."""
IDENTITIES: dict[str, Callable[[np.dtype[Any]], Any]] = {
    "ReduceProd": lambda t: t.type(1),
    "ReduceMax": lowest,
    "ReduceMin": highest,
    "ReduceMean": lambda t: t.type(np.nan) if t in FLOATS else 0,
    "ReduceLogSum": lowest,
    "ReduceLogSumExp": lowest,
}
"""What the reduction of no elements yields, where that is not 0. The text leaves an integer's mean and logarithm
of nothing open: 0 and the least value."""


def _bound(
    op_type: str, xp: Any, axes: tuple[int, ...], x: Array, out: Array, scratch: Sequence[Array]
) -> Call:
    """The reduction of `x` into `out`, whose reduced axes have extent 1."""
    match op_type:
        case "ReduceSum" if xp is np:
            return partial(np.add.reduce, x, axes, out.dtype, out, True)
        case "ReduceSum":
            return partial(x.sum, axes, out.dtype, out, True)
        case "ReduceProd":
            return partial(x.prod, axes, out.dtype, out, True)
        case "ReduceMax":
            return partial(x.max, axes, out, True)
        case "ReduceMin":
            return partial(x.min, axes, out, True)
        case "ReduceMean" if xp is np:
            count = np.asarray(elements(x.shape[a] for a in axes), out.dtype)
            return partial(_mean_on_host, axes, count, x, out)
        case "ReduceMean":
            return partial(_mean, xp, axes, elements(x.shape[a] for a in axes), x, out)
        case _:
            return partial(COMPOSITE[op_type], xp, axes, x, out, *scratch)


def _compile(op: Operation, specs: Sequence[Spec], xp: Any, axes: tuple[int, ...]) -> Compiled:
    x = tensor(op, specs, 0)
    dtype = x.dtype
    output = TensorSpec(dtype, reduced_shape(x.shape, axes, bool(op.attr("keepdims", 1))))
    if any(x.shape[a] == 0 for a in axes):
        find = IDENTITIES.get(op.op_type)
        identity = 0 if find is None else find(dtype)
        return computed((output,), lambda i, o, _: partial(o[0].fill, identity))
    # Along an axis that stays, the work is cut into pieces that fit the cache; only those need scratch.
    real = op.op_type in REAL and dtype not in FLOATS
    inside = np.dtype(np.float64) if real else dtype
    rows = x.shape[0] if x.shape else 1
    cut = bool(x.shape) and 0 not in axes and (op.op_type in COMPOSITE or real)
    step = max(1, min(rows, piece_elements(xp, x) * rows // max(1, x.size))) if cut else rows
    piece = (step, *x.shape[1:]) if x.shape else ()
    row = reduced_shape(piece, axes, True)
    parts: list[Part] = [(piece, inside), (row, inside)] if real else []
    if op.op_type in COMPOSITE and op.op_type != "ReduceLogSum":
        parts.append((piece, inside))
    if op.op_type == "ReduceLogSumExp":
        parts += [(row, inside), (row, BOOL)]

    kept_shape = reduced_shape(x.shape, axes, True)

    last = len(x.shape) - len(axes)
    width = elements(x.shape[last:])
    trailing = op.op_type == "ReduceMean" and bool(axes) and axes == tuple(range(last, len(x.shape)))
    by_rows = trailing and takes_rows(xp, elements(x.shape[:last]), width, dtype)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if by_rows:
            return bind_unary(mean_rows, output.size, width, inputs[0], outputs[0])
        whole, target = inputs[0], outputs[0].reshape(kept_shape)
        if not parts:
            call = _bound(op.op_type, xp, axes, whole, target, ())
            return Quiet(call) if inside in FLOATS else call
        scratch = carve(workspace, *parts)
        calls: list[Call] = []
        for i in range(0, rows, step) if cut else (0,):
            source, out = (whole[i : i + step], target[i : i + step]) if cut else (whole, target)
            extra = [s[: rows - i] for s in scratch] if cut else scratch
            if real:
                wide, wide_out, *extra = extra
                calls.append(partial(wide.__setitem__, ..., source))
                calls.append(_bound(op.op_type, xp, axes, wide, wide_out, extra))
                calls.append(partial(out.__setitem__, ..., wide_out))
            else:
                calls.append(_bound(op.op_type, xp, axes, source, out, extra))
        call = in_turn(calls)
        return Quiet(call) if inside in FLOATS else call

    return computed((output,), bind, contiguous=(0,) if by_rows else (), workspace_bytes=carved_bytes(*parts))


@kernel("ReduceSum", versions=(1, 11))
@kernel("ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", versions=(1, 11, 13))
@kernel("ReduceLogSum", "ReduceLogSumExp", versions=(1, 11, 13))
@kernel("ReduceMax", "ReduceMin", versions=(1, 11, 12, 13))
def reduce_attribute(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> X reduced over the attribute `axes`."""
    return _reduce(reduce_attribute, False, op, specs, xp)


@kernel("ReduceSum", versions=(13,), values=(1,))
@kernel("ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", versions=(18,), values=(1,))
@kernel("ReduceLogSum", "ReduceLogSumExp", versions=(18, 28), values=(1,))
@kernel("ReduceMax", "ReduceMin", versions=(18, 20), values=(1,))
def reduce_input(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, optional axes -> X reduced over them."""
    return _reduce(reduce_input, True, op, specs, xp)


def _reduce(
    again: CompileFunction, as_input: bool, op: Operation, specs: Sequence[Spec], xp: Any
) -> Compiled:
    x = tensor(op, specs, 0)
    allowed = NUMBERS | {BOOL} if op.op_type in ("ReduceMax", "ReduceMin") else NUMBERS
    if one_dtype(op, (x,), allowed) in NARROW:
        return widened(again, op, specs, xp)
    return _compile(op, specs, xp, reduced_axes(op, specs, len(x.shape), as_input=as_input))
