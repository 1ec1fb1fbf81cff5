"""QEmbedLayerNormalization of com.microsoft: embeddings looked up in tables of bytes, summed and normalised."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.gather import range_check
from hetero.kernels.norm_rows import FLOAT32, Rows, bind_rows
from hetero.kernels.operands import fail, host_reason
from hetero.kernels.quantized import BYTES, centred, one_number, one_scale
from hetero.kernels.quiet import Quiet
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

INT32 = np.dtype(np.int32)
_SEGMENT_IDS, _SEGMENT, _MASK = 1, 4, 7
_NAMES = {2: "word_embedding", 3: "position_embedding", 4: "segment_embedding", 5: "gamma", 6: "beta"}
_TO_SCALE, _TO_ZERO = 6, 11
"""A table at input i has its scale at i + 6 and its zero point at i + 11."""


def _check(op: Operation, specs: Sequence[Spec], hidden: int, segments: bool) -> None:
    for index, name in _NAMES.items():
        if index == _SEGMENT and not segments:
            continue
        table, zero = tensor(op, specs, index), tensor(op, specs, index + _TO_ZERO)
        one_dtype(op, (table, zero), BYTES)
        one_scale(op, specs, index + _TO_SCALE, f"{name}_scale")
        one_number(op, zero, f"{name}_zero_point")
        if table.shape != (hidden,) if index > _SEGMENT else table.shape[1:] != (hidden,):
            fail(op, f"of shape {list(table.shape)} for a hidden size of {hidden}", name)


@kernel("QEmbedLayerNormalization", domain="com.microsoft", versions=(1,))
def qembed_layer_norm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """input_ids (batch, sequence), optional segment_ids, word, position and optional segment tables, gamma, beta (all
    bytes), optional mask (batch, sequence), then their five scales and five zero points -> the normalised sum
    (batch, sequence, hidden) in float32 and the ones in each row of the mask (int32).

    Raises when called: KernelError for an index outside a table.
    """
    ids, segment_ids, mask = tensor(op, specs, 0), given(specs, _SEGMENT_IDS), given(specs, _MASK)
    word, position, segment = tensor(op, specs, 2), tensor(op, specs, 3), given(specs, _SEGMENT)
    one_dtype(op, (s for s in (ids, segment_ids, mask) if s is not None), frozenset((INT32,)))
    if (segment_ids is None) != (segment is None):
        fail(op, "segment_ids and segment_embedding come together", "segment_ids")
    if len(ids.shape) != 2 or any(s is not None and s.shape != ids.shape for s in (segment_ids, mask)):
        fail(op, "input_ids, segment_ids and mask must have the same two axes")
    batch, length = ids.shape
    hidden = word.shape[-1] if word.shape else 0
    _check(op, specs, hidden, segment is not None)
    if length > position.shape[0]:
        fail(op, f"{length} tokens, {position.shape[0]} positions", "position_embedding")
    shape = (batch, length, hidden)
    rows = Rows(1, batch * length, 1, hidden, FLOAT32, FLOAT32, float(op.attr("epsilon", 1e-12)))
    parts: tuple[Part, ...] = (*rows.parts(xp), (shape, FLOAT32), ((2, hidden), FLOAT32))
    declared = (TensorSpec(FLOAT32, shape), TensorSpec(INT32, (batch,)))
    outputs = [s if p else None for s, p in zip(declared, op.present_outputs, strict=False)]

    def bind(inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        *_, looked_up, affine = carve(workspace, *parts)
        out, counts = (*results, None)[:2]

        def dequantize(index: int, codes: Array, target: Array) -> None:
            centred(xp, codes, inputs[index + _TO_ZERO].reshape(()), target)
            xp.multiply(target, inputs[index + _TO_SCALE].reshape(()), out=target)

        def add(index: int, indices: Array) -> Call:
            inside = range_check(op, indices, 0, inputs[index].shape[0])

            def call() -> None:
                inside()
                dequantize(index, inputs[index].take(indices, 0), looked_up)
                xp.add(out, looked_up, out=out)

            return call

        def start() -> None:
            dequantize(3, inputs[3][:length], looked_up[0])
            xp.copyto(out, looked_up[0])
            dequantize(5, inputs[5], affine[0])
            dequantize(6, inputs[6], affine[1])

        calls: list[Call] = [start] if batch else []
        calls += [add(2, inputs[0])] + ([add(_SEGMENT, inputs[_SEGMENT_IDS])] if segment is not None else [])
        if counts is not None:
            given_mask = inputs[_MASK]
            calls.append(
                partial(counts.fill, 0)
                if given_mask is None
                else lambda: xp.sum(given_mask == 1, axis=1, dtype=np.int32, out=counts)
            )
        scale, shift = affine[0].reshape(1, 1, -1), affine[1].reshape(1, 1, -1)
        calls.append(bind_rows(xp, rows, out, out, scale, shift, workspace))
        return Quiet(in_turn(calls))

    return computed(
        outputs,
        bind,
        contiguous=(2, 3, 4, 5, 6),
        workspace_bytes=carved_bytes(*parts),
        capture=host_reason(xp, "allocates what it looks up"),
    )
