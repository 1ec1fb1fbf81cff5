"""DynamicQuantizeLSTM: an LSTM whose products run on bytes, with inputs and states quantised as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.derived import Keeper
from hetero.kernels.gemm_bytes import bind_bytes, serves_bytes
from hetero.kernels.operands import fail, host_reason
from hetero.kernels.product_exact import centred_factor
from hetero.kernels.quantized import by_depth, require_bytes, rounded, rounded_product
from hetero.kernels.rnn import Recurrence, output_specs, sizes_of, state_shape
from hetero.kernels.rnn_activation import activations_of, clipped
from hetero.kernels.rnn_bytes_sequence import bind_bytes_sequence, bytes_sequence_serves
from hetero.kernels.rnn_cells import CellOperands, CellOptions
from hetero.kernels.widen import is_constant
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec

_W, _R, _LENGTHS, _H0, _C0, _P, _W_SCALE, _W_ZERO, _R_SCALE, _R_ZERO = 1, 2, 4, 5, 6, 7, 8, 9, 10, 11


def _shares_range(batch: int, hidden: int) -> bool:
    """Whether the states of a batch are rounded over one range, and not each over its own.

    onnxruntime gives each of its threads a few sequences and rounds what a thread has over one range, so that its
    results depend on the number of threads. This is what it does with a thread for each sequence: so few rows of so
    many columns it does not divide.
    """
    return 2 <= batch <= 4 and hidden > 256


def _none(state: Array, target: Array) -> None:
    """The product of a direction that runs in one call, and makes its products itself."""


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
    keep, keepers = Keeper(), [Keeper() for _ in range(n)]
    usual = given(specs, _LENGTHS) is None and given(specs, _P) is None and not s.batch_first
    whole = usual and all(o.plain for o in options) and bytes_sequence_serves(s.hidden, s.batch, xp)
    # With lengths each has its own: where one is over, or runs backwards from its own end, there is no common step.
    shared = given(specs, _LENGTHS) is None and _shares_range(s.batch, s.hidden)
    parts: tuple[Part, ...] = (((n, wide), np.float32),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        (bias,) = carve(workspace, *parts)
        scratch = None if workspace is None else workspace[carved_bytes(*parts) :]

        def columns(index: int) -> Array:
            return inputs[index].reshape(n, 1, -1)

        def add_biases() -> None:
            if inputs[3] is None:
                bias.fill(0)
            else:
                xp.add(inputs[3][:, :wide], inputs[3][:, wide:], out=bias)

        before: list[Call] = [add_biases]
        in_bytes = serves_bytes(xp, (s.steps * s.batch, s.inputs), (s.inputs, wide)) and all(
            is_constant(inputs[i]) for i in (_W, _W_ZERO)
        )
        w_pieces: list[list[Array]] = []
        if not in_bytes:
            w, fill = centred_factor(xp, inputs[_W], columns(_W_ZERO))
            before += fill
            w_pieces = [by_depth(a) for a in w]
        products: list[Callable[[Array, Array], object]] = [_none] * n
        if not whole:
            r, fill = centred_factor(xp, inputs[_R], columns(_R_ZERO))
            before += fill
            scales = columns(_R_SCALE)
            products = [partial(rounded_product, xp, by_depth(r[d]), scales[d, 0], shared) for d in range(n)]
        lengths = inputs[_LENGTHS]
        ticks = None if lengths is None else xp.arange(s.steps).reshape(-1, 1, 1)

        def multiplier(d: int, rows: int) -> Callable[[Array, Array], object]:
            """(input (rows, I), target (rows, 4*H)) -> None: its product with direction d's weights."""
            scale = columns(_W_SCALE)[d, 0]
            if not in_bytes:
                return partial(rounded_product, xp, w_pieces[d], scale, True)
            levels, sums = np.empty((rows, s.inputs), np.uint8), np.empty((rows, wide), np.int32)
            zero = np.empty((), np.float32)
            product = bind_bytes(keepers[d], levels, zero, inputs[_W][d], columns(_W_ZERO)[d], sums)

            def multiply(source: Array, target: Array) -> None:
                found, zero[...], step = rounded(np, source, True)
                np.copyto(levels, found, casting="unsafe")
                product()
                np.multiply(sums, step * scale, out=target, dtype=np.float32, casting="unsafe")

            return multiply

        def project(d: int, sequence: Array, target: Array) -> Call:
            multiply = multiplier(d, sequence.size // max(s.inputs, 1))

            def call() -> None:
                # The input has one range: that of all steps until the longest sequence is over. Zero is always in it.
                used = sequence
                if lengths is not None and lengths.size:
                    used = xp.where(ticks < lengths.max(), sequence, np.float32(0))
                rows = used.reshape(-1, s.inputs)
                multiply(rows, target.reshape(-1, wide))
                xp.add(target, bias[d], out=target)

            return call

        def sequence(d: int, o: CellOperands, pre: Array, y: Array) -> Call:
            zeros, scales = (np.broadcast_to(inputs[i].reshape(n, -1)[d], wide) for i in (_R_ZERO, _R_SCALE))
            r, backwards = inputs[_R][d], s.reversed[d]
            return bind_bytes_sequence(
                r, zeros, scales, o.states, o.gates, pre, y, d, backwards, shared, keep
            )

        return loop.bind(
            inputs[0],
            products,
            project,
            [*outputs, None, None],
            scratch,
            lengths=lengths,
            initial=[inputs[_H0], inputs[_C0]],
            peepholes=inputs[_P],
            before=before,
            whole=sequence if whole else None,
        )

    return computed(
        output_specs(op, s, x.dtype, 2),
        bind,
        contiguous=(0, *range(_W_SCALE, _R_ZERO + 1)),
        workspace_bytes=carved_bytes(*parts, *loop.parts),
        capture=host_reason(xp, "allocates intermediate arrays"),
    )
