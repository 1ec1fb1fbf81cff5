"""Attention that a model spells out over heads that several queries share: scores, scale, mask, softmax and the mix of
values in one operation, with the bits of the model's own. Where a step has few rows, one compiled call does it all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels import matmul_few, matmul_weighted, row_loops
from hetero.kernels.base import Bind, Call, Compiled, computed, given, kernel, lookup, tensor
from hetero.kernels.broadcasting import broadcasts_to, elements
from hetero.kernels.fused import in_turn
from hetero.kernels.jit import PARALLEL_ELEMENTS, enabled, floats_at, jit, prange
from hetero.kernels.jit_lanes import add_weighted_at, dots_at, max_at, rows_at
from hetero.kernels.matmul_repeated import Repeating, folds_to, integers, repeats, shared
from hetero.kernels.quiet import Quiet, bare
from hetero.kernels.row_loops import address, takes_rows
from hetero.kernels.shifting import bind_words
from hetero.kernels.softmax_rows import exponentials_at
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import ABSENT, Array, Spec, TensorSpec

DOMAIN, OP_TYPE = "hetero.internal", "RepeatedAttention"
(Q, K, V, SCALE, MASK) = (0, 1, 2, 9, 10)
"""Inputs; those of K's and V's repeats lie between V and SCALE, three each."""
_FLOAT32 = np.dtype(np.float32)
_ZERO, _ONE = np.float32(0), np.float32(1)
_BLOCK = 64
"""Keys and values at a time, as in products that are computed alone."""
_NEITHER, _MULTIPLIED, _DIVIDED = range(3)
_SCALED = {None: _NEITHER, "Mul": _MULTIPLIED, "Div": _DIVIDED}
(
    _HEADS, _SHARE, _GROUPS, _ROWS, _DEPTH, _KEYS, _WIDTH, _QUERIES,
    _KEY, _KEY_BATCH, _KEY_GROUP, _KEY_STEP, _VALUE, _VALUE_BATCH, _VALUE_GROUP, _VALUE_STEP,
    _SCALES, _FACTOR, _MASKS, _MASK_BATCH, _MASK_HEAD, _MASK_STEP, _SCORES, _OUT,
) = range(24)  # fmt: skip
"""Places of the words: how many heads there are, batch and all, how many share a group of keys, and how many groups a
batch has; sizes; addresses, and bytes from one to the next. `_SCALES` is one of the above."""


@dataclass(frozen=True, slots=True, repr=False)
class Attending:
    """The model's own operations: products with `keys` and `values`, and between them what `scale` (Mul or Div by one
    number), `mask` (Add; `mask_first` where it is the left operand) and `softmax` do."""

    keys: Repeating
    scale: Operation | None
    mask: Operation | None
    mask_first: bool
    softmax: Operation
    values: Repeating

    def __repr__(self) -> str:
        """The same for two that differ in their nodes' names alone."""
        steps = (self.scale, self.mask, self.softmax)
        between = [s and (s.op_type, s.version, sorted(s.attributes.items())) for s in steps]
        return str([self.keys, between, self.mask_first, self.values])


def _not_a_models(op: Operation, types: Sequence[object]) -> str | None:
    return None if isinstance(op.attr("attending"), Attending) else "no operator that a model may name"


