"""Operators that ONNX tried and dropped before opset 10, which old image models still carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hetero.kernels.base import ANY_VERSION, Call, Compiled, computed, kernel, tensor, viewed
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.fused import chain, in_turn
from hetero.kernels.operands import fail
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import NARROW, widened
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import FLOATS, Array, Spec, TensorSpec


def _affine(xp: Any, alpha: float, beta: float, x: Array, out: Array) -> None:
    xp.multiply(x, alpha, out)
    xp.add(out, beta, out)


def _scaled_tanh(xp: Any, alpha: float, beta: float, x: Array, out: Array) -> None:
    xp.multiply(x, beta, out)
    xp.tanh(out, out)
    xp.multiply(out, alpha, out)


def _parametric_softplus(xp: Any, alpha: float, beta: float, x: Array, out: Array) -> None:
    xp.multiply(x, beta, out)
    xp.logaddexp(out, 0.0, out)
    xp.multiply(out, alpha, out)


STEPS: dict[str, tuple[Callable[..., None], float, float]] = {
    "Affine": (_affine, 1.0, 0.0),
    "ScaledTanh": (_scaled_tanh, 1.0, 1.0),
    "ParametricSoftplus": (_parametric_softplus, 1.0, 1.0),
}
"""Operator -> its step, and the alpha and beta it has where the node names none."""


@kernel("Affine", "ScaledTanh", "ParametricSoftplus", versions=ANY_VERSION)
def two_parameters(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> alpha X + beta, alpha tanh(beta X), or alpha log(exp(beta X) + 1), in X's float dtype."""
    x = tensor(op, specs, 0)
    if one_dtype(op, (x,), FLOATS) in NARROW:
        return widened(two_parameters, op, specs, xp)
    step, alpha, beta = STEPS[op.op_type]
    return chain(xp, x, partial(step, xp, float(op.attr("alpha", alpha)), float(op.attr("beta", beta))))


@kernel("Scale", "ImageScaler", versions=ANY_VERSION)
def scale(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> scale X; ImageScaler, X (N, C, H, W): scale X + bias, which has one value a channel."""
    x = tensor(op, specs, 0)
    if one_dtype(op, (x,), FLOATS) in NARROW:
        return widened(scale, op, specs, xp)
    factor = float(op.attr("scale", 1.0))
    bias = tuple(op.attr("bias", ())) if op.op_type == "ImageScaler" else ()
    if op.op_type == "ImageScaler" and (len(x.shape) != 4 or len(bias) != x.shape[1]):
        fail(op, f"{len(bias)} values for an input of {list(x.shape)}", "bias")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        calls: list[Call] = [partial(xp.multiply, inputs[0], factor, outputs[0])]
        if bias:
            shift = xp.asarray(bias, x.dtype).reshape(1, -1, 1, 1)
            calls.append(partial(xp.add, outputs[0], shift, outputs[0]))
        return Quiet(in_turn(calls))

    return computed((TensorSpec(x.dtype, x.shape),), bind, overwrites=((0, 0),))


@kernel("Crop", versions=ANY_VERSION, dispatch=Dispatch.VIEW, strided=True)
def crop(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, H, W) without `border` (left, top, right, bottom); `scale` (height, width) counts from its corner."""
    x = tensor(op, specs, 0)
    border, size = tuple(op.attr("border", ())), tuple(op.attr("scale", ()))
    if len(x.shape) != 4 or len(border) != 4 or len(size) not in (0, 2):
        fail(op, f"{list(border)} and scale {list(size)} for an input of {list(x.shape)}", "border")
    left, top, right, bottom = border
    ends = (top + size[0], left + size[1]) if size else (x.shape[2] - bottom, x.shape[3] - right)
    if not (0 <= top < ends[0] <= x.shape[2] and 0 <= left < ends[1] <= x.shape[3]):
        fail(op, f"{list(border)} and scale {list(size)} leave nothing of {list(x.shape)}", "border")
    kept = (slice(None), slice(None), slice(top, ends[0]), slice(left, ends[1]))
    output = TensorSpec(x.dtype, (*x.shape[:2], ends[0] - top, ends[1] - left))
    return viewed(
        (output,),
        lambda inputs: (inputs[0][kept],),
        lambda i, o, _: partial(xp.copyto, o[0], i[0][kept]),
    )
