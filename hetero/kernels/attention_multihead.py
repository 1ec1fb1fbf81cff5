"""com.microsoft's MultiHeadAttention and DecoderMaskedMultiHeadAttention, their operands apart or packed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.attention import MASKED, Attention, Extras, Reach
from hetero.kernels.attention_heads import (
    LOWEST,
    Cache,
    cache_of,
    check_shape,
    head_size,
    placed,
    scale_of,
    split_heads,
)
from hetero.kernels.attention_mask import causal_last, mask_of
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.operands import fail, host_reason, known_scalar
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec, TensorSpec

_NAMES = ("query", "key", "value", "bias", "mask", "attention_bias", "past_key", "past_value",
          "past_sequence_length", "cache_indirection")  # fmt: skip
MULTI_HEAD = {name: i for i, name in enumerate(_NAMES)}
_DECODER_NAMES = ("query", "key", "value", "mask", "attention_bias", "past_key", "past_value",
                  "past_sequence_length", "beam_width", "cache_indirection", "bias")  # fmt: skip
DECODER = {name: i for i, name in enumerate(_DECODER_NAMES)}


@dataclass(frozen=True, slots=True)
class _Form:
    """How queries, keys and values are given, and their sizes.

    `packed`: "" (apart), "qkv" (all in query), "kv" (keys and values in key), "rows" (all in query, one after the
    other in each row) or "heads" (key and value are split into heads: cross attention).
    """

    packed: str
    batch: int
    heads: int
    queries: int
    new: int
    size: int
    value_size: int

    def split(self, query: Array, key: Array | None, value: Array | None) -> tuple[Array, Array, Array]:
        """Views (batch, heads, length, size) of queries, keys and values."""
        if self.packed == "qkv":
            turned = query.transpose(3, 0, 2, 1, 4)
            return turned[0], turned[1], turned[2]
        if self.packed == "rows":
            every = split_heads(query, 3 * self.heads)
            return every[:, : self.heads], every[:, self.heads : -self.heads], every[:, -self.heads :]
        queries = split_heads(query, self.heads)
        assert key is not None
        if self.packed == "kv":
            turned = key.transpose(3, 0, 2, 1, 4)
            return queries, turned[0], turned[1]
        assert value is not None
        if self.packed == "heads":
            return queries, key, value
        return queries, split_heads(key, self.heads), split_heads(value, self.heads)


def _form_of(op: Operation, query: TensorSpec, key: TensorSpec | None, value: TensorSpec | None) -> _Form:
    heads = int(op.attr("num_heads", 0))
    if key is None:
        if value is not None:
            fail(op, "values without keys", "value")
        if len(query.shape) == 5 and query.shape[2:4] == (heads, 3):
            batch, length, _, _, size = query.shape
            return _Form("qkv", batch, heads, length, length, size, size)
        if len(query.shape) == 3 and op.op_type.startswith("Decoder"):
            size = head_size(op, query.shape[2], 3 * heads, "query")
            return _Form("rows", query.shape[0], heads, query.shape[1], query.shape[1], size, size)
        fail(op, f"of shape {list(query.shape)} holds no keys and values of {heads} heads", "query")
    if len(query.shape) != 3:
        fail(op, f"of shape {list(query.shape)} beside keys", "query")
    batch, queries, hidden = query.shape
    size = head_size(op, hidden, heads, "query")
    if value is None:
        if len(key.shape) != 5:
            fail(op, f"of shape {list(key.shape)} without values", "key")
        check_shape(op, key, (batch, key.shape[1], heads, 2, size), "key")
        return _Form("kv", batch, heads, queries, key.shape[1], size, size)
    if len(key.shape) != len(value.shape) or len(key.shape) not in (3, 4):
        fail(op, f"of shape {list(value.shape)} beside keys {list(key.shape)}", "value")
    if len(key.shape) == 4:
        new, value_size = key.shape[2], value.shape[3]
        check_shape(op, key, (batch, heads, new, size), "key")
        check_shape(op, value, (batch, heads, new, value_size), "value")
        return _Form("heads", batch, heads, queries, new, size, value_size)
    new = key.shape[1]
    check_shape(op, key, (batch, new, hidden), "key")
    check_shape(op, value, (batch, new, value.shape[2]), "value")
    return _Form("", batch, heads, queries, new, size, head_size(op, value.shape[2], heads, "value"))


def _beam_rows(op: Operation, spec: TensorSpec | None, batch: int, cache: Cache) -> int | None:
    """How many beams share a prompt; None without cache_indirection (batch / beams, beams, steps)."""
    if spec is None:
        return None
    if len(spec.shape) != 3 or spec.shape[0] * spec.shape[1] != batch or spec.shape[2] < cache.past:
        fail(op, f"of shape {list(spec.shape)} for {batch} beams and {cache.past} steps", "cache_indirection")
    return spec.shape[1]


@kernel(
    "MultiHeadAttention", domain="com.microsoft", versions=(1,), values=(MULTI_HEAD["past_sequence_length"],)
)
def multi_head_attention(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """query (B, S, N*H), key (B, L, N*H), value (B, L, N*Hv); or query (B, L, N, 3, H) alone; or key (B, L, N, 2, H)
    without value; or key and value (B, N, L, H). Optional bias (N*H + N*H + N*Hv,), masks (see `mask_of`),
    attention_bias (B or 1, N or 1, S, T), past keys and values -> output (B, S, N*Hv), optional present keys and values
    (B, N, T, H), optional scores that the softmax takes (B, N, S, T).

    With past_sequence_length past and present are buffers of fixed size. cache_indirection (B / beams, beams, steps)
    names for each step of the past the beam that it is taken from.
    """
    return _compile(op, specs, xp, MULTI_HEAD, multi_head_attention)


@kernel(
    "DecoderMaskedMultiHeadAttention",
    domain="com.microsoft",
    versions=(1,),
    values=(DECODER["past_sequence_length"],),
)
def decoder_masked_multi_head_attention(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """One step of MultiHeadAttention, its operands in another order; query (B, 1, 3*N*H) may hold keys and values."""
    query = tensor(op, specs, 0)
    if len(query.shape) > 1 and query.shape[1] != 1:
        fail(op, f"{query.shape[1]} steps, decodes one", "query")
    return _compile(op, specs, xp, DECODER, decoder_masked_multi_head_attention)


def _compile(op: Operation, specs: Sequence[Spec], xp: Any, at: Mapping[str, int], this: Any) -> Compiled:
    spec = {name: given(specs, index) for name, index in at.items()}
    floats = ("query", "key", "value", "bias", "attention_bias", "past_key", "past_value")
    dtype = one_dtype(op, [s for name in floats if (s := spec[name]) is not None], FLOATS)
    if dtype in NARROW:
        return widened(this, op, specs, xp)
    form = _form_of(op, tensor(op, specs, 0), spec["key"], spec["value"])
    step = _Step(op, xp, form, _cache(op, specs, at, form), dtype, spec)
    overwrites = [
        (at[name], i)
        for i, name in ((1, "past_key"), (2, "past_value"))
        if step.given_out(i) and spec[name] == step.declared[i]
    ]
    return computed(
        [d if p else None for d, p in zip(step.declared, op.present_outputs, strict=False)],
        lambda inputs, outputs, workspace: step.bind(
            {name: inputs[i] if i < len(inputs) else None for name, i in at.items()}, outputs, workspace
        ),
        contiguous=[i for name, i in at.items() if spec[name] is not None],
        overwrites=overwrites,
        workspace_bytes=carved_bytes(*step.parts),
        capture=host_reason(xp, "allocates an index array") if step.beams else None,
    )


class _Step:
    """One call of the operator: what it gives, its scratch, and how it is bound."""

    def __init__(
        self,
        op: Operation,
        xp: Any,
        form: _Form,
        cache: Cache,
        dtype: np.dtype[Any],
        spec: Mapping[str, TensorSpec | None],
    ) -> None:
        self.op, self.xp, self.form, self.cache = op, xp, form, cache
        b, n, s, t = form.batch, form.heads, form.queries, cache.total
        self.sizes = Attention(b, n, n, s, t, form.size, form.value_size, dtype, scale_of(op, form.size))
        self.columns = (0, n * form.size, 2 * n * form.size, n * (2 * form.size + form.value_size))
        check_shape(op, spec["bias"], self.columns[3:], "bias")
        check_shape(op, spec["attention_bias"], (b, n, s, t), "attention_bias", loose=(0, 1))
        name = "mask_index" if op.op_type.startswith("Decoder") else "key_padding_mask"
        self.mask = mask_of(
            op, spec["mask"], batch=b, queries=s, past=cache.past, keys=t, dtype=dtype, operand=name
        )
        self.beams = _beam_rows(op, spec["cache_indirection"], b, cache)
        self.causal = bool(op.attr("unidirectional", 0)) and s > 1
        # Keys and values that are read where they lie need no array of their own.
        biased = spec["bias"] is not None and form.packed != "heads"
        self.direct = spec["past_key"] is None and not biased
        stores = [(b, n, cache.capacity, size) for size in (form.size, form.value_size)]
        self.declared = (
            TensorSpec(dtype, (b, s, n * form.value_size)),
            *(TensorSpec(dtype, store) for store in stores),
            TensorSpec(dtype, (b, n, s, t)),
        )
        own = [(0,) if self.direct or self.given_out(i) else store for i, store in enumerate(stores, 1)]
        gathered = [(b, n, t, size) if self.beams else (0,) for size in (form.size, form.value_size)]
        self.core_parts = self.sizes.parts(xp)
        self.parts: tuple[Part, ...] = (
            *self.core_parts,
            *((shape, dtype) for shape in (*own, *gathered)),
            *(() if self.mask is None else self.mask.parts),
        )

    def given_out(self, output: int) -> bool:
        """Whether the node has this output."""
        return output < len(self.op.present_outputs) and self.op.present_outputs[output]

    def bind(self, operand: Mapping[str, Any], results: Sequence[Any], workspace: Any) -> Call:
        """The call over these arrays."""
        xp, form, t = self.xp, self.form, self.cache.total
        scratch = carve(workspace, *self.parts)
        core, rest = scratch[: len(self.core_parts)], scratch[len(self.core_parts) :]
        own, gathered, mask_scratch = rest[:2], rest[2:4], rest[4:]
        out, *present, tap = (*results, None, None, None)[:4]
        calls: list[Call] = []
        queries, *kv = form.split(operand["query"], operand["key"], operand["value"])
        biases: list[Array | None] = [None, None, None]
        if operand["bias"] is not None:
            row = operand["bias"].reshape(1, 1, -1)
            biases = [split_heads(row[:, :, i:j], form.heads) for i, j in itertools.pairwise(self.columns)]
            if form.packed == "heads":
                biases[1:] = [None, None]
            calls.append(placed(xp, queries, biases[0], core[0]))
            queries = core[0]
        for i, name in enumerate(("past_key", "past_value")):
            store = own[i] if present[i] is None else present[i]
            if self.direct and present[i] is None:
                continue
            calls += self.cache.calls(xp, operand[name], kv[i], biases[i + 1], store)
            kv[i] = store[:, :, :t]
            if self.beams:
                beam = operand["cache_indirection"].reshape(form.batch, -1)[:, : self.cache.past]
                calls.append(partial(_gather, xp, beam, self.beams, store, gathered[i]))
                kv[i] = gathered[i]
        added = [] if operand["attention_bias"] is None else [operand["attention_bias"]]
        if self.mask is not None:
            calls += self.mask.bind(xp, operand["mask"], *mask_scratch)
            added.append(mask_scratch[0])
        reach = (
            Reach(causal_last(xp, form.queries, self.cache.past, t), None, LOWEST) if self.causal else None
        )
        extras = Extras(added, reach, taps={} if tap is None else {MASKED: tap})
        target = split_heads(out, form.heads)
        calls.append(self.sizes.bind(xp, queries, kv[0], kv[1], target, core, extras))
        return Quiet(in_turn(calls))


def _cache(op: Operation, specs: Sequence[Spec], at: Mapping[str, int], form: _Form) -> Cache:
    """The cache of this call: a buffer of fixed size where past_sequence_length is given."""
    keys, values = given(specs, at["past_key"]), given(specs, at["past_value"])
    length = known_scalar(op, specs, at["past_sequence_length"], "past_sequence_length")
    if keys is None:
        length = None
    elif form.packed == "heads":
        fail(op, "is given, and so are keys split into heads", "past_key")
    elif length is None and given(specs, at["cache_indirection"]) is not None:
        raise UnsupportedError("cache_indirection without past_sequence_length", op=op.id, node=op.name)
    cache = cache_of(op, keys, values, form.new, length)
    steps = keys.shape[2] if keys is not None else 0
    check_shape(op, keys, (form.batch, form.heads, steps, form.size), "past_key")
    check_shape(op, values, (form.batch, form.heads, steps, form.value_size), "past_value")
    return cache


def _gather(xp: Any, beam: Array, beams: int, store: Array, target: Array) -> None:
    """target (B, N, T, H) = the steps of `store` (B, N, capacity, H), those of the past of the beam it names.

    `beam` (B, past) counts within the `beams` entries of a prompt.
    """
    batch, heads, steps, size = target.shape
    entries = xp.arange(batch).reshape(-1, 1)
    source = xp.broadcast_to(entries, (batch, steps)).copy()
    source[:, : beam.shape[1]] = entries // beams * beams + beam
    places = (source[:, None] * heads + xp.arange(heads)[:, None]) * store.shape[2] + xp.arange(steps)
    flat = store.reshape(-1, size)
    if xp is np:
        flat.take(places, 0, target, "wrap")
    else:
        flat.take(places, 0, target)
