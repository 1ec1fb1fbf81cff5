"""The activation functions that RNN, GRU and LSTM name, in place over any array module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.operands import fail
from hetero.program.operation import Operation
from hetero.types import Array

Activation = Callable[[Any, Array], None]
"""(xp, array) -> None: applied to the array where it lies."""


def sigmoid(xp: Any, a: Array) -> None:
    """1 / (1 + exp(-a)) by way of tanh, which never overflows."""
    xp.multiply(a, 0.5, out=a)
    xp.tanh(a, out=a)
    xp.multiply(a, 0.5, out=a)
    xp.add(a, 0.5, out=a)


def tanh(xp: Any, a: Array) -> None:
    """tanh(a)."""
    xp.tanh(a, out=a)


def _relu(xp: Any, a: Array) -> None:
    xp.maximum(a, 0, out=a)


def _affine(alpha: float, beta: float, xp: Any, a: Array) -> None:
    xp.multiply(a, alpha, out=a)
    xp.add(a, beta, out=a)


def _leaky_relu(alpha: float, beta: float, xp: Any, a: Array) -> None:
    xp.copyto(a, a * alpha, where=a < 0)


def _thresholded_relu(alpha: float, beta: float, xp: Any, a: Array) -> None:
    xp.copyto(a, 0, where=a <= alpha)


def _scaled_tanh(alpha: float, beta: float, xp: Any, a: Array) -> None:
    xp.multiply(a, beta, out=a)
    xp.tanh(a, out=a)
    xp.multiply(a, alpha, out=a)


def _hard_sigmoid(alpha: float, beta: float, xp: Any, a: Array) -> None:
    _affine(alpha, beta, xp, a)
    xp.clip(a, 0, 1, out=a)


def _elu(alpha: float, beta: float, xp: Any, a: Array) -> None:
    xp.copyto(a, alpha * xp.expm1(xp.minimum(a, 0)), where=a < 0)


def _softsign(xp: Any, a: Array) -> None:
    xp.divide(a, 1 + xp.absolute(a), out=a)


def _softplus(xp: Any, a: Array) -> None:
    xp.add(xp.log1p(xp.exp(-xp.absolute(a))), xp.maximum(a, 0), out=a)


_PLAIN: dict[str, Activation] = {
    "sigmoid": sigmoid,
    "tanh": tanh,
    "relu": _relu,
    "softsign": _softsign,
    "softplus": _softplus,
}
# With parameters: the function, and its default alpha and beta (None where it has none).
_PARAMETRIC: dict[str, tuple[Callable[[float, float, Any, Array], None], float | None, float | None]] = {
    "affine": (_affine, 1.0, 0.0),
    "leakyrelu": (_leaky_relu, 0.01, None),
    "thresholdedrelu": (_thresholded_relu, 1.0, None),
    "scaledtanh": (_scaled_tanh, 1.0, 1.0),
    "hardsigmoid": (_hard_sigmoid, 0.2, 0.5),
    "elu": (_elu, 1.0, None),
}


def activations_of(op: Operation, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    """Per direction, as many activations as `defaults` has. Names are taken whatever their case.

    activation_alpha and activation_beta are consumed in order by the activations that have such a parameter.
    Raises: KernelError for an unknown name or a wrong count.
    """
    names = [
        (n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n)).lower()
        for n in (op.attr("activations") or [*defaults] * directions)
    ]
    if len(names) != len(defaults) * directions:
        fail(op, f"{len(names)} activations, {len(defaults) * directions} are needed", "activations")
    alphas, betas = list(op.attr("activation_alpha") or ()), list(op.attr("activation_beta") or ())
    found: list[Activation] = []
    for name in names:
        if name in _PLAIN:
            found.append(_PLAIN[name])
            continue
        if name not in _PARAMETRIC:
            fail(op, f"unknown activation {name!r}", "activations")
        function, alpha, beta = _PARAMETRIC[name]
        if alpha is not None and alphas:
            alpha = float(alphas.pop(0))
        if beta is not None and betas:
            beta = float(betas.pop(0))
        found.append(partial(function, alpha or 0.0, beta or 0.0))
    n = len(defaults)
    return [found[d * n : (d + 1) * n] for d in range(directions)]


def clipped(op: Operation) -> float | None:
    """The attribute clip, or None. Raises: KernelError unless positive."""
    clip = op.attr("clip")
    if clip is None or not np.isfinite(clip) or clip == 0:
        return None
    if clip < 0:
        fail(op, f"clip is {clip}, not positive", "clip")
    return float(clip)
