"""Resize and Upsample: one resampling pass per axis that changes, by tables made when compiling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.jit_call import bound
from hetero.kernels.limits import bounded
from hetero.kernels.operands import fail, known, text_of
from hetero.kernels.resize_axis import (
    COORDINATE_MODES,
    NEAREST_MODES,
    AxisTable,
    Sampling,
    axis_table,
    resample,
)
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

FLOATS = frozenset((np.dtype(np.float32), np.dtype(np.float64)))


def _text(op: Operation, name: str, default: str, allowed: Sequence[str]) -> str:
    text = text_of(op, name, default)
    if text not in allowed:
        fail(op, f"{name} {text!r} is not one of {', '.join(allowed)}", name)
    return text


def _mode(op: Operation) -> str:
    mode = _text(op, "mode", "nearest", ("nearest", "linear", "bilinear", "cubic"))
    return "linear" if mode == "bilinear" else mode


def _floats(op: Operation, specs: Sequence[Spec], index: int, name: str) -> list[float] | None:
    """The known values of an optional operand; None where it is left out or empty."""
    value = known(op, specs, index, name)
    if value is None or value.size == 0:
        return None
    found = [float(v) for v in value.reshape(-1)]
    if not np.isfinite(found).all():
        fail(op, f"{name} {found} must be finite", name)
    return found


@kernel("Upsample", versions=(7,))
def upsample_7(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> X resampled by the attribute scales (one per axis)."""
    scales = [float(s) for s in (op.attr("scales") or ())]
    return _resize_simple(op, tensor(op, specs, 0), scales, xp)


@kernel("Upsample", versions=(9,), values=(1,))
@kernel("Resize", versions=(10,), values=(1,))
def upsample_9(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, scales (one per axis) -> X resampled."""
    return _resize_simple(op, tensor(op, specs, 0), _floats(op, specs, 1, "scales") or [], xp)


def _resize_simple(op: Operation, x: TensorSpec, scales: list[float], xp: Any) -> Compiled:
    how = Sampling(mode=_mode(op), nearest="simple")
    if len(scales) != len(x.shape):
        fail(op, f"{len(scales)} scales for rank {len(x.shape)}", "scales")
    return _resize(op, x, how, dict(enumerate(scales)), {}, {}, 0.0, xp)


@kernel("Resize", versions=(11, 13, 18, 19), values=(1, 2, 3))
def resize(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, roi, scales or sizes (one per axis, or per entry of the attribute axes) -> X resampled."""
    x = tensor(op, specs, 0)
    rank = len(x.shape)
    how = Sampling(
        mode=_mode(op),
        coordinates=_text(op, "coordinate_transformation_mode", "half_pixel", COORDINATE_MODES),
        nearest=_text(op, "nearest_mode", "round_prefer_floor", NEAREST_MODES[:-1]),
        cubic_a=float(op.attr("cubic_coeff_a", -0.75)),
        exclude_outside=bool(op.attr("exclude_outside", 0)),
        antialias=bool(op.attr("antialias", 0)),
    )
    axes = [int(a) % rank if -rank <= a < rank else rank for a in (op.attr("axes") or range(rank))]
    if len(set(axes)) != len(axes) or max(axes, default=-1) >= rank:
        fail(op, f"axes {list(op.attr('axes'))} for rank {rank}", "axes")
    scales, sizes = _floats(op, specs, 2, "scales"), _floats(op, specs, 3, "sizes")
    if (scales is None) == (sizes is None):
        if rank == 0:
            scales = []
        else:
            fail(op, "exactly one of scales and sizes must be given", "scales")
    for name, values in (("scales", scales), ("sizes", sizes)):
        if values is not None and len(values) != len(axes):
            fail(op, f"{len(values)} {name} for {len(axes)} axes", name)
    rois: dict[int, tuple[float, float]] = {}
    if how.coordinates == "tf_crop_and_resize":
        roi = _floats(op, specs, 1, "roi")
        if roi is None or len(roi) != 2 * len(axes):
            fail(op, f"roi must hold {2 * len(axes)} values", "roi")
        rois = {axis: (roi[i], roi[len(axes) + i]) for i, axis in enumerate(axes)}
    if sizes is not None:
        counts, factors = _sizes(op, x, axes, [int(s) for s in sizes])
        return _resize(op, x, how, factors, counts, rois, float(op.attr("extrapolation_value", 0.0)), xp)
    factors = dict(zip(axes, scales or [], strict=True))
    return _resize(op, x, how, factors, {}, rois, float(op.attr("extrapolation_value", 0.0)), xp)


def _sizes(
    op: Operation, x: TensorSpec, axes: Sequence[int], sizes: Sequence[int]
) -> tuple[dict[int, int], dict[int, float]]:
    """Output extents and scales per axis, under keep_aspect_ratio_policy."""
    policy = _text(op, "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller"))
    extents = [x.shape[a] for a in axes]
    if min(sizes, default=0) < 0 or any(s and not e for s, e in zip(sizes, extents, strict=True)):
        fail(op, f"sizes {list(sizes)} for extents {extents}", "sizes")
    if policy != "stretch" and all(extents):
        ratios = [s / e for s, e in zip(sizes, extents, strict=True)]
        shared = min(ratios) if policy == "not_larger" else max(ratios)
        return (
            {a: int(np.floor(shared * e + 0.5)) for a, e in zip(axes, extents, strict=True)},
            dict.fromkeys(axes, shared),
        )
    factors = {a: s / e if e and s else 1.0 for a, s, e in zip(axes, sizes, extents, strict=True)}
    return dict(zip(axes, sizes, strict=True)), factors


