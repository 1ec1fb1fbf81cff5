"""com.microsoft's means of bytes (QLinearAveragePool, QLinearGlobalAveragePool, QLinearReduceMean) and NhwcMaxPool."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import KernelError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import elements, one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.operands import axes_of, fail
from hetero.kernels.quantized import BYTES, centred, one_number, one_scale, requantize
from hetero.kernels.quiet import Quiet
from hetero.kernels.window import Window, axis_taps, spatial, window_of
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

FLOAT32 = np.dtype(np.float32)


def channels_first(array: Array) -> Array:
    """A view of (N, D1…, C) as (N, C, D1…)."""
    return array.transpose(0, array.ndim - 1, *range(1, array.ndim - 1))


def channels_last(op: Operation) -> bool:
    """Whether the attribute of that name is set: data lies as (N, D1…, C)."""
    return bool(op.attr("channels_last", 0))


def _bytes(op: Operation, specs: Sequence[Spec]) -> TensorSpec:
    """Input 0 of five operands: data, its scale and zero point, the result's scale and zero point."""
    x = spatial(op, specs) if op.op_type != "QLinearReduceMean" else tensor(op, specs, 0)
    one_dtype(op, (x, *(s for s in (given(specs, 2), given(specs, 4)) if s is not None)), BYTES)
    for index, name in ((1, "x_scale"), (3, "y_scale")):
        one_scale(op, specs, index, name)
    for index, name in ((2, "x_zero_point"), (4, "y_zero_point")):
        one_number(op, given(specs, index), name)
    return x


def _number(inputs: Sequence[Any], index: int) -> Any:
    found = inputs[index] if index < len(inputs) else None
    return None if found is None else found.reshape(())


def _mean(op: Operation, x: TensorSpec, axes: tuple[int, ...], shape: tuple[int, ...], xp: Any) -> Compiled:
    """The mean over `axes`: exact sums of integers, rounded once."""
    count = elements(x.shape[a] for a in axes)
    kept = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
    if not count and elements(kept):
        raise KernelError(f"a mean over axes {list(axes)} of {list(x.shape)}", op=op.id, node=op.name)
    parts: tuple[Part, ...] = ((kept, np.int64), (kept, FLOAT32))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        sums, real = carve(workspace, *parts)
        out = outputs[0].reshape(kept)

        def call() -> None:
            xp.sum(inputs[0], axis=axes, dtype=np.int64, out=sums, keepdims=True)
            zero = _number(inputs, 2)
            if zero is not None:
                xp.subtract(sums, zero.astype(np.int64) * count, out=sums)
            xp.copyto(real, sums, casting="unsafe")
            scale = _number(inputs, 1) / (_number(inputs, 3) * np.float32(count))
            requantize(xp, real, scale, _number(inputs, 4), out)

        return Quiet(call)

    return computed((TensorSpec(x.dtype, shape),), bind, workspace_bytes=carved_bytes(*parts))


@kernel("QLinearGlobalAveragePool", domain="com.microsoft", versions=(1,))
def qlinear_global_average_pool(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, D1…), or (N, D1…, C) with `channels_last`, its scale and zero point, Y's scale and zero point -> the
    mean of each plane, with extents of 1 for the planes' axes."""
    x = _bytes(op, specs)
    rank = len(x.shape)
    axes = tuple(range(1, rank - 1)) if channels_last(op) else tuple(range(2, rank))
    return _mean(op, x, axes, tuple(1 if i in axes else d for i, d in enumerate(x.shape)), xp)


@kernel("QLinearReduceMean", domain="com.microsoft", versions=(1,))
def qlinear_reduce_mean(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """data, its scale and zero point, scale and zero point of the result -> its mean over `axes`."""
    x = _bytes(op, specs)
    rank = len(x.shape)
    axes = axes_of(op, op.attr("axes") or range(rank), rank)
    keep = bool(op.attr("keepdims", 1))
    shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes)
    return _mean(op, x, axes, shape, xp)


