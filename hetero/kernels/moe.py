"""MoE and QMoE of com.microsoft: each token goes through the k experts that its router scores highest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.moe_weights import Bank, FloatBank, Matrix, quantised_bank
from hetero.kernels.operands import fail, host_reason, text_of
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import FLOAT32, NARROW
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import Array, Spec, TensorSpec


def _sigmoid(xp: Any, x: Array) -> Array:
    return 1 / (1 + xp.exp(-x))


def _gelu(xp: Any, x: Array) -> Array:
    return (
        0.5 * x * (1 + xp.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)))
    )


_ACTIVATIONS: dict[str, Callable[[Any, Array], Array]] = {
    "relu": lambda xp, x: xp.maximum(x, 0),
    "relu2": lambda xp, x: xp.square(xp.maximum(x, 0)),
    "gelu": _gelu,
    "silu": lambda xp, x: x * _sigmoid(xp, x),
    "identity": lambda xp, x: x,
}


@dataclass(frozen=True, slots=True)
class Gate:
    """What turns the first layer's result, (tokens, width inner) and maybe a second one, into (tokens, inner).

    `fusion`: 0 (gate and linear part come as two results), 1 (they alternate in one) or 2 (one follows the other).
    """

    activation: str
    fusion: int
    alpha: float
    beta: float
    limit: float | None
    limit_after: bool

    @property
    def width(self) -> int:
        """How many times the inner size the first layer gives."""
        return 2 if self.activation in ("swiglu", "geglu") and self.fusion else 1

    def apply(self, xp: Any, first: Array, third: Array | None) -> Array:
        """The inner activations, float32."""
        if self.width == 2:
            half = first.shape[1] // 2
            split = (
                (first[:, ::2], first[:, 1::2]) if self.fusion == 1 else (first[:, :half], first[:, half:])
            )
            first, third = split
        if self.activation == "swiglu" and third is not None:
            return self._swiglu(xp, first, third)
        function = _gelu if self.activation == "geglu" else _ACTIVATIONS[self.activation]
        found = function(xp, first)
        return found if third is None else found * third

    def _swiglu(self, xp: Any, gate: Array, linear: Array) -> Array:
        if self.limit is not None:
            linear = linear.clip(-self.limit, self.limit)
            gate = gate if self.limit_after else xp.minimum(gate, np.float32(self.limit))
        opened = gate * _sigmoid(xp, np.float32(self.alpha) * gate)
        if self.limit is not None and self.limit_after:
            opened = xp.minimum(opened, np.float32(self.limit))
        return opened * (linear + np.float32(self.beta))


def _gate_of(op: Operation) -> Gate:
    activation = text_of(op, "activation_type", "relu")
    if activation not in (*_ACTIVATIONS, "swiglu", "geglu"):
        raise UnsupportedError(
            f"activation {activation!r}", op=op.id, node=op.name, operand="activation_type"
        )
    fusion = int(op.attr("swiglu_fusion", 0))
    if fusion not in (0, 1, 2) or (activation == "geglu" and not fusion):
        fail(op, f"{fusion} names no layout for {activation}", "swiglu_fusion")
    limit = op.attr("swiglu_limit")
    return Gate(
        activation,
        fusion,
        float(op.attr("activation_alpha", 1.0)),
        float(op.attr("activation_beta", 0.0)),
        None if limit is None else float(limit),
        bool(op.attr("swiglu_limit_after_activation", 0)),
    )


def route(xp: Any, scores: Array, weights: Array | None, k: int, *, normalise: bool) -> tuple[Array, Array]:
    """(expert numbers, their weights), both (tokens, k), best first; of equal scores the later expert comes first.

    The weights are the softmax of `scores` (tokens, experts) over all experts, or taken from `weights`, in float32;
    normalised they add up to 1.
    """
    last = scores.shape[1] - 1
    order = xp.argsort(-scores[:, ::-1], axis=1, kind="stable")[:, :k]
    chosen = last - order
    if weights is None:
        weights = xp.exp(scores - scores.max(axis=1, keepdims=True))
        weights = weights / weights.sum(axis=1, keepdims=True)
    taken = xp.take_along_axis(weights, chosen, 1)
    if normalise:
        taken = taken / taken.sum(axis=1, keepdims=True)
    return chosen, taken


@dataclass(frozen=True, slots=True)
class _Layers:
    """The banks of an expert's layers and where the biases stand; the third is None where gate and first are one."""

    gate: Gate
    first: Bank
    second: Bank
    third: Bank | None
    biases: tuple[int, int, int]


