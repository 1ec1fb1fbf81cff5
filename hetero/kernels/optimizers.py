"""ai.onnx.preview.training's optimizers: one step of Adagrad, Adam and Momentum for any number of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.conv import FLOATS
from hetero.kernels.operands import fail, host_reason, text_of
from hetero.kernels.quiet import Quiet
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

DOMAIN = "ai.onnx.preview.training"
Step = Callable[[Array, Array, Sequence[Any], Sequence[Any]], None]
"""(rate R, number of the update T, one tensor's operands, its outputs)."""


def _steps(
    op: Operation, specs: Sequence[Spec], xp: Any, step: Step, states: int, results: Sequence[int]
) -> Compiled:
    """The kernel that makes `step` for each tensor: operands are R, T, then all tensors, all gradients, then each of
    the `states`; outputs are the new tensors and states, like the operands at the places `results`."""
    per = states + 2
    if len(specs) < 2 + per or (len(specs) - 2) % per:
        fail(op, f"{len(specs)} inputs, expected R, T and {per} for each tensor")
    n = (len(specs) - 2) // per
    operands = [tensor(op, specs, i) for i in range(len(specs))]
    for k in range(n):
        some = operands[2 + k :: n]
        if any(s != some[0] for s in some):
            fail(op, f"tensor {k}: operands {', '.join(map(str, some))} differ")
        if some[0].dtype not in FLOATS:
            raise UnsupportedError(f"{op.id} of {some[0].dtype}", op=op.id, node=op.name)
    declared = [operands[2 + k] for _ in results for k in range(n)]
    if len(op.present_outputs) != len(declared) or not all(op.present_outputs):
        fail(op, f"{len(op.present_outputs)} outputs, expected {len(declared)}")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        rate, count = inputs[0].reshape(()), inputs[1].reshape(())

        def call() -> None:
            for k in range(n):
                step(rate, count, inputs[2 + k :: n], outputs[k::n])

        return Quiet(call)

    if operands[0].size != 1 or operands[1].size != 1:
        fail(op, f"R and T must be scalars, are {operands[0]} and {operands[1]}")
    specs_out = [TensorSpec(s.dtype, s.shape) for s in declared]
    return computed(specs_out, bind, contiguous=(0, 1), capture=host_reason(xp, "makes arrays"))


def _scalar(value: Array, like: Array) -> Array:
    """A factor in the tensor's dtype, so that it does not widen the products."""
    return value.astype(like.dtype)


@kernel("Adagrad", domain=DOMAIN, versions=(1,))
def adagrad(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """R, T, X…, G…, H… (squared gradients) -> X…, H…: X - rate G / (√H + epsilon)."""
    decay, epsilon = op.attr("decay_factor", 0.0), op.attr("epsilon", 1e-6)
    norm = op.attr("norm_coefficient", 0.0)

    def step(rate: Array, count: Array, operands: Sequence[Any], outputs: Sequence[Any]) -> None:
        x, gradient, squares = operands
        regular = norm * x + gradient
        xp.add(squares, regular * regular, outputs[1])
        scale = _scalar(rate / (1 + count * decay), x)
        xp.subtract(x, scale * regular / (xp.sqrt(outputs[1]) + epsilon), outputs[0])

    return _steps(op, specs, xp, step, 1, (0, 2))


@kernel("Adam", domain=DOMAIN, versions=(1,))
def adam(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """R, T, X…, G…, V… (mean gradients), H… (mean squares) -> X…, V…, H…."""
    alpha, beta, epsilon = op.attr("alpha", 0.9), op.attr("beta", 0.999), op.attr("epsilon", 1e-6)
    norm, after = op.attr("norm_coefficient", 0.0), op.attr("norm_coefficient_post", 0.0)

    def step(rate: Array, count: Array, operands: Sequence[Any], outputs: Sequence[Any]) -> None:
        x, gradient, mean, squares = operands
        regular = norm * x + gradient
        outputs[1][...] = alpha * mean + (1 - alpha) * regular
        outputs[2][...] = beta * squares + (1 - beta) * (regular * regular)
        unbiased = rate * xp.sqrt(1 - xp.power(beta, count)) / (1 - xp.power(alpha, count))
        scale = _scalar(xp.where(count > 0, unbiased, rate), x)
        moved = x - scale * outputs[1] / (xp.sqrt(outputs[2]) + epsilon)
        xp.multiply(moved, 1 - after, outputs[0])

    return _steps(op, specs, xp, step, 2, (0, 2, 3))


@kernel("Momentum", domain=DOMAIN, versions=(1,))
def momentum(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """R, T, X…, G…, V… (momenta) -> X…, V…; `mode` is "standard" or "nesterov"."""
    alpha, beta = op.attr("alpha", 0.0), op.attr("beta", 0.0)
    norm, mode = op.attr("norm_coefficient", 0.0), text_of(op, "mode", "standard")
    if mode not in ("standard", "nesterov"):
        fail(op, f"{mode!r} is neither standard nor nesterov", "mode")

    def step(rate: Array, count: Array, operands: Sequence[Any], outputs: Sequence[Any]) -> None:
        x, gradient, before = operands
        regular = norm * x + gradient
        weight = _scalar(xp.where(count > 0, beta, 1.0), x)
        outputs[1][...] = alpha * before + weight * regular
        moved = outputs[1] if mode == "standard" else regular + alpha * outputs[1]
        xp.subtract(x, _scalar(rate, x) * moved, outputs[0])

    return _steps(op, specs, xp, step, 1, (0, 2))
