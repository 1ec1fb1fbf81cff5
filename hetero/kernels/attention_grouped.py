"""com.microsoft's GroupQueryAttention: queries in groups that share keys, with a cache, rotation and local windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.attention import BIASED, WEIGHTS, Attention, Extras, Reach
from hetero.kernels.attention_few import is_few
from hetero.kernels.attention_heads import check_shape, head_size, scale_of, split_heads
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.operands import fail, host_reason, known_scalar
from hetero.kernels.quiet import Quiet
from hetero.kernels.rotary import Rotation, rotation_of
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec, TensorSpec

INT64 = np.dtype(np.int64)
FEW_STEPS = 8
"""Up to so many steps of a batch, numbers one by one are faster than arrays."""
_QUERY, _KEY, _VALUE, _PAST_KEY, _PAST_VALUE, _LENGTHS, _TOTAL, _COS, _SIN, _POSITIONS, _BIAS, _SINK = range(
    12
)
_UNSERVED = {12: "k_scale", 13: "v_scale", 14: "q_norm_weight", 15: "k_norm_weight", 16: "query_seqlens"}


@dataclass(frozen=True, slots=True)
class _Form:
    """The sizes of a call: `total` steps at most are attended to, `past` is the length of the past's arrays."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    size: int
    past: int
    total: int
    keys: int
    """Keys that the scores have room for."""

    @property
    def capacity(self) -> int:
        """Steps that the present has room for. Where the past has as many, it is a buffer of fixed size."""
        return max(self.total, self.past)

    @property
    def is_prompt(self) -> bool:
        """Whether the sequences begin here: what the past holds is then not looked at."""
        return self.queries == self.total


def _form_of(op: Operation, specs: Sequence[Spec]) -> _Form:
    query, key, value = tensor(op, specs, _QUERY), given(specs, _KEY), given(specs, _VALUE)
    heads, kv_heads = int(op.attr("num_heads", 0)), int(op.attr("kv_num_heads", 0))
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        fail(op, f"{heads} heads cannot share {kv_heads}", "num_heads")
    if len(query.shape) != 3:
        fail(op, f"of shape {list(query.shape)}, expected three axes", "query")
    if (key is None) != (value is None):
        fail(op, "keys and values come together", "key" if key is None else "value")
    batch, queries, hidden = query.shape
    size = head_size(op, hidden, heads + 2 * kv_heads if key is None else heads, "query")
    for spec, operand in ((key, "key"), (value, "value")):
        check_shape(op, spec, (batch, queries, kv_heads * size), operand)
    past_key, past_value = given(specs, _PAST_KEY), given(specs, _PAST_VALUE)
    if (past_key is None) != (past_value is None):
        fail(op, "past keys and values come together", "past_key" if past_key is None else "past_value")
    past = 0 if past_key is None or len(past_key.shape) != 4 else past_key.shape[2]
    for spec, operand in ((past_key, "past_key"), (past_value, "past_value")):
        check_shape(op, spec, (batch, kv_heads, past, size), operand)
    lengths = tensor(op, specs, _LENGTHS)
    if lengths.size != batch:
        fail(op, f"of shape {list(lengths.shape)} for {batch} entries", "seqlens_k")
    total = known_scalar(op, specs, _TOTAL, "total_sequence_length")
    if total is None or total < queries or (total > past and total != past + queries):
        fail(op, f"{total} steps, of {past} in the past and {queries} new ones", "total_sequence_length")
    return _Form(batch, heads, kv_heads, queries, size, past, int(total), int(total))


def _refuse(op: Operation, specs: Sequence[Spec]) -> None:
    """Raises: UnsupportedError for what onnxruntime's CPU kernel refuses too, and for quantised and sliding caches."""
    for index, operand in _UNSERVED.items():
        if given(specs, index) is not None:
            raise UnsupportedError("is not served", op=op.id, node=op.name, operand=operand)
    if op.attr("sliding_window_cache", 0):
        raise UnsupportedError("a sliding cache is not served", op=op.id, node=op.name)


