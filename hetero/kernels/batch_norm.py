"""BatchNormalization: given statistics, or those of the batch with running averages in training mode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.broadcasting import elements, one_dtype
from hetero.kernels.derived import Keeper
from hetero.kernels.fused import PIECE_BYTES, in_turn
from hetero.kernels.jit import PARALLEL_ELEMENTS, jit, prange
from hetero.kernels.jit_call import bound
from hetero.kernels.operands import fail
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import is_constant
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec, TensorSpec

FLOAT32 = np.dtype(np.float32)


def _fold(
    xp: Any, epsilon: float, scale: Array, bias: Array, mean: Array, var: Array, factor: Array, shift: Array
) -> None:
    """factor = scale / sqrt(var + epsilon), shift = bias - mean factor."""
    factor[...] = var
    xp.add(factor, epsilon, factor)
    xp.sqrt(factor, factor)
    xp.divide(scale, factor, factor)
    xp.multiply(mean, factor, shift)
    xp.subtract(bias, shift, shift)


def _affine(xp: Any, x: Array, factor: Array, shift: Array, out: Array) -> None:
    xp.multiply(x, factor, out)
    xp.add(out, shift, out)


def _affine_narrow(xp: Any, x: Array, factor: Array, shift: Array, out: Array, wide: Array) -> None:
    wide[...] = x
    _affine(xp, wide, factor, shift, wide)
    out[...] = wide


def _affine_planes_numpy(x: Array, factor: Array, shift: Array, y: Array, same: int) -> None:
    planes = x.reshape(-1, len(factor), x.shape[1])
    np.add(planes * factor[:, None], shift[:, None], out=y.reshape(planes.shape))


@jit("f4[2], f4[1], f4[1], f4[2]!, i8", twin=_affine_planes_numpy)
def affine_planes(x: Array, factor: Array, shift: Array, y: Array, same: int) -> None:
    """y = x * factor + shift over planes x, y (N*C, S), a factor and a shift for each of the C channels.

    `same`: y is x. A loop from an array into itself is SIMD only where one name says so.
    """
    channels = factor.shape[0]
    for p in prange(x.shape[0]):
        f, s = factor[p % channels], shift[p % channels]
        source, target = x[p], y[p]
        if same:
            for q in range(x.shape[1]):
                target[q] = target[q] * f + s
        else:
            for q in range(x.shape[1]):
                target[q] = source[q] * f + s


def _statistics(xp: Any, x: Array, mean: Array, var: Array, wide: Array) -> None:
    """Mean and population variance of x (N, C, S) per channel, into (C,) each."""
    count = x.shape[0] * x.shape[2]
    x.sum((0, 2), mean.dtype, mean)
    xp.divide(mean, count, mean)
    wide[...] = x
    xp.subtract(wide, mean[:, None], wide)
    xp.multiply(wide, wide, wide)
    wide.sum((0, 2), None, var)
    xp.divide(var, count, var)


def _running(xp: Any, momentum: float, old: Array, current: Array, new: Array, t: Array) -> None:
    """new = old momentum + current (1 - momentum)."""
    xp.multiply(current, 1 - momentum, t)
    new[...] = old
    xp.multiply(new, momentum, new)
    xp.add(new, t, new, casting="unsafe")


@kernel("BatchNormalization", versions=(7, 9, 14, 15))
def batch_norm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, …), scale, B, mean, var (C) -> Y, and in training mode the running mean and variance.

    Version 7 with `spatial` 0 has one scale, B, mean and var an element of a sample. One axis alone is the batch.
    """
    x, scale, bias, mean, var = (tensor(op, specs, i) for i in range(5))
    for spec in (x, scale, bias, mean, var):
        one_dtype(op, (spec,), FLOATS)
    training = bool(op.attr("training_mode", 0)) and op.version >= 14
    if len(op.present_outputs) > 1 and not training and any(op.present_outputs[1:]):
        raise UnsupportedError("training before version 14", op=op.id, node=op.name)
    if not x.shape:
        fail(op, "must have a batch axis", "X")
    batch, rest = x.shape[0], x.shape[1:]
    if op.version == 7 and not op.attr("spatial", 1):
        channels, width = elements(rest), 1
    else:
        channels, width = (rest[0], elements(rest[1:])) if rest else (1, 1)
    for name, spec in (("scale", scale), ("B", bias), ("mean", mean), ("var", var)):
        if spec.size != channels:
            fail(op, f"of shape {list(spec.shape)} for {channels} channels", name)
    epsilon, momentum = float(op.attr("epsilon", 1e-5)), float(op.attr("momentum", 0.9))
    wide = x.dtype if x.dtype == np.float64 else FLOAT32
    outputs: list[TensorSpec | None] = [TensorSpec(x.dtype, x.shape)]
    for spec, present in zip((mean, var), op.present_outputs[1:], strict=False):
        outputs.append(TensorSpec(spec.dtype, spec.shape) if present else None)
    step = (
        max(1, min(channels, PIECE_BYTES // wide.itemsize // max(1, width))) if xp is np else max(1, channels)
    )
    narrow = x.dtype != wide
    vector = ((channels,), wide)
    parts: list[Part] = [vector, vector, ((step if narrow else 0, width), wide)]
    if training:
        parts += [vector, vector, vector, ((batch, channels, width), wide)]

    keep = Keeper()

    def bind(inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        source, target = (a.reshape(batch, channels, width) for a in (inputs[0], results[0]))
        scales, biases, means, variances = (a.reshape(channels) for a in inputs[1:])
        factor, shift, buffer, *extra = carve(workspace, *parts)
        calls: list[Call] = []
        if source.size == 0 and not training:
            return in_turn(calls)
        if training:
            current_mean, current_var, scratch, whole = extra
            calls.append(partial(_statistics, xp, source, current_mean, current_var, whole))
            for old, current, new in zip((means, variances), extra[:2], results[1:], strict=False):
                if new is not None:
                    new = new.reshape(channels)
                    calls.append(partial(_running, xp, momentum, old, current, new, scratch))
            means, variances = current_mean, current_var
        given = (scales, biases, means, variances)
        if not training and all(map(is_constant, given)):

            def make() -> Array:
                both: Array = xp.empty((2, channels), wide)
                _fold(xp, epsilon, *given, *both)
                return both

            factor, shift = keep(("affine", epsilon), given, make)
        else:
            calls.append(partial(_fold, xp, epsilon, scales, biases, means, variances, factor, shift))
        if width > 1 and xp is np and x.dtype == FLOAT32:
            planes = (source.reshape(-1, width), factor, shift, target.reshape(-1, width))
            function = affine_planes.variant(*planes, parallel=source.size >= 4 * PARALLEL_ELEMENTS)
            if function is not affine_planes.twin:
                calls.append(bound(function, *planes, int(np.may_share_memory(source, target))))
                return Quiet(in_turn(calls))
        if width == 1 and not narrow:
            calls.append(partial(_affine, xp, source[..., 0], factor, shift, target[..., 0]))
            return Quiet(in_turn(calls))
        for sample in range(batch):
            for i in range(0, channels, step):
                s = slice(i, i + step)
                arrays = (source[sample, s], factor[s, None], shift[s, None], target[sample, s])
                if narrow:
                    calls.append(partial(_affine_narrow, xp, *arrays, buffer[: channels - i]))
                else:
                    calls.append(partial(_affine, xp, *arrays))
        return Quiet(in_turn(calls))

    return computed(
        outputs,
        bind,
        contiguous=range(5),
        overwrites=((0, 0),),
        workspace_bytes=carved_bytes(*parts),
    )
