"""ai.onnx's Attention: scaled dot product attention with a past, or with a cache that is kept outside of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.attention import BOOL, CAPPED, MASKED, PRODUCTS, WEIGHTS, Attention, Extras, Reach
from hetero.kernels.attention_few import is_few
from hetero.kernels.attention_heads import Cache, cache_of, check_shape, head_size, scale_of, split_heads
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.operands import fail
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec, TensorSpec, TensorType, ValueType, numpy_dtype

INT64 = np.dtype(np.int64)
_Q, _K, _V, _MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = range(7)
_STAGES = (PRODUCTS, CAPPED, MASKED, WEIGHTS)
"""What the attribute qk_matmul_output_mode stands for."""


@dataclass(frozen=True, slots=True)
class _Form:
    """The sizes of a call; `flat`: the heads of queries and of the output lie in their last axis."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    size: int
    value_size: int
    flat: bool
    cache: Cache


def _one_float(op: Operation, types: Sequence[ValueType | None]) -> str | None:
    """Why the body of the operator's text must do: it allows keys and values of different dtypes."""
    floats = {t.dtype for i, t in enumerate(types) if i != _LENGTHS and isinstance(t, TensorType)}
    floats = {d for d in floats if d is not None and numpy_dtype(d) in FLOATS}
    return "its operands are floats of different dtypes" if len(floats) > 1 else None


def _heads_of(op: Operation, spec: TensorSpec, attribute: str, operand: str) -> tuple[int, int, int, int]:
    """(batch, heads, length, size) of a tensor of three axes or four."""
    if len(spec.shape) == 4:
        batch, heads, length, size = spec.shape
        return batch, heads, length, size
    if len(spec.shape) != 3:
        fail(op, f"of shape {list(spec.shape)}, expected three axes or four", operand)
    heads = int(op.attr(attribute, 0))
    return spec.shape[0], heads, spec.shape[1], head_size(op, spec.shape[2], heads, operand)


def _form_of(op: Operation, specs: Sequence[Spec]) -> _Form:
    q, k, v = (tensor(op, specs, i) for i in (_Q, _K, _V))
    batch, heads, queries, size = _heads_of(op, q, "q_num_heads", "Q")
    kv_batch, kv_heads, length, k_size = _heads_of(op, k, "kv_num_heads", "K")
    shape = _heads_of(op, v, "kv_num_heads", "V")
    if shape[:3] != (batch, kv_heads, length) or (kv_batch, k_size) != (batch, size):
        fail(op, f"of shape {list(v.shape)} beside Q {list(q.shape)} and K {list(k.shape)}", "V")
    if kv_heads < 1 or heads % kv_heads:
        fail(op, f"{heads} heads cannot share {kv_heads}", "Q")
    past_key, past_value = given(specs, _PAST_KEY), given(specs, _PAST_VALUE)
    cache = cache_of(op, past_key, past_value, length, None)
    check_shape(op, past_key, (batch, kv_heads, cache.past, size), "past_key")
    check_shape(op, past_value, (batch, kv_heads, cache.past, shape[3]), "past_value")
    lengths = given(specs, _LENGTHS)
    check_shape(op, lengths, (batch,), "nonpad_kv_seqlen")
    if lengths is not None and past_key is not None:
        fail(op, "goes with a cache outside, and a past is given", "nonpad_kv_seqlen")
    return _Form(batch, heads, kv_heads, queries, size, shape[3], len(q.shape) == 3, cache)


def _mask_shape(op: Operation, mask: TensorSpec | None, form: _Form) -> tuple[int, int, int, int] | None:
    """The mask's shape with four axes. Its last axis may be shorter than the keys: what is missing is not seen."""
    if mask is None:
        return None
    shape = (1,) * (4 - len(mask.shape)) + mask.shape
    keys = min(shape[-1], form.cache.total)
    expected = (form.batch, form.heads, form.queries, keys)
    check_shape(op, TensorSpec(mask.dtype, shape), expected, "attn_mask", loose=(0, 1, 2))
    return shape[0], shape[1], shape[2], shape[3]


