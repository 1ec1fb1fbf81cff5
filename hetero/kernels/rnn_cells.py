"""One time step of RNN, GRU and LSTM: from gates before activation to the next state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.fused import in_turn
from hetero.kernels.jit import jit
from hetero.kernels.jit_call import bound
from hetero.kernels.polynomials import sigmoid32, tanh32
from hetero.kernels.rnn_activation import Activation, sigmoid, tanh
from hetero.types import Array

Step = Callable[[Array], Call]
"""(what the input adds to the gates at this step, (B, G*H)) -> the call that moves the state one step on."""


@dataclass(frozen=True, slots=True)
class CellOperands:
    """One direction's arrays. `states` are the state (B, H), LSTM's cell state second; `fresh` the same for the
    step's result; `gates` (B, G*H) and `spare` (B, H) are scratch."""

    recur: Callable[[Array, Array], object]
    """(state, target): the state's share of the gates, Ht-1 R', into target (B, G*H)."""
    states: tuple[Array, ...]
    fresh: tuple[Array, ...]
    gates: Array
    spare: Array
    peepholes: tuple[Array, ...] | None
    recurrent_bias: Array | None
    """GRU with linear_before_reset: what is added to the hidden gate's recurrent product, (H)."""
    hidden: Array | None = None
    """GRU: R' of the hidden gate alone, (H, H)."""


@dataclass(frozen=True, slots=True)
class CellOptions:
    """Attributes that a step obeys."""

    activations: Sequence[Activation]
    clip: float | None
    input_forget: bool = False
    linear_before_reset: bool = False

    @property
    def plain(self) -> bool:
        """Whether these are the operator's defaults for LSTM or GRU, which compiled code knows."""
        usual = list(self.activations) in ([sigmoid, tanh, tanh], [sigmoid, tanh])
        return usual and self.clip is None and not self.input_forget


def _clip(xp: Any, a: Array, clip: float | None) -> None:
    if clip is not None:
        xp.clip(a, -clip, clip, out=a)


def rnn_step(xp: Any, o: CellOperands, how: CellOptions) -> Step:
    """Ht = f(Xt W' + Ht-1 R' + bias)."""
    (h,), (fresh,), act = o.states, o.fresh, how.activations[0]

    def step(pre: Array) -> None:
        o.recur(h, fresh)
        xp.add(fresh, pre, out=fresh)
        _clip(xp, fresh, how.clip)
        act(xp, fresh)

    return partial(partial, step)


def lstm_step(xp: Any, o: CellOperands, how: CellOptions) -> Step:
    """Gates in the order input, output, forget, cell."""
    (h, c), (h_new, c_new) = o.states, o.fresh
    f, g, k = how.activations
    if how.plain and o.peepholes is None and isinstance(h, np.ndarray) and h.dtype == np.float32:
        fused = lstm_gates.variant(o.gates, c, h_new, c_new)

        def fast(pre: Array) -> Call:
            return in_turn([partial(o.recur, h, o.gates), bound(fused, o.gates, pre, c, h_new, c_new)])

        return fast
    size = h.shape[1]
    gate_i, gate_o, gate_f, gate_c = (o.gates[:, n * size : (n + 1) * size] for n in range(4))

    def step(pre: Array) -> None:
        o.recur(h, o.gates)
        xp.add(o.gates, pre, out=o.gates)
        if o.peepholes is not None:
            p_i, _, p_f = o.peepholes
            for gate, weight in ((gate_i, p_i), (gate_f, p_f)):
                xp.multiply(weight, c, out=o.spare)
                xp.add(gate, o.spare, out=gate)
        for gate, act in ((gate_i, f), (gate_c, g)):
            _clip(xp, gate, how.clip)
            act(xp, gate)
        if how.input_forget:
            xp.subtract(1, gate_i, out=gate_f)
        else:
            _clip(xp, gate_f, how.clip)
            f(xp, gate_f)
        xp.multiply(gate_f, c, out=c_new)
        xp.multiply(gate_i, gate_c, out=o.spare)
        xp.add(c_new, o.spare, out=c_new)
        if o.peepholes is not None:
            xp.multiply(o.peepholes[1], c_new, out=o.spare)
            xp.add(gate_o, o.spare, out=gate_o)
        _clip(xp, gate_o, how.clip)
        f(xp, gate_o)
        xp.copyto(h_new, c_new)
        k(xp, h_new)
        xp.multiply(h_new, gate_o, out=h_new)

    return partial(partial, step)


