"""com.microsoft's layer normalisations: of a sum with a skip connection, and of a sum of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import broadcasts_to, elements, one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.norm_rows import FLOAT32, Rows, bind_compiled, bind_rows, is_compiled
from hetero.kernels.operands import fail
from hetero.kernels.quiet import Quiet
from hetero.kernels.workspace import carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Spec, TensorSpec

INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)


def _rows(
    op: Operation, shape: tuple[int, ...], dtype: np.dtype[Any], *, centred: bool, epsilon: float
) -> Rows:
    hidden = shape[-1]
    return Rows(1, elements(shape[:-1]), 1, hidden, dtype, dtype, float(op.attr("epsilon", epsilon)), centred)


def _check_vector(op: Operation, spec: TensorSpec | None, hidden: int, name: str) -> None:
    if spec is not None and spec.shape != (hidden,):
        fail(op, f"of shape {list(spec.shape)} for a hidden size of {hidden}", name)


@kernel("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain="com.microsoft", versions=(1,))
def skip_layer_norm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """input (…, hidden), skip (broadcasts to it), gamma, then beta (SkipLayerNormalization) and bias, both optional
    -> the norm of input + skip + bias; optional mean, 1 / standard deviation, and the sum itself."""
    centred = op.op_type == "SkipLayerNormalization"
    x, skip, gamma = (tensor(op, specs, i) for i in range(3))
    beta, bias = (given(specs, 3), given(specs, 4)) if centred else (None, given(specs, 3))
    one_dtype(op, (s for s in (x, skip, gamma, beta, bias) if s is not None), FLOATS)
    if not x.shape or not broadcasts_to(skip, x.shape):
        fail(op, f"of shape {list(skip.shape)} does not broadcast to {list(x.shape)}", "skip")
    for spec, name in ((gamma, "gamma"), (beta, "beta"), (bias, "bias")):
        _check_vector(op, spec, x.shape[-1], name)
    rows = _rows(op, x.shape, x.dtype, centred=centred, epsilon=1e-12 if centred else 1e-5)
    output = TensorSpec(x.dtype, x.shape)
    statistic = TensorSpec(FLOAT32, (*x.shape[:-1], 1))
    declared = (output, statistic, statistic, output)
    outputs = [s if p else None for s, p in zip(declared, op.present_outputs, strict=False)]

    # Whether rows of the skip connection repeat as a whole: (1, sequence, hidden) for every entry of a batch.
    inner = skip.shape[next((i for i, d in enumerate(skip.shape) if d != 1), len(skip.shape)) :]
    wraps = skip.size > 0 and inner == x.shape[len(x.shape) - len(inner) :] and skip.size % x.shape[-1] == 0

    def bind(inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        out, mean, inverse, total = (*results, None, None, None)[:4]
        total = out if total is None else total
        calls: list[Call] = [partial(xp.add, inputs[0], inputs[1], total)]
        if bias is not None:
            calls.append(partial(xp.add, total, inputs[4 if centred else 3], total))
        shift = inputs[3].reshape(1, 1, -1) if beta is not None else None
        scale = inputs[2].reshape(1, 1, -1)
        if wraps and is_compiled(xp, rows, scale, shift, mean, inverse):
            added = None if bias is None else inputs[4 if centred else 3]
            vectors = (scale, shift, mean, inverse)
            return bind_compiled(rows, inputs[0], out, *vectors, skip=inputs[1], skip_bias=added, total=total)
        calls.append(bind_rows(xp, rows, total, out, scale, shift, workspace, mean=mean, inverse=inverse))
        return Quiet(in_turn(calls))

    return computed(outputs, bind, contiguous=range(5), workspace_bytes=carved_bytes(*rows.parts(xp)))


@kernel("EmbedLayerNormalization", domain="com.microsoft", versions=(1,))
def embed_layer_norm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """input_ids (batch, sequence), optional segment_ids, word, position and optional segment embeddings, gamma,
    beta, optional mask (batch, sequence) and position_ids -> normalised sum (batch, sequence, hidden), tokens
    per row of the mask (int32), optional sum.

    Raises when called: KernelError for an index outside a table.
    """
    ids, word, position = tensor(op, specs, 0), tensor(op, specs, 2), tensor(op, specs, 3)
    segment_ids, segment = given(specs, 1), given(specs, 4)
    gamma, beta = tensor(op, specs, 5), tensor(op, specs, 6)
    mask, position_ids = given(specs, 7), given(specs, 8)
    if xp is not np or op.attr("mask_index_type", 0):
        raise UnsupportedError("only on the host and without a mask index type", op=op.id, node=op.name)
    if len(ids.shape) != 2 or len(word.shape) != 2 or len(position.shape) != 2:
        fail(op, "input_ids and the tables must have two axes")
    if (segment_ids is None) != (segment is None):
        fail(op, "segment_ids and segment_embedding come together", "segment_ids")
    tables = [word, position] + ([segment] if segment is not None else [])
    dtype = one_dtype(op, (*tables, gamma, beta), FLOATS)
    batch, length = ids.shape
    hidden = word.shape[1]
    for table in tables:
        if len(table.shape) != 2 or table.shape[1] != hidden:
            fail(op, f"table of shape {list(table.shape)} for a hidden size of {hidden}")
    for spec, name in ((gamma, "gamma"), (beta, "beta")):
        _check_vector(op, spec, hidden, name)
    if position_ids is None and length > position.shape[0]:
        fail(op, f"{length} tokens, {position.shape[0]} positions", "position_embedding")
    shape = (batch, length, hidden)
    rows = _rows(op, shape, dtype, centred=True, epsilon=1e-12)
    output = TensorSpec(dtype, shape)
    declared = (output, TensorSpec(INT32, (batch,)), output)
    outputs = [s if p else None for s, p in zip(declared, op.present_outputs, strict=False)]
    own = rows.parts(xp)
    parts = (*own, (shape, dtype))

    def bind(inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        looked_up = carve(workspace, *parts)[-1]
        out, counts, total = (*results, None, None)[:3]
        total = out if total is None else total

        def look_up(table: Any, indices: Any, target: Any) -> None:
            try:
                target[...] = table.take(indices, axis=0)
            except IndexError as error:
                raise KernelError(f"embedding index: {error}", op=op.id, node=op.name) from error

        calls: list[Call] = [partial(look_up, inputs[2], inputs[0], total)]
        if position_ids is None:
            calls.append(partial(xp.add, total, inputs[3][:length], total))
        else:
            calls.append(partial(look_up, inputs[3], inputs[8], looked_up))
            calls.append(partial(xp.add, total, looked_up, total))
        if segment is not None:
            calls.append(partial(look_up, inputs[4], inputs[1], looked_up))
            calls.append(partial(xp.add, total, looked_up, total))
        if counts is not None:
            if mask is None:
                calls.append(partial(counts.fill, 0))
            else:
                calls.append(partial(inputs[7].sum, 1, INT32, counts))
        scale, shift = inputs[5].reshape(1, 1, -1), inputs[6].reshape(1, 1, -1)
        calls.append(bind_rows(xp, rows, total, out, scale, shift, workspace))
        return Quiet(in_turn(calls))

    return computed(
        outputs, bind, contiguous=(5, 6), workspace_bytes=carved_bytes(*parts), capture="reads indices"
    )
