"""Whole sequences of LSTMs on bytes in one compiled loop: states rounded to 256 levels, products of integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.derived import Keeper
from hetero.kernels.fused import in_turn
from hetero.kernels.jit import inline, jit
from hetero.kernels.polynomials import sigmoid32, tanh32
from hetero.kernels.quantized import rounded_product
from hetero.kernels.rnn_cells import lstm_gates
from hetero.kernels.widen import is_constant
from hetero.types import Array

LARGEST_BATCH = 8
"""Beyond it one product of floats for the whole batch wins: the weights are then read once a step."""
LARGEST_HIDDEN = 1 << 15
"""So many products of two numbers of 9 bits fit into an int32."""
_ZERO, _ONE, _LEVELS = np.float32(0), np.float32(1), np.float32(255)
_NOTHING = np.int32(0)


def bytes_sequence_serves(hidden: int, batch: int, xp: Any) -> bool:
    """Whether a direction of this size is faster in one loop."""
    return xp is np and batch <= LARGEST_BATCH and 0 < hidden <= LARGEST_HIDDEN


def bind_bytes_sequence(
    r: Array,
    zeros: Array,
    scales: Array,
    states: Sequence[Array],
    gates: Array,
    pre: Array,
    y: Array,
    d: int,
    backwards: bool,
    shared: bool,
    keep: Keeper,
) -> Call:
    """The call that runs direction `d`: r (H, 4*H) in bytes, their zero points and scales (4*H) each; the rest is as
    for `lstm_bytes_sequence`."""
    wide = r.shape[1]
    levels, sums = np.empty(len(r), np.int32), np.empty(wide, np.int32)
    constant = is_constant(r) and is_constant(zeros) and is_constant(scales)
    shift = np.int8(-128 if r.dtype == np.uint8 else 0)
    fills: list[Call] = []

    def copied(
        what: str, shape: tuple[int, ...], dtype: type, source: Array, fill: Callable[..., object]
    ) -> Array:
        """`fill(target)` of a new array: made once where the weights are constant, else by each call."""
        target: Array = np.empty(shape, dtype)
        if not constant:
            fills.append(partial(fill, target))
            return target

        def make() -> Array:
            fill(target)
            return target

        return keep((what, d), (source,), make)

    signed = copied(
        "signed", r.shape, np.int8, r, lambda out: np.bitwise_xor(r.view(np.int8), shift, out=out)
    )
    zero = copied(
        "zeros", (wide,), np.int32, zeros, lambda out: np.add(zeros, shift, out=out, dtype=np.int32)
    )
    scale = copied("scales", (wide,), np.float32, scales, lambda out: np.copyto(out, scales))
    function = lstm_bytes_sequence.variant(pre, signed)
    act = partial(
        function, pre, signed, zero, scale, *states, y, d, int(backwards), int(shared), gates, levels, sums
    )
    return in_turn([*fills, act])


@inline
def add_bytes(sums: Any, levels: Any, r: Any) -> None:
    """sums (N) += levels (K) @ r (K, N), in integers, four rows of r at a time."""
    count = sums.shape[0]
    size = r.shape[0]
    k = 0
    # Slices, not index sums: numba checks a sum for wrapping round below zero, which stops SIMD.
    while k + 4 <= size:
        h0, h1, h2, h3 = levels[k], levels[k + 1], levels[k + 2], levels[k + 3]
        r0, r1, r2, r3 = r[k][:count], r[k + 1][:count], r[k + 2][:count], r[k + 3][:count]
        for q in range(count):
            sums[q] = np.int32(
                sums[q]
                + h0 * np.int32(r0[q])
                + h1 * np.int32(r1[q])
                + h2 * np.int32(r2[q])
                + h3 * np.int32(r3[q])
            )
        k += 4
    while k < size:
        h0 = levels[k]
        r0 = r[k][:count]
        for q in range(count):
            sums[q] = np.int32(sums[q] + h0 * np.int32(r0[q]))
        k += 1


def _lstm_bytes_numpy(
    pre: Array,
    r: Array,
    zeros: Array,
    scales: Array,
    h: Array,
    c: Array,
    y: Array,
    d: int,
    backwards: int,
    shared: int,
    gates: Array,
    levels: Array,
    sums: Array,
) -> None:
    weights = r.astype(np.float64) - zeros
    for s in range(len(pre)):
        t = len(pre) - 1 - s if backwards else s
        rounded_product(np, [weights], scales, bool(shared), h, gates)
        lstm_gates.twin(gates, pre[t], c.copy(), h, c)
        if len(y):
            y[t, d] = h


@jit(
    "f4[3], i1[2], i4[1], f4[1], f4[2]!, f4[2]!, f4[4]!, i8, i8, i8, f4[2]!, i4[1]!, i4[1]!",
    twin=_lstm_bytes_numpy,
)
def lstm_bytes_sequence(
    pre: Array,
    r: Array,
    zeros: Array,
    scales: Array,
    h: Array,
    c: Array,
    y: Array,
    d: int,
    backwards: int,
    shared: int,
    gates: Array,
    levels: Array,
    sums: Array,
) -> None:
    """As `rnn_sequence.lstm_sequence`, over weights r (H, 4*H) with a zero point and a scale for each column.

    A step's states are rounded as by `quantized.rounded_product`, over one range if `shared`. `gates` (B, 4*H),
    `levels` (H) and `sums` (4*H) are scratch.
    """
    steps = pre.shape[0]
    size = r.shape[0]
    batch = h.shape[0]
    for s in range(steps):
        t = steps - 1 - s if backwards else s
        # All ranges first: the loop after it moves the states.
        low, high = _ZERO, _ZERO
        if shared:
            for b in range(batch):
                for k in range(size):
                    low = min(low, h[b, k])
                    high = max(high, h[b, k])
        for b in range(batch):
            g = gates[b]
            state = h[b]
            cell = c[b]
            if not shared:
                low, high = _ZERO, _ZERO
                for k in range(size):
                    low = min(low, state[k])
                    high = max(high, state[k])
            step = (high - low) / _LEVELS
            if step == _ZERO:
                step = _ONE
            zero = np.rint(min(max(-low / step, _ZERO), _LEVELS))
            total = _NOTHING
            for k in range(size):
                level = np.int32(min(max(np.rint(state[k] / step) + zero, _ZERO), _LEVELS) - zero)
                levels[k] = level
                total = np.int32(total + level)
            sums[:] = _NOTHING
            add_bytes(sums, levels, r)
            part = pre[t, b]
            for q in range(4 * size):
                product = np.float32(np.int32(sums[q] - total * zeros[q]))
                g[q] = product * (step * scales[q]) + part[q]
            gate_i, gate_o, gate_f, gate_c = g[:size], g[size:][:size], g[2 * size :][:size], g[3 * size :]
            for k in range(size):
                new = sigmoid32(gate_f[k]) * cell[k] + sigmoid32(gate_i[k]) * tanh32(gate_c[k])
                cell[k] = new
                state[k] = sigmoid32(gate_o[k]) * tanh32(new)
            if y.shape[0] > 0:
                y[t, d, b, :] = state