def _resize(
    op: Operation,
    x: TensorSpec,
    how: Sampling,
    factors: dict[int, float],
    counts: dict[int, int],
    rois: dict[int, tuple[float, float]],
    fill: float,
    xp: Any,
) -> Compiled:
    """Resample each axis of `factors` to `counts` (or by its scale); `rois` are the (start, end) of a crop."""
    if min(factors.values(), default=1.0) <= 0:
        fail(op, f"scales {list(factors.values())} must be positive", "scales")
    shape = list(x.shape)
    lengths: dict[int, float] = {}
    for axis, scale in factors.items():
        part = rois[axis][1] - rois[axis][0] if axis in rois else 1.0
        # float32, as shape inference has it: 0.7f * 10 is 7, not 6.9999999
        length = float(np.float32(x.shape[axis]) * np.float32(part) * np.float32(scale))
        shape[axis] = counts.get(axis, int(np.floor(max(length, 0.0))) if length < 2**62 else 2**62)
        lengths[axis] = (
            float(counts[axis]) if axis in counts and scale * x.shape[axis] == counts[axis] else length
        )
    output = bounded(op, x.dtype, shape)
    if output.size == 0:
        return computed((output,), lambda inputs, outputs, workspace: lambda: None)
    if x.size == 0:
        fail(op, f"nothing to resample in shape {list(x.shape)}")
    tables = [
        table
        for axis, scale in factors.items()
        if not (
            table := axis_table(
                how, axis, x.shape[axis], shape[axis], scale, lengths[axis], rois.get(axis, (0.0, 1.0))
            )
        ).identity(x.shape[axis])
    ]
    return _passes(op, x, output, tables, fill, how.antialias, xp)


def _ordered(x: TensorSpec, tables: Sequence[AxisTable]) -> list[AxisTable]:
    """Shrinking axes first, and the last axis as late as it can while data shrinks, as early when it grows: its
    elements are gathered one by one."""
    shrinking = [t for t in tables if len(t.index) <= x.shape[t.axis]]
    growing = [t for t in tables if len(t.index) > x.shape[t.axis]]
    return [*sorted(shrinking, key=lambda t: t.axis), *sorted(growing, key=lambda t: -t.axis)]


def _passes(
    op: Operation,
    x: TensorSpec,
    output: TensorSpec,
    tables: Sequence[AxisTable],
    fill: float,
    rounded: bool,
    xp: Any,
) -> Compiled:
    """x resampled by `tables` into `output`, in x's dtype where it is float32 or float64, else in float32.

    Nearest alone moves elements and so takes any dtype. Integers are held in their range, and rounded (halves up)
    or cut towards zero: onnxruntime does the one with antialias, the other without.
    """
    exact = all(t.exact for t in tables)
    real = x.dtype if x.dtype in FLOATS or exact else np.dtype(np.float32)
    if not exact and x.dtype.kind not in "fiuV":
        raise UnsupportedError(f"cannot interpolate {x.dtype}", op=op.id, node=op.name)
    order = _ordered(x, tables)
    shapes = [list(x.shape)]
    for table in order:
        shapes.append([*shapes[-1]])
        shapes[-1][table.axis] = len(table.index)
    objects = x.dtype.kind == "O"
    between: list[Part] = [] if objects else [(shape, real) for shape in shapes[1:-1]]
    casts: list[Part] = [] if real == x.dtype else [(x.shape, real), (output.shape, real)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        arrays = carve(workspace, *between, *casts)
        if objects:
            arrays = [np.empty(shape, x.dtype) for shape in shapes[1:-1]]
        first, last = inputs[0], outputs[0]
        if casts:
            first, last = arrays[-2:]
            del arrays[-2:]
        steps: list[Call] = []
        if casts:
            steps.append(lambda: xp.copyto(first, inputs[0], casting="unsafe"))
        chain = [first, *arrays, last]
        if not order:
            steps.append(lambda: xp.copyto(last, first))
        for table, source, target in zip(order, chain, chain[1:], strict=False):
            steps.append(_pass(xp, table, source, target))
        for table in order:
            if table.outside.size:
                where = (*(slice(None),) * table.axis, xp.asarray(table.outside))
                steps.append(lambda where=where: last.__setitem__(where, fill))  # type: ignore[misc]
        if casts:
            steps.append(lambda: _narrow(xp, last, outputs[0], rounded))

        def call() -> None:
            for step in steps:
                step()

        return steps[0] if len(steps) == 1 else call

    return computed((output,), bind, contiguous=(0,), workspace_bytes=carved_bytes(*between, *casts))


def _pass(xp: Any, table: AxisTable, source: Array, target: Array) -> Call:
    before, after = prod(target.shape[: table.axis]), prod(target.shape[table.axis + 1 :])
    x = source.reshape(before, source.shape[table.axis], after)
    y = target.reshape(before, len(table.index), after)
    if table.exact and (x.dtype != np.float32 or xp is not np):
        index = xp.asarray(table.index[:, 0])
        if xp is np:  # mode="clip" (nothing is out of range) writes into `out` without a buffer between
            return lambda: np.take(x, index, axis=1, out=y, mode="clip")
        return lambda: xp.take(x, index, axis=1, out=y)
    index, weight = xp.asarray(table.index), xp.asarray(table.weight.astype(x.dtype))
    act = resample(x, y, index, weight)
    return bound(act, x, y, index, weight)


def _narrow(xp: Any, source: Array, target: Array, rounded: bool) -> None:
    """source into target's dtype; integers clamped to their range, and rounded or cut."""
    if target.dtype.kind in "iu":
        if rounded:
            xp.floor(xp.add(source, 0.5, out=source), out=source)
        limits = np.iinfo(target.dtype)
        xp.clip(source, float(limits.min), float(limits.max), out=source)
    with np.errstate(over="ignore", invalid="ignore"):
        xp.copyto(target, source, casting="unsafe")
