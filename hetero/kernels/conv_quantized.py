"""ConvInteger and QLinearConv: a float convolution of the centred bytes that loses no bit, then integers again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.conv import conv_shape, route
from hetero.kernels.derived import derived
from hetero.kernels.operands import fail
from hetero.kernels.qlinear_pool import channels_first, channels_last
from hetero.kernels.quantized import centred, exact_float, per_map, requantize, require_bytes
from hetero.kernels.widen import is_constant
from hetero.kernels.window import spatial
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

FLOAT32 = np.dtype(np.float32)


class _Sums:
    """The convolution of x - x_zero_point with w - w_zero_point, as exact floats."""

    def __init__(self, op: Operation, x: TensorSpec, w: TensorSpec, xp: Any) -> None:
        require_bytes(op, x, w)
        self.xp = xp
        self.shape = conv_shape(op, x, w)
        real = exact_float(self.shape.depth)
        self.outputs = (self.shape.batch, self.shape.maps, *self.shape.window.outputs)
        inner, self.bind_float = route(self.shape, real, xp, exact=True)
        self.inner_bytes = carved_bytes(*inner)
        self.real = real
        self.parts: tuple[Part, ...] = (
            (x.shape, real),
            (self.outputs, real),
            ((self.inner_bytes,), np.uint8),
        )

    def bind(self, x: Array, w: Array, x_zero: Array | None, w_zero: Array | None, workspace: Any) -> Any:
        """(a call, the array that holds the sums after it)."""
        wide_x, sums, scratch = carve(workspace, *self.parts)
        rank = len(w.shape)
        if w_zero is not None and w_zero.size > 1:
            w_zero = w_zero.reshape(-1, *(1,) * (rank - 1))
        constant = is_constant(w) and (w_zero is None or is_constant(w_zero))
        wide_w = self._weights(w, w_zero) if constant else self.xp.empty(w.shape, self.real)
        convolve = self.bind_float([wide_x, wide_w], [sums], scratch if self.inner_bytes else None)

        def call() -> None:
            centred(self.xp, x, x_zero, wide_x)
            if not constant:
                centred(self.xp, w, w_zero, wide_w)
            convolve()

        return call, sums

    def _weights(self, w: Array, w_zero: Array | None) -> Array:
        def make() -> Array:
            target = self.xp.empty(w.shape, self.real)
            centred(self.xp, w, w_zero, target)
            return target

        return derived(("centred", self.real.str), (w, w_zero), make)


def _optional(inputs: Sequence[Any], index: int) -> Array | None:
    return inputs[index] if index < len(inputs) else None


@kernel("ConvInteger", versions=(10,))
def conv_integer(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """x (N, C, D1…), w (M, C/group, k1…) of bytes, zero point of x, zero point(s) of w -> int32 (N, M, o1…)."""
    x, w = spatial(op, specs), tensor(op, specs, 1)
    sums = _Sums(op, x, w, xp)
    per_map(op, given(specs, 2), 1, "x_zero_point")
    per_map(op, given(specs, 3), w.shape[0], "w_zero_point")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        y = outputs[0]
        convolve, result = sums.bind(
            inputs[0], inputs[1], _optional(inputs, 2), _optional(inputs, 3), workspace
        )

        def call() -> None:
            convolve()
            xp.copyto(y, result, casting="unsafe")

        return call

    output = TensorSpec(np.dtype(np.int32), sums.outputs)
    return computed((output,), bind, workspace_bytes=carved_bytes(*sums.parts))


@kernel("QLinearConv", versions=(10,))
@kernel("QLinearConv", versions=(1,), domain="com.microsoft")
def qlinear_conv(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """x, its scale and zero point, w, its scale(s) and zero point(s), y's scale and zero point, optional bias (M) in
    int32 of scale x_scale * w_scale -> y in bytes, rounded half to even and saturated.

    com.microsoft's takes and gives (N, D1…, C) where `channels_last` is set; w stays (M, C/group, k1…).
    """
    x, w, y_zero = spatial(op, specs), tensor(op, specs, 3), tensor(op, specs, 7)
    require_bytes(op, y_zero)
    last = channels_last(op) and bool(op.domain)
    if last:
        x = replace(x, shape=(x.shape[0], x.shape[-1], *x.shape[1:-1]))
    sums = _Sums(op, x, w, xp)
    maps = w.shape[0]
    for index, count, operand in (
        (1, 1, "x_scale"),
        (2, 1, "x_zero_point"),
        (4, maps, "w_scale"),
        (5, maps, "w_zero_point"),
        (6, 1, "y_scale"),
        (7, 1, "y_zero_point"),
    ):
        per_map(op, given(specs, index), count, operand)
    bias = given(specs, 8)
    if bias is not None and bias.shape != (maps,):
        fail(op, f"bias of shape {list(bias.shape)} for {maps} maps", "B")
    parts: tuple[Part, ...] = ((sums.outputs, FLOAT32), ((maps,), FLOAT32), *sums.parts)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        single, scale = carve(workspace, *parts[:2])
        rest = None if workspace is None else workspace[carved_bytes(*parts[:2]) :]
        source, out = inputs[0], outputs[0]
        if last:
            source, out = channels_first(source), channels_first(out)
        convolve, result = sums.bind(source, inputs[3], inputs[2], inputs[5], rest)
        along = (maps, *(1,) * (len(x.shape) - 2))
        shift = None if len(inputs) < 9 or inputs[8] is None else inputs[8].reshape(along)
        factors = scale.reshape(along)

        def call() -> None:
            convolve()
            if shift is not None:
                # result may be float32, too narrow for a bias of 32 bits: onnxruntime adds integers, then rounds once
                xp.add(result, shift, out=single, dtype=np.float64, casting="unsafe")
            else:
                xp.copyto(single, result, casting="unsafe")
            xp.multiply(inputs[1].reshape(-1), inputs[4].reshape(-1), out=scale)
            xp.divide(scale, inputs[6].reshape(-1), out=scale)
            requantize(xp, single, factors, inputs[7], out)

        return call

    shape = sums.outputs
    output = TensorSpec(y_zero.dtype, (shape[0], *shape[2:], shape[1]) if last else shape)
    return computed((output,), bind, workspace_bytes=carved_bytes(*parts))