@kernel(
    OP_TYPE,
    domain=DOMAIN,
    versions=(1,),
    dispatch=Dispatch.LIBRARY,
    values=tuple(range(V + 1, SCALE)),
    portable=False,
    check=_not_a_models,
)
def repeated_attention(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Q, K, V, for each of the latter the axes of Unsqueeze (absent where they are its attribute) and the shapes of
    Expand and Reshape, a scale and a mask (absent where there is none) -> the mix of V', the bits of the operators one
    by one. On the host."""
    steps = op.attr("attending")
    if not isinstance(steps, Attending):
        raise UnsupportedError(_not_a_models(op, ()) or "", op=op.id, node=op.name)
    return _by_rows(op, steps, specs, xp) or _in_general(op, steps, specs, xp)


# -- few rows ------------------------------------------------------------------------------------------------------
def _attend_numpy(words: Any) -> None:
    """The compiled function's result, head by head."""
    w = [int(x) for x in words]
    for head in range(w[_HEADS]):
        group, batch = head // w[_SHARE], head // w[_SHARE] // w[_GROUPS]
        own = group - batch * w[_GROUPS]
        keys = rows_at(
            w[_KEY] + batch * w[_KEY_BATCH] + own * w[_KEY_GROUP], w[_KEY_STEP], w[_KEYS], w[_DEPTH]
        )
        values = rows_at(
            w[_VALUE] + batch * w[_VALUE_BATCH] + own * w[_VALUE_GROUP], w[_VALUE_STEP], w[_KEYS], w[_WIDTH]
        )
        row = head * w[_ROWS]
        scores = rows_at(w[_QUERIES] + 4 * row * w[_DEPTH], 4 * w[_DEPTH], w[_ROWS], w[_DEPTH]) @ keys.T
        if w[_SCALES] == _MULTIPLIED:
            scores *= floats_at(w[_FACTOR], 1)
        elif w[_SCALES] == _DIVIDED:
            scores /= floats_at(w[_FACTOR], 1)
        if w[_MASKS]:
            at = w[_MASKS] + batch * w[_MASK_BATCH] + (head - batch * w[_GROUPS] * w[_SHARE]) * w[_MASK_HEAD]
            scores += rows_at(at, w[_MASK_STEP], w[_ROWS], w[_KEYS])
        scores = np.exp(scores - np.fmax.reduce(scores, 1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
        rows_at(w[_OUT] + 4 * row * w[_WIDTH], 4 * w[_WIDTH], w[_ROWS], w[_WIDTH])[:] = scores @ values


@jit("i8[1]", twin=_attend_numpy, exact=True)
def attend(words: Array) -> None:
    """For each head: scores of its rows of Q with its keys, scaled, masked, as softmax has them; then the sum of its
    values with these weights. `words` as above."""
    share, groups, rows, depth, keys = (
        words[_SHARE],
        words[_GROUPS],
        words[_ROWS],
        words[_DEPTH],
        words[_KEYS],
    )
    width, key_step, value_step = words[_WIDTH], words[_KEY_STEP], words[_VALUE_STEP]
    for head in prange(words[_HEADS]):
        batch = head // (share * groups)
        own = head // share - batch * groups
        key = words[_KEY] + batch * words[_KEY_BATCH] + own * words[_KEY_GROUP]
        value = words[_VALUE] + batch * words[_VALUE_BATCH] + own * words[_VALUE_GROUP]
        queries = words[_QUERIES] + 4 * head * rows * depth
        scores = words[_SCORES] + 4 * head * rows * keys
        out = words[_OUT] + 4 * head * rows * width
        masks = (
            words[_MASKS] + batch * words[_MASK_BATCH] + (head - batch * groups * share) * words[_MASK_HEAD]
        )
        for block in range(0, keys, _BLOCK):
            for r in range(rows):
                dots_at(
                    queries + 4 * r * depth, key + block * key_step, key_step,
                    scores + 4 * (r * keys + block), depth, min(_BLOCK, keys - block),
                )  # fmt: skip
        for r in range(rows):
            at = scores + 4 * r * keys
            row, mixed = floats_at(at, keys), floats_at(out + 4 * r * width, width)
            if words[_SCALES] == _MULTIPLIED:
                factor = floats_at(words[_FACTOR], 1)[0]
                for j in range(keys):
                    row[j] *= factor
            elif words[_SCALES] == _DIVIDED:
                divisor = floats_at(words[_FACTOR], 1)[0]
                for j in range(keys):
                    row[j] /= divisor
            if words[_MASKS]:
                mask = floats_at(masks + r * words[_MASK_STEP], keys)
                for j in range(keys):
                    row[j] += mask[j]
            share_of = _ONE / exponentials_at(at, at, keys, max_at(at, keys))
            for j in range(keys):
                row[j] *= share_of
            for j in range(width):
                mixed[j] = _ZERO
        for block in range(0, keys, _BLOCK):
            for r in range(rows):
                add_weighted_at(
                    scores + 4 * (r * keys + block), value + block * value_step, value_step,
                    out + 4 * r * width, width, min(_BLOCK, keys - block),
                )  # fmt: skip


def _by_rows(op: Operation, steps: Attending, specs: Sequence[Spec], xp: Any) -> Compiled | None:
    """The compiled loops, where they are for operands of these specs; else None."""
    keys = shared(steps.keys, (specs[Q], specs[K], *specs[3:6]), xp)
    if keys is None or len(keys.own) != 4 or keys.at != 2:
        return None
    q, v = tensor(op, specs, Q), tensor(op, specs, V)
    scores = _scores(q, keys.own[2])
    values = shared(steps.values, (scores, v, *specs[6:9]), xp)
    if values is None or values.own[:-1] != keys.own[:-1] or values.at != 2 or values.times != keys.times:
        return None
    if int(steps.softmax.attr("axis", -1)) % 4 != 3 or not _are_for(scores, specs, xp):
        return None
    batch, groups, _, depth = keys.own
    width, times = values.own[-1], keys.times
    scales = _SCALED[None if steps.scale is None else steps.scale.op_type]
    heads, rows = batch * groups * times, q.shape[-2]
    scale, mask = given(specs, SCALE), given(specs, MASK)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        left, key, value, out = inputs[Q], inputs[K], inputs[V], outputs[0]
        factor, masks = inputs[SCALE], inputs[MASK]
        operands = left, key, value, factor, masks
        if not all(x is None or x.flags.aligned for x in operands):
            return _bind_alone(op, steps, specs, xp, inputs, outputs)
        count: int = key.shape[2]
        masked = (0, 0, 0, 0) if masks is None else (address(masks), *_steps(masks))
        words = (
            heads, times, groups, rows, depth, count, width, address(left),
            address(key), *key.strides[:3], address(value), *value.strides[:3],
            scales, 0 if factor is None else address(factor), *masked, address(workspace), address(out),
        )  # fmt: skip
        parallel = 2 * heads * rows * count * depth >= 16 * PARALLEL_ELEMENTS
        return bind_words(attend, words, (*operands, workspace, out), parallel)

    def stretch(others: Sequence[Spec]) -> tuple[TensorSpec, int] | None:
        count = tensor(op, others, K).shape[2]
        shapes = {Q: q.shape, K: (*keys.own[:2], count, depth), V: (*keys.own[:2], count, width)}
        if mask is not None:
            shapes[MASK] = (*mask.shape[:-1], count)
        if scale is not None:
            shapes[SCALE] = scale.shape
        for k, shape in shapes.items():
            if others[k].shape != shape:  # type: ignore[union-attr]
                return None
        if not _are_enough(count) or any(integers(others[k]) != integers(specs[k]) for k in (3, 6)):
            return None
        for at, last, repeating in ((4, depth, steps.keys), (7, width, steps.values)):
            if integers(others[at]) != (batch, groups, times, count, last):
                return None
            whole = batch, groups * times, count, last
            if not folds_to(repeating.reshape, integers(others[at + 1]), whole, keys.at):
                return None
        return output, _room(q, count)

    output = TensorSpec(q.dtype, (*q.shape[:-1], width))
    ordinary = frozenset(k for k, s in enumerate(specs) if s != ABSENT) - {K, V}
    return computed(
        (output,),
        bind,
        contiguous=ordinary,
        blocks=(K, V),
        workspace_bytes=_room(q, keys.own[2]),
        stretch=stretch,
    )


def _scores(q: TensorSpec, count: int) -> TensorSpec:
    return TensorSpec(q.dtype, (*q.shape[:-1], count))


def _room(q: TensorSpec, count: int) -> int:
    return carved_bytes((_scores(q, count).shape, _FLOAT32))


def _are_for(scores: TensorSpec, specs: Sequence[Spec], xp: Any) -> bool:
    """Whether the loops, which are for both products, are for these rows, this scale and this mask too."""
    rows, count = elements(scores.shape[:-1]), scores.shape[-1]
    if not takes_rows(xp, rows, count, scores.dtype):
        return False
    scale, mask = given(specs, SCALE), given(specs, MASK)
    if scale is not None and (scale.dtype != _FLOAT32 or scale.size != 1 or len(scale.shape) > 4):
        return False
    if mask is None:
        return True
    return mask.dtype == _FLOAT32 and mask.shape[-1:] == (count,) and broadcasts_to(mask, scores.shape)


def _are_enough(count: int) -> bool:
    """Whether so many keys are for the loops, where other counts are: what `shared` and `takes_rows` ask of them."""
    fewest = max(matmul_few.FEWEST_COLUMNS, matmul_weighted.FEWEST_DEPTH)
    return fewest <= count <= row_loops.MOST_WIDTH and enabled()


def _bind_alone(
    op: Operation,
    steps: Attending,
    specs: Sequence[Spec],
    xp: Any,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
) -> Call:
    """The operations one by one, over memory of their own."""
    here = [
        s if x is None else TensorSpec(x.dtype, x.shape, x if V < k < SCALE else None)
        for k, (s, x) in enumerate(zip(specs, inputs, strict=True))
    ]
    general = _in_general(op, steps, here, xp)
    assert general.bind is not None, "a product's shape is known"
    return general.bind(inputs, outputs, np.empty(general.workspace_bytes, np.uint8))


def _steps(mask: Array) -> tuple[int, ...]:
    """Bytes from one batch, head and row of a mask to the next: none where it has but one."""
    extents = (1,) * (4 - mask.ndim) + mask.shape
    strides = (0,) * (4 - mask.ndim) + mask.strides
    return tuple(0 if n == 1 else s for n, s in zip(extents[:3], strides[:3], strict=True))


# -- in general ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Stage:
    """One of the model's operations over `inputs`: of the instruction by number, or -1 for what came before."""

    compiled: Compiled
    inputs: tuple[int | None, ...]
    in_place: bool

    @property
    def output(self) -> TensorSpec:
        (spec,) = self.compiled.outputs
        assert isinstance(spec, TensorSpec), "of an operation on tensors"
        return spec


def _in_general(op: Operation, steps: Attending, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Each of the operations by itself, over scores that are overwritten where they can be."""
    stages: list[_Stage] = []

    def then(compiled: Compiled, *inputs: int | None) -> None:
        """Add a stage over the result of the last one, which it may overwrite."""
        spot = inputs.index(-1) if -1 in inputs else -1
        stages.append(_Stage(compiled, inputs, (spot, 0) in compiled.overwrites))

    def one(operation: Operation, *inputs: int) -> None:
        definition = lookup(operation.domain, operation.op_type, operation.version)
        if definition is None:
            raise UnsupportedError("has no kernel", op=operation.id, node=operation.name)
        own = [stages[-1].output if k < 0 else specs[k] for k in inputs]
        then(definition.compile(operation, own, xp), *inputs)

    def present(*inputs: int) -> tuple[int | None, ...]:
        return tuple(None if specs[k] == ABSENT else k for k in inputs)

    then(repeats(op, steps.keys, [specs[k] for k in (Q, K, 3, 4, 5)], xp), *present(Q, K, 3, 4, 5))
    if steps.scale is not None:
        one(steps.scale, -1, SCALE)
    if steps.mask is not None:
        one(steps.mask, *((MASK, -1) if steps.mask_first else (-1, MASK)))
    one(steps.softmax, -1)
    last = [stages[-1].output, *(specs[k] for k in (V, 6, 7, 8))]
    then(repeats(op, steps.values, last, xp), -1, *present(V, 6, 7, 8))
    if any(s.compiled.bind is None or s.compiled.view is not None for s in stages):
        raise KernelError("is no operation on tensors of known shapes", op=op.id, node=op.name)
    between = [s.output for s in stages[:-1]]
    kept = [k for k in range(len(between)) if k == 0 or not _overwrites(stages, k)]
    parts: list[Part] = [(between[k].shape, between[k].dtype) for k in kept]
    scratch = max(s.compiled.workspace_bytes for s in stages)
    parts.append(((scratch,), np.uint8))
    blocks = {
        k
        for s in (stages[0], stages[-1])
        for at in s.compiled.blocks
        if (k := s.inputs[at]) is not None and k in (K, V)
    }
    return computed(
        (stages[-1].output,),
        _bind_stages(stages, kept, parts),
        contiguous=frozenset(k for k, s in enumerate(specs) if s != ABSENT) - blocks,
        blocks=blocks,
        turned={K} & blocks if 1 in stages[0].compiled.turned else (),
        workspace_bytes=carved_bytes(*parts),
    )


def _overwrites(stages: Sequence[_Stage], k: int) -> bool:
    """Whether stage `k` computes into the result of the one before it."""
    return stages[k].in_place and stages[k].output == stages[k - 1].output


def _bind_stages(stages: Sequence[_Stage], kept: Sequence[int], parts: Sequence[Part]) -> Bind:
    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        *space, scratch = carve(workspace, *parts)
        calls: list[Call] = []
        current: Array | None = None
        for at, stage in enumerate(stages):
            own = [None if k is None else current if k < 0 else inputs[k] for k in stage.inputs]
            if at == len(stages) - 1:
                current = outputs[0]
            elif at in kept:
                current = space[kept.index(at)]
            compiled = stage.compiled
            assert compiled.bind is not None, "it was looked at when compiling"
            room = scratch[: compiled.workspace_bytes] if compiled.workspace_bytes else None
            calls.append(bare(compiled.bind(own, [current], room)))
        return Quiet(in_turn(calls))

    return bind
