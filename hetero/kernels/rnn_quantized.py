"""DynamicQuantizeLSTM: an LSTM whose products run on bytes, with inputs and states quantised as they come."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.operands import fail, host_reason
from hetero.kernels.quantized import exact_float, require_bytes
from hetero.kernels.rnn import Recurrence, output_specs, sizes_of, state_shape
from hetero.kernels.rnn_activation import activations_of, clipped
from hetero.kernels.rnn_cells import CellOptions
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec

_W, _R, _LENGTHS, _H0, _C0, _P, _W_SCALE, _W_ZERO, _R_SCALE, _R_ZERO = 1, 2, 4, 5, 6, 7, 8, 9, 10, 11


def _quantised_product(
    xp: Any, weights: Array, scale: Array, shared: bool, source: Array, target: Array
) -> None:
    """source (rows, K) @ weights (K, N) into target, with the source rounded to 256 levels over its range.

    The rows share one range, or each has its own. `weights` are centred bytes in a float that sums them exactly;
    `scale` is theirs, one or N.
    """
    if not source.size:
        target.fill(0)
        return
    axis = None if shared else 1
    low = xp.minimum(source.min(axis=axis, keepdims=True), 0)
    high = xp.maximum(source.max(axis=axis, keepdims=True), 0)
    step = ((high - low) / np.float32(255)).astype(np.float32)
    step = xp.where(step == 0, np.float32(1), step)
    zero = xp.rint(xp.clip(-low / step, 0, 255))
    levels = xp.clip(xp.rint(source / step) + zero, 0, 255) - zero
    product = xp.matmul(levels.astype(weights.dtype), weights)
    xp.multiply(product.astype(np.float32), step * scale, out=target)


def _shares_range(batch: int, hidden: int) -> bool:
    """Whether the states of a batch are rounded over one range, and not each over its own.

    onnxruntime gives each of its threads a few sequences and rounds what a thread has over one range, so that its
    results depend on the number of threads. This is what it does with a thread for each sequence: so few rows of so
    many columns it does not divide.
    """
    return 2 <= batch <= 4 and hidden > 256


@kernel("DynamicQuantizeLSTM", versions=(1,), domain="com.microsoft")
def dynamic_quantize_lstm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, W (D, I, 4*H) and R (D, H, 4*H) in bytes, optional B, sequence_lens, initial_h, initial_c, P, then scale and
    zero point of W and of R, one per direction or per column -> Y, Y_h, Y_c in float32."""
    x, w, r = tensor(op, specs, 0), tensor(op, specs, _W), tensor(op, specs, _R)
    if x.dtype != np.float32:
        raise UnsupportedError(f"{op.op_type} of {x.dtype}", op=op.id, node=op.name)
    require_bytes(op, w, r)
    if len(w.shape) != 3 or len(r.shape) != 3:
        fail(op, f"W {list(w.shape)} and R {list(r.shape)} must have three axes")
    s = sizes_of(op, x, (w.shape[0], *w.shape[:0:-1]), (r.shape[0], *r.shape[:0:-1]), 4)
    n, wide = s.directions, 4 * s.hidden
    expected: list[tuple[int, str, tuple[tuple[int, ...], ...]]] = [
        (3, "B", ((n, 2 * wide),)),
        (_LENGTHS, "sequence_lens", ((s.batch,),)),
        (_H0, "initial_h", (state_shape(s),)),
        (_C0, "initial_c", (state_shape(s),)),
        (_P, "P", ((n, 3 * s.hidden),)),
    ]
    names = (
        (_W_SCALE, "W_scale"),
        (_W_ZERO, "W_zero_point"),
        (_R_SCALE, "R_scale"),
        (_R_ZERO, "R_zero_point"),
    )
    expected += [(index, name, ((n,), (n, wide))) for index, name in names]
    for index, operand, shapes in expected:
        spec = given(specs, index)
        if spec is not None and spec.shape not in shapes:
            fail(op, f"of shape {list(spec.shape)}, expected {list(shapes[-1])}", operand)
    clip = clipped(op)
    forget = bool(op.attr("input_forget", 0))
    options = [CellOptions(acts, clip, forget) for acts in activations_of(op, ("sigmoid", "tanh", "tanh"), n)]
    loop = Recurrence(op, s, x.dtype, xp, options)
    # With lengths each has its own: where one is over, or runs backwards from its own end, there is no common step.
    shared = given(specs, _LENGTHS) is None and _shares_range(s.batch, s.hidden)
    parts: tuple[Part, ...] = (
        (w.shape, exact_float(s.inputs)),
        (r.shape, exact_float(s.hidden)),
        ((n, wide), np.float32),
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        wide_w, wide_r, bias = carve(workspace, *parts)
        scratch = None if workspace is None else workspace[carved_bytes(*parts) :]

        def columns(index: int) -> Array:
            return inputs[index].reshape(n, 1, -1)

        def centre() -> None:
            xp.subtract(inputs[_W], columns(_W_ZERO), out=wide_w, dtype=wide_w.dtype)
            xp.subtract(inputs[_R], columns(_R_ZERO), out=wide_r, dtype=wide_r.dtype)
            if inputs[3] is None:
                bias.fill(0)
            else:
                xp.add(inputs[3][:, :wide], inputs[3][:, wide:], out=bias)

        lengths = inputs[_LENGTHS]
        ticks = None if lengths is None else xp.arange(s.steps).reshape(-1, 1, 1)

        def project(d: int, sequence: Array, target: Array) -> Call:
            def call() -> None:
                # The input has one range: that of all steps until the longest sequence is over. Zero is always in it.
                used = sequence
                if lengths is not None and lengths.size:
                    used = xp.where(ticks < lengths.max(), sequence, np.float32(0))
                rows = used.reshape(-1, s.inputs)
                scale = columns(_W_SCALE)[d, 0]
                _quantised_product(xp, wide_w[d], scale, True, rows, target.reshape(-1, wide))
                xp.add(target, bias[d], out=target)

            return call

        return loop.bind(
            inputs[0],
            [partial(_quantised_product, xp, wide_r[d], columns(_R_SCALE)[d, 0], shared) for d in range(n)],
            project,
            [*outputs, None, None],
            scratch,
            lengths=lengths,
            initial=[inputs[_H0], inputs[_C0]],
            peepholes=inputs[_P],
            before=[centre],
        )

    return computed(
        output_specs(op, s, x.dtype, 2),
        bind,
        contiguous=(0, *range(_W_SCALE, _R_ZERO + 1)),
        workspace_bytes=carved_bytes(*parts, *loop.parts),
        capture=host_reason(xp, "allocates intermediate arrays"),
    )
