"""Whole sequences of small LSTMs and GRUs in one compiled loop: a step's Python calls would cost more than its work."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.kernels.jit import inline, jit
from hetero.kernels.polynomials import sigmoid32, tanh32
from hetero.kernels.rnn_cells import gru_gates, lstm_gates
from hetero.types import Array

LARGEST_RECURRENCE = 1 << 16
"""Elements of R up to which the loop's own product keeps up with a library's (a quarter megabyte)."""
LARGEST_BATCH = 4
"""Beyond it one product for the whole batch wins: R is then read once a step, not once a sample."""


def sequence_serves(gates: int, hidden: int, batch: int, dtype: np.dtype[Any], xp: Any) -> bool:
    """Whether a direction of this size is faster in one loop."""
    small = batch <= LARGEST_BATCH and gates * hidden * hidden <= LARGEST_RECURRENCE
    return xp is np and dtype == np.float32 and small


@inline
def add_product(g: Any, h: Any, r: Any, first: int, count: int) -> None:
    """g[:count] += h @ r[:, first : first + count], four rows of r at a time."""
    size = r.shape[0]
    k = 0
    # Slices, not index sums: numba checks a sum for wrapping round below zero, which stops SIMD.
    a = g[:count]
    while k + 4 <= size:
        h0, h1, h2, h3 = h[k], h[k + 1], h[k + 2], h[k + 3]
        r0 = r[k][first : first + count]
        r1 = r[k + 1][first : first + count]
        r2 = r[k + 2][first : first + count]
        r3 = r[k + 3][first : first + count]
        for q in range(count):
            a[q] = a[q] + h0 * r0[q] + h1 * r1[q] + h2 * r2[q] + h3 * r3[q]
        k += 4
    while k < size:
        h0 = h[k]
        r0 = r[k][first : first + count]
        for q in range(count):
            a[q] += h0 * r0[q]
        k += 1


def _lstm_numpy(
    pre: Array, r: Array, h: Array, c: Array, y: Array, d: int, backwards: int, gates: Array
) -> None:
    for s in range(len(pre)):
        t = len(pre) - 1 - s if backwards else s
        np.matmul(h, r, out=gates)
        lstm_gates.twin(gates, pre[t], c.copy(), h, c)
        if len(y):
            y[t, d] = h


@jit("f4[3], f4[2], f4[2]!, f4[2]!, f4[4]!, i8, i8, f4[2]!", twin=_lstm_numpy)
def lstm_sequence(
    pre: Array, r: Array, h: Array, c: Array, y: Array, d: int, backwards: int, gates: Array
) -> None:
    """Runs states h and c (B, H) through pre (T, B, 4*H), the input's share of the gates; r (H, 4*H); writes y[:, d]
    (T, D, B, H) unless y is empty. `gates` (B, 4*H) is scratch."""
    steps = pre.shape[0]
    size = r.shape[0]
    for s in range(steps):
        t = steps - 1 - s if backwards else s
        for b in range(h.shape[0]):
            g = gates[b]
            state = h[b]
            cell = c[b]
            g[:] = pre[t, b]
            add_product(g, state, r, 0, 4 * size)
            gate_i, gate_o, gate_f, gate_c = g[:size], g[size:][:size], g[2 * size :][:size], g[3 * size :]
            for k in range(size):
                new = sigmoid32(gate_f[k]) * cell[k] + sigmoid32(gate_i[k]) * tanh32(gate_c[k])
                cell[k] = new
                state[k] = sigmoid32(gate_o[k]) * tanh32(new)
            if y.shape[0] > 0:
                y[t, d, b, :] = state


def _gru_numpy(
    pre: Array, r: Array, bias: Array, h: Array, y: Array, d: int, backwards: int, gates: Array
) -> None:
    for s in range(len(pre)):
        t = len(pre) - 1 - s if backwards else s
        np.matmul(h, r, out=gates)
        gru_gates.twin(gates, pre[t], bias, h.copy(), h)
        if len(y):
            y[t, d] = h


@jit("f4[3], f4[2], f4[1], f4[2]!, f4[4]!, i8, i8, f4[2]!", twin=_gru_numpy)
def gru_sequence(
    pre: Array, r: Array, bias: Array, h: Array, y: Array, d: int, backwards: int, gates: Array
) -> None:
    """As `lstm_sequence`, for a GRU with linear_before_reset: gates 3*H, and `bias` (H) inside the reset gate."""
    steps = pre.shape[0]
    size = r.shape[0]
    for s in range(steps):
        t = steps - 1 - s if backwards else s
        for b in range(h.shape[0]):
            g = gates[b]
            state = h[b]
            part = pre[t, b]
            g[:] = 0
            add_product(g, state, r, 0, 3 * size)
            z, reset, n = g[:size], g[size:][:size], g[2 * size :]
            p_z, p_r, p_n = part[:size], part[size:][:size], part[2 * size :]
            for k in range(size):
                new = tanh32(sigmoid32(reset[k] + p_r[k]) * (n[k] + bias[k]) + p_n[k])
                state[k] = new + sigmoid32(z[k] + p_z[k]) * (state[k] - new)
            if y.shape[0] > 0:
                y[t, d, b, :] = state


def _gru_reset_numpy(pre: Array, r: Array, h: Array, y: Array, d: int, backwards: int, gates: Array) -> None:
    size = len(r)
    for s in range(len(pre)):
        t = len(pre) - 1 - s if backwards else s
        np.matmul(h, r, out=gates)
        gates[:, : 2 * size] += pre[t][:, : 2 * size]
        z, reset = (0.5 + 0.5 * np.tanh(0.5 * gates[:, k * size : (k + 1) * size]) for k in range(2))
        new = np.tanh((reset * h) @ r[:, 2 * size :] + pre[t][:, 2 * size :])
        h[...] = new + z * (h - new)
        if len(y):
            y[t, d] = h


@jit("f4[3], f4[2], f4[2]!, f4[4]!, i8, i8, f4[2]!", twin=_gru_reset_numpy)
def gru_reset_sequence(
    pre: Array, r: Array, h: Array, y: Array, d: int, backwards: int, gates: Array
) -> None:
    """As `gru_sequence`, for a GRU that resets its state before the hidden gate's product."""
    steps = pre.shape[0]
    size = r.shape[0]
    for s in range(steps):
        t = steps - 1 - s if backwards else s
        for b in range(h.shape[0]):
            g = gates[b]
            state = h[b]
            g[:] = pre[t, b]
            add_product(g, state, r, 0, 2 * size)
            z, reset, n = g[:size], g[size:][:size], g[2 * size :]
            for k in range(size):
                z[k] = sigmoid32(z[k])
                reset[k] = sigmoid32(reset[k]) * state[k]
            add_product(n, reset, r, 2 * size, size)
            for k in range(size):
                new = tanh32(n[k])
                state[k] = new + z[k] * (state[k] - new)
            if y.shape[0] > 0:
                y[t, d, b, :] = state
