"""The Gelu family, with the bias that comes before it in the com.microsoft operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from hetero.kernels.base import Bind, Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.elementary import GELU_TANH_SCALE
from hetero.kernels.erf import erf_into, scratch_dtypes
from hetero.kernels.fused import chain
from hetero.kernels.operands import fail
from hetero.kernels.tape_kernel import taped
from hetero.kernels.widen import NARROW, widened
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec


def _gelu_erf(xp: Any, x: Array, out: Array, t: Array, *scratch: Array) -> None:
    """out = x / 2 (1 + erf(x / sqrt 2)); `out` may be `x`."""
    xp.multiply(x, math.sqrt(0.5), t)
    erf_into(xp, t, t, *scratch)
    xp.add(t, 1.0, t)
    xp.multiply(t, 0.5, t)
    xp.multiply(x, t, out)


def _gelu_tanh(xp: Any, x: Array, out: Array, t: Array) -> None:
    """out = x / 2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³))); `out` may be `x`."""
    xp.multiply(x, x, t)
    xp.multiply(t, 0.044715 * GELU_TANH_SCALE, t)
    xp.add(t, GELU_TANH_SCALE, t)
    xp.multiply(t, x, t)
    xp.tanh(t, t)
    xp.add(t, 1.0, t)
    xp.multiply(t, 0.5, t)
    xp.multiply(x, t, out)


@kernel("Gelu", versions=(20,))
@kernel("Gelu", "BiasGelu", "FastGelu", domain="com.microsoft", versions=(1,))
def gelu(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, optional bias (last extent of X; BiasGelu, FastGelu) -> gelu(X + bias), in X's float dtype."""
    x, bias = tensor(op, specs, 0), given(specs, 1)
    operands = (x,) if bias is None else (x, bias)
    if one_dtype(op, operands, FLOATS) in NARROW:
        return widened(gelu, op, specs, xp)
    if bias is not None and (not x.shape or bias.shape != x.shape[-1:]):
        fail(op, f"has shape {list(bias.shape)}, the input {list(x.shape)}", "bias")
    on_tape = taped(op, specs, x.shape, xp)
    if on_tape is not None:
        return on_tape
    approximate = op.attr("approximate", "none")
    if approximate in ("tanh", b"tanh") or op.op_type == "FastGelu":
        compiled = chain(xp, x, partial(_gelu_tanh, xp), scratch=(x.dtype,))
    else:
        compiled = chain(xp, x, partial(_gelu_erf, xp), scratch=(x.dtype, *scratch_dtypes(x.dtype)))
    if bias is None:
        return compiled
    inner = compiled.bind
    assert inner is not None  # chain always binds
    return computed(
        compiled.outputs,
        _after_bias(inner, xp),
        contiguous=(0,),
        overwrites=((0, 0),),
        workspace_bytes=compiled.workspace_bytes,
    )


def _after_bias(inner: Bind, xp: Any) -> Bind:
    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        add = partial(xp.add, inputs[0], inputs[1], outputs[0])
        activate = inner(outputs, outputs, workspace)

        def call() -> None:
            add()
            activate()

        return call

    return bind