@kernel("GroupQueryAttention", domain="com.microsoft", versions=(1,), values=(_TOTAL,))
def group_query_attention(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """query (B, S, N*H), key and value (B, S, K*H), or query (B, S, (N + 2K)*H) alone; optional past keys and values
    (B, K, P, H); seqlens_k (B,), the steps of each entry less 1; total_sequence_length, their maximum T; optional
    cos_cache and sin_cache, position_ids (B, S), attention_bias (B or 1, N or 1, S, T), head_sink (N,)
    -> output (B, S, N*H), optional present keys and values (B, K, max(P, T), H), optional scores (B, N, S, T).

    S = T is a prompt: each entry starts at step 0, and seqlens_k says where its padding begins. Otherwise entry b's
    queries are its last S steps. Where P >= T, past and present are one buffer of fixed size, whose steps behind the
    new ones stay as they are (onnxruntime clears them where it has to copy); otherwise such steps are 0.
    Raises when called, on the host: KernelError for lengths and positions out of range.
    """
    _refuse(op, specs)
    floats = [s for i in (_QUERY, _KEY, _VALUE, _PAST_KEY, _PAST_VALUE, _COS, _SIN, _BIAS, _SINK)
              if (s := given(specs, i)) is not None]  # fmt: skip
    dtype = one_dtype(op, floats, FLOATS)
    if dtype in NARROW:
        return widened(group_query_attention, op, specs, xp)
    form = _form_of(op, specs)
    step = _Step(op, specs, xp, form, dtype)
    follows = not form.is_prompt and form.total <= form.past and given(specs, _BIAS) is None
    follows = follows and not any(op.present_outputs[3:]) and is_few(step.sizes, xp)
    if follows:  # nothing but the lengths says how many keys are looked at
        form = replace(form, keys=form.past)
        step = _Step(op, specs, xp, form, dtype)
    declared = [
        TensorSpec(dtype, (form.batch, form.queries, form.heads * form.size)),
        *[TensorSpec(dtype, step.store)] * 2,
        TensorSpec(dtype, (form.batch, form.heads, form.queries, form.total)),
    ]
    outputs = [d if p else None for d, p in zip(declared, op.present_outputs, strict=False)]
    in_place = [
        (past, i)
        for past, i in ((_PAST_KEY, 1), (_PAST_VALUE, 2))
        if i < len(outputs) and outputs[i] is not None and given(specs, past) == outputs[i]
    ]
    pasts = [i for i in (_PAST_KEY, _PAST_VALUE) if given(specs, i) is not None]  # which are copied
    return computed(
        outputs,
        step.bind,
        contiguous=[i for i in range(len(specs)) if given(specs, i) is not None and i not in pasts],
        blocks=pasts,
        overwrites=in_place,
        updates=in_place,
        workspace_bytes=carved_bytes(*step.parts),
        capture=host_reason(xp, "allocates index arrays"),
        accepts=(lambda _, total: form.queries < int(total.reshape(())) <= form.past) if follows else None,
    )


class _Scratch(NamedTuple):
    """Arrays (batch, queries) of steps and positions, stores for what is not given out, and what rotation needs."""

    steps: Array
    last: Array
    first: Array
    positions: Array
    keys: Array
    values: Array
    cos: Array
    sin: Array
    turning: Array
    turned_keys: Array


class _Step:
    """One call of the operator: its scratch, and how it is bound."""

    def __init__(
        self, op: Operation, specs: Sequence[Spec], xp: Any, form: _Form, dtype: np.dtype[Any]
    ) -> None:
        self.op, self.xp, self.form = op, xp, form
        b, n, k, s, t = form.batch, form.heads, form.kv_heads, form.queries, form.keys
        scale, softcap = scale_of(op, form.size), float(op.attr("softcap", 0.0))
        self.sizes = Attention(b, n, k, s, t, form.size, form.size, dtype, scale, softcap)
        self.window = int(op.attr("local_window_size", -1))
        self.causal = bool(op.attr("causal", 1))
        self.store = (b, k, form.capacity, form.size)
        self.rotation = self._rotation(specs) if op.attr("do_rotary", 0) else None
        check_shape(op, given(specs, _BIAS), (b, n, s, t), "attention_bias", loose=(0, 1))
        check_shape(op, given(specs, _SINK), (n,), "head_sink")
        angles, turned = (0, 0) if self.rotation is None else (self.rotation.turned // 2, form.size)
        own = [
            self.store if i >= len(op.present_outputs) or not op.present_outputs[i] else (0,) for i in (1, 2)
        ]
        places: Part = ((b, s), INT64)
        table: Part = ((b, s, angles), dtype)
        shapes = (own[0], own[1])
        self.own_parts: tuple[Part, ...] = (
            *[places] * 4,
            *((shape, dtype) for shape in shapes),
            *[table] * 2,
            ((b, n, s, angles), dtype),
            ((b, k, s, turned), dtype),
        )
        self.parts = (*self.own_parts, *self.sizes.parts(xp))

    def _rotation(self, specs: Sequence[Spec]) -> Rotation:
        cos, sin = tensor(self.op, specs, _COS), tensor(self.op, specs, _SIN)
        if len(cos.shape) != 2:
            fail(self.op, f"of shape {list(cos.shape)}, expected two axes", "cos_cache")
        positions = given(specs, _POSITIONS)
        check_shape(self.op, positions, (self.form.batch, self.form.queries), "position_ids")
        interleaved = bool(self.op.attr("rotary_interleaved", 0))
        return rotation_of(
            self.op, self.form.size, cos, sin, turned=2 * cos.shape[1], interleaved=interleaved
        )

    def bind(self, inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        """The call over these arrays."""
        xp, form = self.xp, self.form
        operands = [*inputs, *[None] * (_SINK + 1 - len(inputs))]
        scratch = carve(workspace, *self.parts)
        own, core = _Scratch(*scratch[: len(self.own_parts)]), scratch[len(self.own_parts) :]
        out, present_keys, present_values, tap = (*results, None, None, None)[:4]
        stores = (
            own.keys if present_keys is None else present_keys,
            own.values if present_values is None else present_values,
        )
        lengths = operands[_LENGTHS].reshape(-1, 1)
        queries, keys, values = self._split(operands)
        calls: list[Call] = [partial(self._place, lengths, operands[_TOTAL], own)]
        if self.rotation is not None:
            calls += self._rotate(self.rotation, operands, own, (queries, core[0]), keys)
            queries, keys = core[0], own.turned_keys
        for past, new, store in zip(operands[_PAST_KEY:], (keys, values), stores, strict=False):
            calls += self._remember(past, new, store, lengths, own.steps)
        seen = [store[:, :, : form.keys] for store in stores]
        extras = self._extras(operands, own, tap)
        calls.append(
            self.sizes.bind(xp, queries, seen[0], seen[1], split_heads(out, form.heads), core, extras)
        )
        return Quiet(in_turn(calls))

    def _extras(self, operands: Sequence[Any], own: _Scratch, tap: Array | None) -> Extras:
        """What joins the scores. Given sinks go before the smooth softmax, whose sink is 0. A query of a prompt's
        padding may see no key through a local window: it gives 0, as in onnxruntime."""
        sink = operands[_SINK]
        if sink is None and self.op.attr("smooth_softmax", 0) == 1:
            sink = self.xp.zeros(self.form.heads, self.sizes.dtype)
        return Extras(
            [] if operands[_BIAS] is None else [operands[_BIAS]],
            Reach(own.last, own.first if self.window > 0 else None, -np.inf),
            sink,
            {} if tap is None else {self.stage: tap},
            blank=True,
            zero_empty=True,
        )

    @property
    def stage(self) -> str:
        """What the fourth output shows. Raises: KernelError where the attribute says that it shows nothing."""
        wanted = int(self.op.attr("qk_output", 0))
        if wanted not in (1, 2):
            fail(self.op, f"{wanted}, and the scores are wanted", "qk_output")
        return BIASED if wanted == 1 else WEIGHTS

    def _split(self, operands: Sequence[Any]) -> list[Array]:
        """Views (batch, heads, steps, size) of queries, keys and values."""
        n, k = self.form.heads, self.form.kv_heads
        if operands[_KEY] is not None:
            return [split_heads(x, count) for x, count in zip(operands[:3], (n, k, k), strict=True)]
        every = split_heads(operands[_QUERY], n + 2 * k)
        return [every[:, :n], every[:, n : n + k], every[:, n + k :]]

    def _place(self, lengths: Array, total: Array, own: _Scratch) -> None:
        """Fill in the step of each query in its sequence, and the keys that it sees."""
        xp, form = self.xp, self.form
        if xp is np and 0 < form.batch * form.queries <= FEW_STEPS:
            self._place_few(lengths, int(total.reshape(())), own)
            return
        if xp is np and form.batch:
            low, high = int(lengths.min()), int(lengths.max())
            steps = int(total.reshape(()))
            if high >= steps or low < (0 if form.is_prompt else form.queries - 1):
                message = f"{lengths.reshape(-1).tolist()} for {form.queries} of {steps} steps"
                fail(self.op, message, "seqlens_k")
        offsets = xp.arange(form.queries)
        if form.is_prompt:
            xp.copyto(own.steps, offsets)
        else:
            xp.add(lengths, offsets - (form.queries - 1), own.steps)
        if self.causal:
            xp.minimum(own.steps, lengths, out=own.last)
        else:
            xp.copyto(own.last, lengths)
        if self.window > 0:
            xp.subtract(own.steps, self.window - 1, own.first)

    def _place_few(self, lengths: Array, total: int, own: _Scratch) -> None:
        """As `_place`, number by number."""
        form = self.form
        lowest = 0 if form.is_prompt else form.queries - 1
        ends = lengths.reshape(-1).tolist()
        for b, end in enumerate(ends):
            if not lowest <= end < total:
                fail(self.op, f"{ends} for {form.queries} of {total} steps", "seqlens_k")
            begin = 0 if form.is_prompt else end - lowest
            for i in range(form.queries):
                step = begin + i
                own.steps[b, i] = step
                own.last[b, i] = min(step, end) if self.causal else end
                if self.window > 0:
                    own.first[b, i] = step - self.window + 1

    def _rotate(
        self,
        rotation: Rotation,
        operands: Sequence[Any],
        own: _Scratch,
        queries: tuple[Array, Array],
        keys: Array,
    ) -> list[Call]:
        """What turns queries (from, to) and keys. A prompt's positions follow from the first one of all that is
        given, as in onnxruntime."""
        xp, form, positions = self.xp, self.form, operands[_POSITIONS]
        calls: list[Call] = []
        if positions is None:
            positions = own.steps
        elif form.is_prompt:
            calls.append(partial(xp.add, positions[:1, :1], xp.arange(form.queries), own.positions))
            positions = own.positions
        tables = (operands[_COS], operands[_SIN])
        pairs = [(*queries, own.turning), (keys, own.turned_keys, own.turning[:, : form.kv_heads])]
        return calls + rotation.looking_up(self.op, xp, pairs, tables, positions, (own.cos, own.sin))

    def _remember(
        self, past: Array | None, new: Array, store: Array, lengths: Array, steps: Array
    ) -> list[Call]:
        """What makes the present of the past and of the `new` steps (batch, kv heads, queries, size)."""
        xp, form = self.xp, self.form
        grows = form.past < form.capacity
        calls: list[Call] = []
        if past is not None and not xp.may_share_memory(past, store):
            calls.append(partial(xp.copyto, store[:, :, : form.past], past))
        if form.is_prompt or form.batch == 0:
            calls.append(partial(xp.copyto, store[:, :, : form.queries], new))
            return calls
        by_step, source = store.transpose(0, 2, 1, 3), new.transpose(0, 2, 1, 3)
        entries = xp.arange(form.batch).reshape(-1, 1)
        places = xp.arange(form.capacity).reshape(1, 1, -1, 1)

        if xp is np and not grows and form.batch <= FEW_STEPS:
            ends = lengths.reshape(-1)

            def write_few() -> None:
                for entry, rows, end in zip(store, new, ends.tolist(), strict=True):
                    entry[:, end + 1 - form.queries : end + 1] = rows

            return [*calls, write_few]

        def write() -> None:
            by_step[entries, steps] = source
            if grows and (xp is not np or int(lengths.min()) + 1 < form.capacity):
                xp.copyto(store, 0, where=places > lengths.reshape(-1, 1, 1, 1))

        calls.append(write)
        return calls