@kernel("Attention", versions=(23, 24), check=_one_float)
def standard_attention(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Q (B, S, N*H) or (B, N, S, H), K and V with K heads likewise, optional attn_mask (broadcasts to (B, N, S, T);
    False is not seen; numbers are added), past_key and past_value (B, K, P, H), nonpad_kv_seqlen (B,): the keys that
    are seen, in a cache kept outside -> Y, optional present_key and present_value (B, K, P + L, H), scores.

    A query that sees nothing gives 0. Half precision is computed in single, whatever softmax_precision asks for.
    """
    mask = given(specs, _MASK)
    floats = [tensor(op, specs, i) for i in (_Q, _K, _V)]
    floats += [x for i in (_PAST_KEY, _PAST_VALUE) if (x := given(specs, i)) is not None]
    if mask is not None and mask.dtype in FLOATS:
        floats.append(mask)
    dtype = one_dtype(op, floats, FLOATS)
    if dtype in NARROW:
        return widened(standard_attention, op, specs, xp)
    form = _form_of(op, specs)
    b, n, s, t = form.batch, form.heads, form.queries, form.cache.total
    mask_shape = _mask_shape(op, mask, form)
    scale, softcap = scale_of(op, form.size), float(op.attr("softcap", 0.0))
    sizes = Attention(b, n, form.kv_heads, s, t, form.size, form.value_size, dtype, scale, softcap)
    hidden = n * form.value_size
    stores = [(b, form.kv_heads, t, size) for size in (form.size, form.value_size)]
    declared = [
        TensorSpec(dtype, (b, s, hidden) if form.flat else (b, n, s, form.value_size)),
        *(TensorSpec(dtype, store) for store in stores),
        TensorSpec(dtype, (b, n, s, t)),
    ]
    outputs = [d if p else None for d, p in zip(declared, op.present_outputs, strict=False)]
    core_parts = sizes.parts(xp)
    remembers = given(specs, _PAST_KEY) is not None
    own: list[Part] = [
        (store if remembers and (i >= len(outputs) or outputs[i] is None) else (0,), dtype)
        for i, store in enumerate(stores, 1)
    ]
    # A mask of floats for all keys is added as it lies.
    converts = mask is not None and mask_shape is not None and (mask.dtype != dtype or mask_shape[3] != t)
    bias: Part = ((*mask_shape[:3], t) if converts and mask_shape is not None else (0,), dtype)
    parts = (*core_parts, *own, bias, ((b, s), INT64))
    mode = int(op.attr("qk_matmul_output_mode", 0))
    if not 0 <= mode < len(_STAGES):
        fail(op, f"{mode} is none of 0 to 3", "qk_matmul_output_mode")

    def bind(inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        operands = [*inputs, *[None] * (_LENGTHS + 1 - len(inputs))]
        scratch = carve(workspace, *parts)
        core, (own_key, own_value, bias, last) = scratch[: len(core_parts)], scratch[len(core_parts) :]
        out, present_key, present_value, tap = (*results, None, None, None)[:4]
        calls: list[Call] = []
        kv = []
        for i, present, kept in ((_K, present_key, own_key), (_V, present_value, own_value)):
            source = operands[i] if operands[i].ndim == 4 else split_heads(operands[i], form.kv_heads)
            if present is not None or remembers:
                target = kept if present is None else present
                calls += form.cache.calls(xp, operands[i - _K + _PAST_KEY], source, None, target)
                source = target
            kv.append(source)
        biases = []
        if mask_shape is not None:
            biases.append(operands[_MASK].reshape(mask_shape))
            if converts:
                calls += _converted(xp, biases[0], bias)
                biases = [bias]
        reach, more = _reach(xp, op, form, operands[_LENGTHS], last)
        extras = Extras(biases, reach, taps={} if tap is None else {_STAGES[mode]: tap}, zero_empty=True)
        queries, target = (a if a.ndim == 4 else split_heads(a, n) for a in (operands[_Q], out))
        return Quiet(in_turn([*calls, *more, sizes.bind(xp, queries, kv[0], kv[1], target, core, extras)]))

    # Keys and values are copied, or read where they lie by loops that take any strides.
    four_axes = [i for i in (_K, _V, _PAST_KEY, _PAST_VALUE) if (x := given(specs, i)) and len(x.shape) == 4]
    blocks = four_axes if is_few(sizes, xp) and not any(p for p in op.present_outputs[3:]) else []
    return computed(
        outputs,
        bind,
        contiguous=[i for i in range(len(specs)) if given(specs, i) is not None and i not in blocks],
        blocks=blocks,
        workspace_bytes=carved_bytes(*parts),
    )


def _converted(xp: Any, mask: Array, bias: Array) -> list[Call]:
    """What makes scores to add of a mask with as many keys or fewer."""
    front = bias[..., : mask.shape[-1]]
    calls: list[Call] = [partial(bias.fill, -np.inf)]
    if mask.dtype == BOOL:
        calls.append(partial(xp.copyto, front, 0, where=mask))
    else:
        calls.append(partial(xp.copyto, front, mask, casting="unsafe"))  # the type constraint allows integers
    return calls


def _reach(
    xp: Any, op: Operation, form: _Form, lengths: Array | None, last: Array
) -> tuple[Reach | None, list[Call]]:
    """The keys that queries see, and the calls that find out."""
    causal, s = bool(op.attr("is_causal", 0)), form.queries
    if lengths is None:
        if not causal:
            return None, []
        return Reach(xp.arange(form.cache.past, form.cache.past + s).reshape(1, -1), None, -np.inf), []
    # A query that is the last but i sees all valid keys but the last i.
    offsets = xp.arange(-s, 0).reshape(1, -1) if causal else xp.full((1, s), -1, INT64)
    return Reach(last, None, -np.inf), [partial(xp.add, lengths.reshape(-1, 1), offsets, last)]
