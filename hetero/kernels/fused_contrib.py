"""com.microsoft's FusedConv and FusedGemm: the standard operator with an activation on its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hetero.errors import UnsupportedError
from hetero.kernels.activation import activation, relu
from hetero.kernels.arithmetic import clip
from hetero.kernels.base import Call, Compiled, CompileFunction, given, kernel, tensor
from hetero.kernels.compose import followed_by
from hetero.kernels.conv import conv
from hetero.kernels.elementwise import unary
from hetero.kernels.fused import in_turn
from hetero.kernels.matmul import gemm
from hetero.kernels.operands import fail, text_of
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import NARROW, widened
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import Spec, TensorSpec

ACTIVATIONS: dict[str, tuple[CompileFunction, int, tuple[str, ...]]] = {
    "Relu": (relu, 14, ()),
    "Tanh": (unary, 13, ()),
    "Sigmoid": (activation, 13, ()),
    "LeakyRelu": (activation, 16, ("alpha",)),
    "Clip": (clip, 6, ("min", "max")),
    "HardSigmoid": (activation, 22, ("alpha", "beta")),
    "Elu": (activation, 22, ("alpha",)),
    "Selu": (activation, 22, ("alpha", "gamma")),
    "Celu": (activation, 12, ("alpha",)),
    "ThresholdedRelu": (activation, 22, ("alpha",)),
    "Softplus": (activation, 22, ()),
    "Softsign": (activation, 22, ()),
    "HardSwish": (activation, 22, ()),
}
"""Activation -> what compiles it, as which version of its operator, and the attributes it takes, in order."""


def _activated(op: Operation, plain: Compiled, parameters: Mapping[str, float], xp: Any) -> Compiled:
    """`plain`, followed by the activation that `op` names, if any.

    Raises: UnsupportedError for an activation that is none of `ACTIVATIONS`.
    """
    name = text_of(op, "activation", "")
    if not name:
        return plain
    if name not in ACTIVATIONS:
        raise UnsupportedError(
            f"{name!r} is no activation known here", op=op.id, node=op.name, operand="activation"
        )
    compile_it, version, takes = ACTIVATIONS[name]
    chosen = {key: value for key, value in parameters.items() if key in takes}
    after = Operation("", name, version, chosen, (True,), (True,), name=op.name, opset=version)
    return followed_by(plain, compile_it(after, [_output(plain)], xp))


def _output(compiled: Compiled) -> TensorSpec:
    spec = compiled.outputs[0]
    assert isinstance(spec, TensorSpec)
    return TensorSpec(spec.dtype, spec.shape)


@kernel("FusedConv", domain="com.microsoft", versions=(1,))
def fused_conv(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, W, optional B as Conv takes them, optional Z of the result's shape -> activation(Conv(X, W, B) + Z).

    `activation_params` holds what the activation takes: alpha of LeakyRelu, min and max of Clip, alpha and beta of
    HardSigmoid.
    """
    x, z = tensor(op, specs, 0), given(specs, 3)
    if x.dtype in NARROW:
        return widened(fused_conv, op, specs, xp)
    plain = conv(op, specs[:3], xp)
    if z is not None:
        plain = _plus(op, plain, z, xp)
    values = [float(v) for v in op.attr("activation_params", ())]
    name = text_of(op, "activation", "")
    takes = ACTIVATIONS[name][2] if name in ACTIVATIONS else ()
    if values and len(values) != len(takes):
        fail(op, f"{values} for {name!r}, which takes {list(takes)}", "activation_params")
    return _activated(op, plain, dict(zip(takes, values, strict=False)), xp)


def _plus(op: Operation, plain: Compiled, z: TensorSpec, xp: Any) -> Compiled:
    """`plain` (a convolution) with input 3 added to its result."""
    output, inner = _output(plain), plain.bind
    assert inner is not None
    if z.shape != output.shape or z.dtype != output.dtype:
        fail(op, f"is {z}, the convolution's result {output}", "Z")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        convolve = inner(inputs[:3], outputs, workspace)
        return Quiet(in_turn([convolve, partial(xp.add, outputs[0], inputs[3], outputs[0])]))

    return replace(plain, bind=bind)


@kernel("FusedGemm", domain="com.microsoft", versions=(1,), dispatch=Dispatch.LIBRARY)
def fused_gemm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A, B, optional C as Gemm takes them -> activation(alpha A B + beta C).

    `activation_alpha`, `activation_beta` and `activation_gamma` are the activation's own attributes.
    """
    if tensor(op, specs, 0).dtype in NARROW:
        return widened(fused_gemm, op, specs, xp)
    parameters = {
        name: float(op.attr(f"activation_{name}"))
        for name in ("alpha", "beta", "gamma")
        if op.attr(f"activation_{name}") is not None
    }
    return _activated(op, gemm(op, specs, xp), parameters, xp)
