"""Whole sequences of LSTMs on bytes in one compiled loop: states rounded to 256 levels, products of integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.derived import Keeper
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm_bytes import pack_bytes, panel_shape, sum_columns
from hetero.kernels.jit import jit
from hetero.kernels.jit_byte_tiles import QUAD, byte_tile_of_1
from hetero.kernels.jit_call import bound
from hetero.kernels.jit_tiles import lined_up
from hetero.kernels.polynomials import sigmoid32, tanh32
from hetero.kernels.quantized import rounded_product
from hetero.kernels.rnn_cells import lstm_gates
from hetero.kernels.row_loops import address
from hetero.kernels.widen import is_constant
from hetero.types import Array

LARGEST_BATCH = 8
"""Beyond it one product of floats for the whole batch wins: the weights are then read once a step."""
LARGEST_HIDDEN = 1 << 15
"""So many products of two numbers of 9 bits fit into an int32."""
_ZERO, _ONE, _LEVELS = np.float32(0), np.float32(1), np.float32(255)


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
    wide, hidden = r.shape[1], len(r)
    shape = panel_shape(hidden, wide)
    levels, sums = np.zeros(shape[1] * QUAD, np.uint8), np.empty(wide, np.int32)
    start = np.zeros(shape[0] * shape[2], np.int32)
    constant = is_constant(r) and is_constant(zeros) and is_constant(scales)
    shift = np.int8(-128 if r.dtype == np.uint8 else 0)
    fills: list[Call] = []

    def copied(
        what: str, shape: tuple[int, ...], dtype: type, source: Array, fill: Callable[..., object]
    ) -> Array:
        """`fill(target)` of a new array: made once where the weights are constant, else by each call."""
        target: Array = lined_up(shape, dtype)
        if not constant:
            fills.append(partial(fill, target))
            return target

        def make() -> Array:
            fill(target)
            return target

        return keep((what, d), (source,), make)

    panels = copied("panels", shape, np.int8, r, partial(pack_bytes, r))
    totals = copied("totals", (wide,), np.int32, r, partial(sum_columns, r))
    zero = copied(
        "zeros", (wide,), np.int32, zeros, lambda out: np.add(zeros, shift, out=out, dtype=np.int32)
    )
    scale = copied("scales", (wide,), np.float32, scales, lambda out: np.copyto(out, scales))
    places = np.array([address(x) for x in (levels, panels, start, sums)], np.int64)
    function = lstm_bytes_sequence.variant(pre, panels)
    act = bound(
        function, pre, panels, totals, zero, scale, *states, y, d, int(backwards), int(shared), gates, levels,
        start, sums, places,
    )  # fmt: skip
    return in_turn([*fills, act])


def _lstm_bytes_numpy(
    pre: Array,
    panels: Array,
    totals: Array,
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
    start: Array,
    sums: Array,
    places: Array,
) -> None:
    size = h.shape[1]
    r = panels.transpose(1, 3, 0, 2).reshape(panels.shape[1] * QUAD, -1)[:size, : 4 * size]
    weights = r.astype(np.float64) - zeros
    for s in range(len(pre)):
        t = len(pre) - 1 - s if backwards else s
        rounded_product(np, [weights], scales, bool(shared), h, gates)
        lstm_gates.twin(gates, pre[t], c.copy(), h, c)
        if len(y):
            y[t, d] = h


@jit(
    "f4[3], i1[4], i4[1], i4[1], f4[1], f4[2]!, f4[2]!, f4[4]!, i8, i8, i8, f4[2]!, u1[1]!, i4[1]!, i4[1]!, i8[1]",
    twin=_lstm_bytes_numpy,
)
def lstm_bytes_sequence(
    pre: Array,
    panels: Array,
    totals: Array,
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
    start: Array,
    sums: Array,
    places: Array,
) -> None:
    """As `rnn_sequence.lstm_sequence`, over weights (H, 4*H) in `panels` (`gemm_bytes.pack_bytes`), with a sum, a
    zero point and a scale for each column.

    A step's states are rounded as by `quantized.rounded_product`, over one range if `shared`. `gates` (B, 4*H),
    `levels` (H up to whole quads), `start` (4*H up to whole panels) and `sums` (4*H) are scratch; `places` has the
    addresses of levels, panels, start and sums.
    """
    steps = pre.shape[0]
    size = h.shape[1]
    wide = sums.shape[0]
    quads, panel = panels.shape[1], panels.shape[2]
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
            shift = np.int32(zero)
            total = np.int32(-np.int32(size) * shift)
            for k in range(size):
                level = np.int32(min(max(np.rint(state[k] / step) + zero, _ZERO), _LEVELS))
                levels[k] = np.uint8(level)
                total = np.int32(total + level)
            for q in range(wide):
                start[q] = np.int32(-shift * totals[q])
            for p in range(panels.shape[0]):
                byte_tile_of_1(
                    places[0], 0, places[1] + QUAD * p * quads * panel, places[3] + 4 * p * panel, 0, quads,
                    places[2] + 4 * p * panel, min(panel, wide - p * panel),
                )  # fmt: skip
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