def gru_step(xp: Any, o: CellOperands, how: CellOptions) -> Step:
    """Gates in the order update, reset, hidden."""
    (h,), (fresh,) = o.states, o.fresh
    f, g = how.activations
    size = h.shape[1]
    z, r, n = (o.gates[:, k * size : (k + 1) * size] for k in range(3))
    linear, shift = how.linear_before_reset, o.recurrent_bias
    if linear and how.plain and isinstance(h, np.ndarray) and h.dtype == np.float32:
        bias = np.zeros(size, np.float32) if shift is None else shift
        fused = gru_gates.variant(o.gates, h, bias, fresh)

        def fast(pre: Array) -> Call:
            return in_turn([partial(o.recur, h, o.gates), bound(fused, o.gates, pre, bias, h, fresh)])

        return fast

    def step(pre: Array) -> None:
        o.recur(h, o.gates)
        for gate, at in ((z, 0), (r, size)):
            xp.add(gate, pre[:, at : at + size], out=gate)
            _clip(xp, gate, how.clip)
            f(xp, gate)
        if linear:
            xp.copyto(fresh, n)
            if shift is not None:
                xp.add(fresh, shift, out=fresh)
            xp.multiply(fresh, r, out=fresh)
        else:
            xp.multiply(r, h, out=o.spare)
            xp.matmul(o.spare, o.hidden, out=fresh)
        xp.add(fresh, pre[:, 2 * size :], out=fresh)
        _clip(xp, fresh, how.clip)
        g(xp, fresh)
        # (1 - z) n + z h
        xp.subtract(h, fresh, out=o.spare)
        xp.multiply(z, o.spare, out=o.spare)
        xp.add(fresh, o.spare, out=fresh)

    return partial(partial, step)


def _lstm_gates_numpy(gates: Array, pre: Array, c: Array, h_new: Array, c_new: Array) -> None:
    size = c.shape[1]
    gates += pre
    gate_i, gate_o, gate_f, gate_c = (gates[:, n * size : (n + 1) * size] for n in range(4))
    for gate in (gate_i, gate_o, gate_f):
        sigmoid(np, gate)
    tanh(np, gate_c)
    np.multiply(gate_f, c, out=c_new)
    gate_i *= gate_c
    c_new += gate_i
    np.tanh(c_new, out=h_new)
    h_new *= gate_o


@jit("f4[2]!, f4[2], f4[2], f4[2]!, f4[2]!", twin=_lstm_gates_numpy)
def lstm_gates(gates: Array, pre: Array, c: Array, h_new: Array, c_new: Array) -> None:
    """Gates (B, 4*H) before `pre` and activation -> the next states, with sigmoid and tanh throughout."""
    size = c.shape[1]
    for b in range(c.shape[0]):
        g = gates[b]
        p = pre[b]
        for k in range(size):
            state = sigmoid32(g[2 * size + k] + p[2 * size + k]) * c[b, k] + sigmoid32(g[k] + p[k]) * tanh32(
                g[3 * size + k] + p[3 * size + k]
            )
            c_new[b, k] = state
            h_new[b, k] = sigmoid32(g[size + k] + p[size + k]) * tanh32(state)


def _gru_gates_numpy(gates: Array, pre: Array, bias: Array, h: Array, h_new: Array) -> None:
    size = h.shape[1]
    z, r, n = (gates[:, k * size : (k + 1) * size] for k in range(3))
    gates[:, : 2 * size] += pre[:, : 2 * size]
    sigmoid(np, z)
    sigmoid(np, r)
    n += bias
    n *= r
    n += pre[:, 2 * size :]
    tanh(np, n)
    np.subtract(h, n, out=h_new)
    h_new *= z
    h_new += n


@jit("f4[2]!, f4[2], f4[1], f4[2], f4[2]!", twin=_gru_gates_numpy)
def gru_gates(gates: Array, pre: Array, bias: Array, h: Array, h_new: Array) -> None:
    """Recurrent products (B, 3*H) -> the next state, with linear_before_reset, sigmoid and tanh."""
    size = h.shape[1]
    for b in range(h.shape[0]):
        g = gates[b]
        p = pre[b]
        for k in range(size):
            reset = sigmoid32(g[size + k] + p[size + k])
            n = tanh32(reset * (g[2 * size + k] + bias[k]) + p[2 * size + k])
            h_new[b, k] = n + sigmoid32(g[k] + p[k]) * (h[b, k] - n)