def _compile(
    op: Operation, specs: Sequence[Spec], xp: Any, layers: _Layers, router_weights: int | None
) -> Compiled:
    x, scores = tensor(op, specs, 0), tensor(op, specs, 1)
    hidden = x.shape[-1]
    tokens = math.prod(x.shape[:-1])
    experts = layers.first.experts
    k = int(op.attr("k", 1))
    if scores.shape != (tokens, experts):
        fail(op, f"of shape {list(scores.shape)} for {tokens} tokens and {experts} experts", "router_probs")
    if not 1 <= k <= experts:
        fail(op, f"{k} of {experts} experts", "k")
    if layers.second.experts != experts or layers.second.outputs != hidden:
        fail(op, f"{layers.second.experts} experts of {layers.second.outputs} outputs", "fc2_experts_weights")
    for bank, index in zip((layers.first, layers.second, layers.third), layers.biases, strict=True):
        bias = given(specs, index)
        if bias is not None and (bank is None or bias.shape != (experts, bank.outputs)):
            fail(op, f"of shape {list(bias.shape)}", f"input {index}")
    own = given(specs, router_weights) if router_weights is not None else None
    if own is not None and own.shape != scores.shape:
        fail(op, f"of shape {list(own.shape)}, not {list(scores.shape)}", "router_weights")
    normalise = bool(op.attr("normalize_routing_weights", 0)) or (router_weights is not None and own is None)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        matrices = [
            None if b is None else b.bind(inputs, xp) for b in (layers.first, layers.second, layers.third)
        ]
        biases = [inputs[i] if i < len(inputs) else None for i in layers.biases]

        def dense(layer: int, rows: Array, expert: int) -> Array:
            matrix: Matrix | None = matrices[layer]
            assert matrix is not None
            product = xp.matmul(rows, matrix(expert).T)
            bias = biases[layer]
            return product if bias is None else product + bias[expert].astype(FLOAT32)

        def call() -> None:
            rows = inputs[0].reshape(tokens, hidden).astype(FLOAT32)
            shares = None if own is None else inputs[14].astype(FLOAT32)
            chosen, weight = route(xp, inputs[1].astype(FLOAT32), shares, k, normalise=normalise)
            total = xp.zeros((tokens, hidden), FLOAT32)
            for expert in xp.unique(chosen).tolist():
                token, place = xp.nonzero(chosen == expert)
                mine = rows[token]
                third = dense(2, mine, expert) if matrices[2] is not None else None
                inner = layers.gate.apply(xp, dense(0, mine, expert), third)
                total[token] += weight[token, place][:, None] * dense(1, inner, expert)
            xp.copyto(outputs[0], total.reshape(x.shape), casting="unsafe")

        return Quiet(call)

    return computed(
        (TensorSpec(x.dtype, x.shape),), bind, capture=host_reason(xp, "reads the router's choice")
    )


def _input(op: Operation, specs: Sequence[Spec]) -> TensorSpec:
    x = tensor(op, specs, 0)
    one_dtype(op, (x, tensor(op, specs, 1)), NARROW | {FLOAT32})
    if len(x.shape) not in (2, 3):
        fail(op, f"of shape {list(x.shape)} has not two or three axes", "input")
    return x


def _inner(op: Operation, gate: Gate, first: Bank, *, third: bool) -> int:
    if gate.activation == "swiglu" and not gate.fusion and not third:
        fail(op, "are missing: the gate is not fused", "fc3_experts_weights")
    if gate.width == 2 and (third or first.outputs % 2):
        fail(op, f"of {first.outputs} outputs, to be halved, beside fc3: {third}", "fc1_experts_weights")
    return first.outputs // gate.width


@kernel("MoE", domain="com.microsoft", versions=(1,), dispatch=Dispatch.LIBRARY)
def moe(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """input (tokens, hidden) or (batch, sequence, hidden), router_probs (tokens, experts), fc1 weights (experts, inner
    or 2 inner, hidden) and optional bias, fc2 (experts, hidden, inner) and bias, optional fc3 (experts, inner, hidden)
    and bias -> the weighted sum of what the k best experts make of each token.

    `use_sparse_mixer` changes nothing, as in onnxruntime on the host.
    """
    x, gate = _input(op, specs), _gate_of(op)
    one_dtype(op, [s for s in (given(specs, i) for i in range(2, 8)) if s is not None], frozenset((x.dtype,)))
    first = FloatBank(op, specs, 2, None, x.shape[-1])
    has_third = given(specs, 6) is not None
    inner = _inner(op, gate, first, third=has_third)
    second = FloatBank(op, specs, 4, x.shape[-1], inner)
    third = FloatBank(op, specs, 6, inner, x.shape[-1]) if has_third else None
    return _compile(op, specs, xp, _Layers(gate, first, second, third, (3, 5, 7)), None)


@kernel("QMoE", domain="com.microsoft", versions=(1,), dispatch=Dispatch.LIBRARY)
def qmoe(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """As MoE, with weights of 2, 3, 4 or 8 bits (packed along the inputs; scales for each row or, with `block_size`,
    each block of it; optional zero points) or float8, dequantised once for each expert that is ever chosen.

    Without `router_weights` the weights of the chosen experts add up to 1. Activations are never rounded, whatever
    `accuracy_level` allows.
    """
    x, gate = _input(op, specs), _gate_of(op)
    if int(op.attr("weights_prepacked", -1)) == 1:
        raise UnsupportedError("weights in the layout of another device", op=op.id, node=op.name)
    hidden = x.shape[-1]
    first = quantised_bank(op, specs, (2, 3, 11, 15), hidden, "fc1")
    has_third = given(specs, 8) is not None
    inner = _inner(op, gate, first, third=has_third)
    second = quantised_bank(op, specs, (5, 6, 12, 16), inner, "fc2")
    third = quantised_bank(op, specs, (8, 9, 13, 15), hidden, "fc3") if has_third else None
    if third is not None and third.outputs != inner:
        fail(op, f"of {third.outputs} outputs, fc1 has {inner}", "fc3_experts_weights")
    return _compile(op, specs, xp, _Layers(gate, first, second, third, (4, 7, 10)), 14)
