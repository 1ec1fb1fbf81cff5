"""com.microsoft's Attention: queries, keys and values projected from one input by one matrix, then attended to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from hetero.errors import UnsupportedError
from hetero.kernels.attention import Attention, Extras, Reach
from hetero.kernels.attention_heads import (
    LOWEST,
    Cache,
    cache_of,
    check_shape,
    head_size,
    scale_of,
    split_heads,
)
from hetero.kernels.attention_mask import causal_last, mask_of
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.derived import Keeper
from hetero.kernels.fused import in_turn
from hetero.kernels.matmul import bind_product
from hetero.kernels.operands import fail, known_scalar
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import carve, carved_bytes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import FLOATS, Spec, TensorSpec

_INPUT, _WEIGHTS, _BIAS, _MASK, _PAST, _ATTENTION_BIAS, _PAST_LENGTH = range(7)


def _hidden_sizes(op: Operation, columns: int) -> tuple[int, int]:
    """Columns of the queries (as many as of the keys) and of the values."""
    sizes = tuple(int(n) for n in op.attr("qkv_hidden_sizes", ())) or (columns // 3,) * 3
    if len(sizes) != 3 or sizes[0] != sizes[1] or sum(sizes) != columns:
        fail(op, f"{list(sizes)} do not split {columns} columns", "qkv_hidden_sizes")
    return sizes[0], sizes[2]


def _cache(op: Operation, specs: Sequence[Spec], batch: int, heads: int, new: int, size: int) -> Cache:
    """The cache of this call: of fixed size where the attribute past_present_share_buffer says so."""
    past = given(specs, _PAST)
    if past is None:
        return Cache(0, new, new)
    if len(past.shape) != 5:
        fail(op, f"of shape {list(past.shape)}, expected five axes", "past")
    check_shape(op, past, (2, batch, heads, past.shape[3], size), "past")
    length = known_scalar(op, specs, _PAST_LENGTH, "past_sequence_length")
    if not op.attr("past_present_share_buffer", 0):
        length = None
    elif length is None:
        fail(op, "is needed with a shared buffer", "past_sequence_length")
    half = TensorSpec(past.dtype, past.shape[1:])
    return cache_of(op, half, half, new, length)


@kernel("Attention", domain="com.microsoft", versions=(1,), dispatch=Dispatch.LIBRARY, values=(_PAST_LENGTH,))
def attention(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """input (B, S, D), weights (D, 2*N*H + N*Hv), optional bias, mask_index (see `mask_of`), past (2, B, N, P, H),
    attention_bias (B or 1, N or 1, S, T) -> output (B, S, N*Hv), optional present (2, B, N, T, H).

    With the attribute past_present_share_buffer past and present are buffers of fixed size, filled up to
    past_sequence_length.
    """
    x, weights, bias = tensor(op, specs, _INPUT), tensor(op, specs, _WEIGHTS), given(specs, _BIAS)
    past, added = given(specs, _PAST), given(specs, _ATTENTION_BIAS)
    dtype = one_dtype(op, [s for s in (x, weights, bias, past, added) if s is not None], FLOATS)
    if op.attr("do_rotary", 0):
        raise UnsupportedError("rotation inside of Attention is not served", op=op.id, node=op.name)
    if dtype in NARROW:
        return widened(attention, op, specs, xp)
    if len(x.shape) != 3 or len(weights.shape) != 2 or weights.shape[0] != x.shape[2]:
        fail(op, f"of shape {list(weights.shape)} for an input {list(x.shape)}", "weights")
    b, s, _ = x.shape
    columns = weights.shape[1]
    hidden, value_hidden = _hidden_sizes(op, columns)
    n = int(op.attr("num_heads", 0))
    size, value_size = (head_size(op, h, n, "weights") for h in (hidden, value_hidden))
    check_shape(op, bias, (columns,), "bias")
    cache = _cache(op, specs, b, n, s, size)
    t = cache.total
    wants_present = len(op.present_outputs) > 1 and op.present_outputs[1]
    if size != value_size and (past is not None or wants_present):
        fail(op, f"heads of {size} and {value_size} elements have no common past", "past")
    check_shape(op, added, (b, n, s, t), "attention_bias", loose=(0, 1))
    mask = mask_of(
        op,
        given(specs, _MASK),
        batch=b,
        queries=s,
        past=cache.past,
        keys=t,
        dtype=dtype,
        operand="mask_index",
    )
    sizes = Attention(b, n, n, s, t, size, value_size, dtype, scale_of(op, size))
    causal = bool(op.attr("unidirectional", 0)) and s > 1
    store = (2, b, n, cache.capacity, size)
    declared = (TensorSpec(dtype, (b, s, value_hidden)), TensorSpec(dtype, store))
    outputs = [d if p else None for d, p in zip(declared, op.present_outputs, strict=False)]
    core_parts = sizes.parts(xp)
    parts = (
        *core_parts,
        ((b, s, columns), dtype),
        (store if past is not None and not wants_present else (0,), dtype),
        *(() if mask is None else mask.parts),
    )

    keep = Keeper()

    def bind(inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        operands = [*inputs, *[None] * (_PAST_LENGTH + 1 - len(inputs))]
        scratch = carve(workspace, *parts)
        core, (projected, own, *mask_scratch) = scratch[: len(core_parts)], scratch[len(core_parts) :]
        calls: list[Call] = [bind_product(xp, keep, inputs[_INPUT], inputs[_WEIGHTS], projected)]
        if operands[_BIAS] is not None:
            calls.append(partial(xp.add, projected, operands[_BIAS], projected))
        ends = (0, hidden, 2 * hidden, columns)
        queries, *kv = (split_heads(projected[:, :, i:j], n) for i, j in itertools.pairwise(ends))
        present = results[1] if wants_present else own if past is not None else None
        if present is not None:
            for i in range(2):
                before = None if past is None else operands[_PAST][i]
                calls += cache.calls(xp, before, kv[i], None, present[i])
                kv[i] = present[i, :, :, :t]
        biases = [] if added is None else [operands[_ATTENTION_BIAS]]
        if mask is not None:
            calls += mask.bind(xp, operands[_MASK], *mask_scratch)
            biases.append(mask_scratch[0])
        reach = Reach(causal_last(xp, s, cache.past, t), None, LOWEST) if causal else None
        target = split_heads(results[0], n)
        calls.append(sizes.bind(xp, queries, kv[0], kv[1], target, core, Extras(biases, reach)))
        return Quiet(in_turn(calls))

    return computed(
        outputs,
        bind,
        contiguous=[i for i in range(len(specs)) if given(specs, i) is not None],
        overwrites=[(_PAST, 1)] if wants_present and past == declared[1] else [],
        workspace_bytes=carved_bytes(*parts),
    )