def _pool_window(op: Operation, extents: tuple[int, ...], *, dilate: bool) -> Window:
    shape = op.attr("kernel_shape")
    if shape is None:
        fail(op, "is missing", "kernel_shape")
    return window_of(op, extents, shape, ceil_mode=bool(op.attr("ceil_mode", 0)), dilate=dilate)


def _taps(window: Window) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """For each tap of the kernel, last axis fastest: the outputs it serves and the inputs these read."""
    axes = (axis_taps(window, axis) for axis in range(len(window.kernel)))
    return [
        (tuple(out for out, _ in pairs), tuple(read for _, read in pairs))
        for pairs in itertools.product(*axes)
        if all(read.stop for _, read in pairs)
    ]


@kernel("QLinearAveragePool", domain="com.microsoft", versions=(1,))
def qlinear_average_pool(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, D1…), or (N, D1…, C) with `channels_last`, its scale and zero point, Y's scale and zero point (zero
    points optional) -> the mean of each window; pads count as zeros where `count_include_pad` is set.

    Made in float32, tap after tap, as onnxruntime does it: where the mean falls between two levels the order decides.
    """
    x = _bytes(op, specs)
    last = channels_last(op)
    n, c = x.shape[0], x.shape[-1 if last else 1]
    window = _pool_window(op, x.shape[1:-1] if last else x.shape[2:], dilate=False)
    inner = (n, c, *window.outputs)
    shape = (n, *window.outputs, c) if last else inner
    counts = np.full((), window.taps, np.float32)
    if not op.attr("count_include_pad", 0):
        counts = np.zeros(window.outputs, np.float32)
        for out, _ in _taps(window):
            counts[out] += 1
        counts = np.maximum(counts, 1)
    parts: tuple[Part, ...] = (((n, c, *window.extents), FLOAT32), (inner, FLOAT32))
    limits = np.iinfo(x.dtype)

    def finish(inputs: Sequence[Any], mean: Array, out: Array) -> None:
        xp.divide(mean, counts, out=mean)
        xp.divide(mean, _number(inputs, 3), out=mean)
        zero = _number(inputs, 4)
        if zero is not None:
            xp.add(mean, zero, out=mean)
        xp.rint(mean, out=mean)
        xp.clip(mean, limits.min, limits.max, out=mean)
        xp.copyto(out, mean, casting="unsafe")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        real, mean = carve(workspace, *parts)
        source = channels_first(inputs[0]) if last else inputs[0]
        out = channels_first(outputs[0]) if last else outputs[0]
        calls: list[Call] = [
            partial(centred, xp, source, _number(inputs, 2), real),
            partial(xp.multiply, real, _number(inputs, 1), real),
            partial(mean.fill, 0),
        ]
        for served, read in _taps(window):
            target = mean[(..., *served)]
            calls.append(partial(xp.add, target, real[(..., *read)], target))
        calls.append(partial(finish, inputs, mean, out))
        return Quiet(in_turn(calls))

    return computed((TensorSpec(x.dtype, shape),), bind, workspace_bytes=carved_bytes(*parts))


@kernel("NhwcMaxPool", domain="com.microsoft", versions=(1,))
def nhwc_max_pool(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """x (N, D1…, C) of bytes -> the largest of each window, (N, o1…, C)."""
    x = spatial(op, specs)
    one_dtype(op, (x,), BYTES)
    window = _pool_window(op, x.shape[1:-1], dilate=True)
    lowest = np.iinfo(x.dtype).min

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, out = channels_first(inputs[0]), channels_first(outputs[0])
        calls: list[Call] = [partial(outputs[0].fill, lowest)]
        for served, read in _taps(window):
            target = out[(..., *served)]
            calls.append(partial(xp.maximum, target, source[(..., *read)], out=target))
        return in_turn(calls)

    return computed((TensorSpec(x.dtype, (x.shape[0], *window.outputs, x.shape[-1])),), bind)
