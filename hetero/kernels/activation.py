"""Activations: chains of ufuncs over one tensor, in float32 for the narrower floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.broadcasting import BOOL, NUMBERS, SIGNED, broadcasts_to, one_dtype
from hetero.kernels.fused import chain
from hetero.kernels.operands import fail
from hetero.kernels.quiet import quiet
from hetero.kernels.tape_kernel import taped
from hetero.kernels.tape_ops import SELU_ALPHA, SELU_GAMMA
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec, TensorSpec

Step = Callable[..., None]


@kernel("Relu", versions=(6, 13, 14))
def relu(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> max(X, 0), in X's dtype: any float or signed integer."""
    x = tensor(op, specs, 0)
    dtype = one_dtype(op, (x,), FLOATS | SIGNED)
    output = TensorSpec(dtype, x.shape)
    zero = dtype.type(0)
    return computed(
        (output,), lambda i, o, _: partial(xp.maximum, i[0], zero, out=o[0]), overwrites=((0, 0),)
    )


def sigmoid_into(xp: Any, x: Array, out: Array) -> None:
    """out = 1 / (1 + exp(-x)); `out` may be `x`."""
    xp.negative(x, out)
    xp.exp(out, out)
    xp.add(out, 1.0, out)
    xp.reciprocal(out, out)


def _leaky_relu(xp: Any, alpha: float, x: Array, out: Array) -> None:
    # Of x and alpha x the larger one where alpha <= 1, the smaller one beyond.
    xp.multiply(x, alpha, out)
    (xp.maximum if alpha <= 1 else xp.minimum)(x, out, out=out)


def _flat_leaky_relu(xp: Any, x: Array, out: Array) -> None:
    xp.maximum(x, 0.0, out=out)  # alpha x would be NaN at infinity


def _hard_sigmoid(xp: Any, alpha: float, beta: float, x: Array, out: Array) -> None:
    xp.multiply(x, alpha, out)
    xp.add(out, beta, out)
    out.clip(0.0, 1.0, out)


def _elu(xp: Any, alpha: float, divisor: float, gamma: float, x: Array, out: Array, low: Array) -> None:
    """out = gamma (max(x, 0) + alpha (exp(min(x, 0) / divisor) - 1)): Elu, Celu and Selu."""
    xp.minimum(x, 0.0, out=low)
    if divisor != 1.0:
        xp.divide(low, divisor, low)
    xp.expm1(low, low)
    xp.multiply(low, alpha * gamma, low)
    xp.maximum(x, 0.0, out=out)
    if gamma != 1.0:
        xp.multiply(out, gamma, out)
    xp.add(out, low, out)


def _thresholded_relu(xp: Any, alpha: float, x: Array, out: Array, small: Array) -> None:
    xp.greater(x, alpha, small)
    xp.logical_not(small, small)
    out[...] = x
    xp.copyto(out, out.dtype.type(0), where=small)


def _softplus(xp: Any, x: Array, out: Array, t: Array) -> None:
    # log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)), which neither overflows nor loses small results
    xp.absolute(x, t)
    xp.negative(t, t)
    xp.exp(t, t)
    xp.log1p(t, t)
    xp.maximum(x, 0.0, out=out)
    xp.add(out, t, out)


def _softsign(xp: Any, x: Array, out: Array, t: Array) -> None:
    xp.absolute(x, t)
    xp.add(t, 1.0, t)
    xp.divide(x, t, out)


def _hard_swish(xp: Any, x: Array, out: Array, t: Array) -> None:
    xp.multiply(x, 1 / 6, t)
    xp.add(t, 0.5, t)
    t.clip(0.0, 1.0, t)
    xp.multiply(x, t, out)


def _mish(xp: Any, x: Array, out: Array, e: Array, n: Array) -> None:
    # tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2), e = exp(x): no cancellation. Beyond 20 it is 1.
    xp.minimum(x, 20.0, out=e)
    xp.exp(e, e)
    xp.add(e, 2.0, n)
    xp.multiply(n, e, n)
    xp.add(n, 2.0, e)
    xp.divide(n, e, n)
    xp.multiply(x, n, out)


def _swish(xp: Any, alpha: float, x: Array, out: Array, t: Array) -> None:
    xp.multiply(x, -alpha, t)
    xp.exp(t, t)
    xp.add(t, 1.0, t)
    xp.divide(x, t, out)


def _shrink(
    xp: Any, lambd: float, bias: float, x: Array, out: Array, wide: Array, t: Array, keep: Array
) -> None:
    wide[...] = x
    xp.subtract(wide, bias, t)
    xp.greater(wide, lambd, keep)
    xp.logical_not(keep, keep)
    xp.copyto(t, wide.dtype.type(0), where=keep)
    xp.less(wide, -lambd, keep)
    xp.add(wide, bias, wide)
    xp.copyto(t, wide, where=keep)
    out[...] = t


def _steps(op: Operation, xp: Any, dtype: np.dtype[Any]) -> tuple[Step, tuple[Any, ...], bool]:
    """The step of a float activation, the dtypes of its scratch, and whether it may run in place."""
    alpha = op.attr("alpha")
    match op.op_type:
        case "Sigmoid":
            return partial(sigmoid_into, xp), (), True
        case "LeakyRelu":
            alpha = 0.01 if alpha is None else float(alpha)
            if alpha == 0:
                return partial(_flat_leaky_relu, xp), (), True
            return partial(_leaky_relu, xp, alpha), (), False
        case "HardSigmoid":
            alpha = 0.2 if alpha is None else float(alpha)
            return partial(_hard_sigmoid, xp, alpha, float(op.attr("beta", 0.5))), (), True
        case "Elu":
            return partial(_elu, xp, 1.0 if alpha is None else float(alpha), 1.0, 1.0), (dtype,), True
        case "Celu":
            alpha = 1.0 if alpha is None else float(alpha)
            if alpha == 0:
                fail(op, "must not be 0", "alpha")
            return partial(_elu, xp, alpha, alpha, 1.0), (dtype,), True
        case "Selu":
            alpha = SELU_ALPHA if alpha is None else float(alpha)
            return partial(_elu, xp, alpha, 1.0, float(op.attr("gamma", SELU_GAMMA))), (dtype,), True
        case "ThresholdedRelu":
            return partial(_thresholded_relu, xp, 1.0 if alpha is None else float(alpha)), (BOOL,), True
        case "Softplus":
            return partial(_softplus, xp), (dtype,), True
        case "Softsign":
            return partial(_softsign, xp), (dtype,), True
        case "HardSwish":
            return partial(_hard_swish, xp), (dtype,), True
        case "Mish":
            return partial(_mish, xp), (dtype, dtype), True
        case _:
            default = 1.702 if op.op_type == "QuickGelu" else 1.0
            return partial(_swish, xp, default if alpha is None else float(alpha)), (dtype,), True


@kernel("Sigmoid", versions=(6, 13))
@kernel("LeakyRelu", versions=(6, 16))
@kernel("HardSigmoid", "Elu", "Selu", versions=(6, 22))
@kernel("Celu", versions=(12, 28))
@kernel("ThresholdedRelu", versions=(10, 22))
@kernel("Softplus", "Softsign", versions=(1, 22))
@kernel("HardSwish", versions=(14, 22))
@kernel("Mish", versions=(18, 22))
@kernel("Swish", versions=(24,))
@kernel("QuickGelu", domain="com.microsoft", versions=(1,))
def activation(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> f(X) in X's float dtype."""
    x = tensor(op, specs, 0)
    if one_dtype(op, (x,), FLOATS) in NARROW:
        return widened(activation, op, specs, xp)
    on_tape = taped(op, specs, x.shape, xp)
    if on_tape is not None:
        return on_tape
    step, scratch, in_place = _steps(op, xp, x.dtype)
    return chain(xp, x, step, scratch=scratch, in_place=in_place)


@kernel("Shrink", versions=(9,))
def shrink(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> X - bias above lambd, X + bias below -lambd, 0 between; integers are computed as float64."""
    x = tensor(op, specs, 0)
    dtype = one_dtype(op, (x,), NUMBERS)
    wide = np.dtype(np.float32) if dtype in FLOATS and dtype.itemsize <= 4 else np.dtype(np.float64)
    step = partial(_shrink, xp, float(op.attr("lambd", 0.5)), float(op.attr("bias", 0.0)))
    return chain(xp, x, step, scratch=(wide, wide, BOOL))


@kernel("PRelu", versions=(7, 9, 16))
def prelu(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, slope (broadcasts to X) -> X where X >= 0, slope X elsewhere."""
    x, slope = tensor(op, specs, 0), tensor(op, specs, 1)
    if one_dtype(op, (x, slope), NUMBERS) in NARROW:
        return widened(prelu, op, specs, xp)
    if not broadcasts_to(slope, x.shape):
        fail(op, f"of shape {list(slope.shape)} does not broadcast to {list(x.shape)}", "slope")
    parts: tuple[Part, ...] = ((x.shape, BOOL),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        (high,) = carve(workspace, *parts)
        return quiet(_prelu, xp, inputs[0], inputs[1], outputs[0], high)

    return computed((TensorSpec(x.dtype, x.shape),), bind, workspace_bytes=carved_bytes(*parts))


def _prelu(xp: Any, x: Array, slope: Array, out: Array, high: Array) -> None:
    xp.less(x, x.dtype.type(0), high)
    xp.logical_not(high, high)  # NaN stays what it is
    xp.multiply(x, slope, out)
    xp.copyto(out, x, where=high)
