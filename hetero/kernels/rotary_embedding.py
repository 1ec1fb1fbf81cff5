"""RotaryEmbedding of ai.onnx and of com.microsoft, and com.microsoft's MRotaryEmbedding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.attention_heads import check_shape, head_size, split_heads
from hetero.kernels.base import Call, Compiled, CompileFunction, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.operands import fail
from hetero.kernels.quiet import Quiet
from hetero.kernels.rotary import looked_up, rotation_of
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec, TensorSpec

INT64 = np.dtype(np.int64)


def _heads(op: Operation, x: TensorSpec, implied: int) -> tuple[int, int, int, int]:
    """(batch, heads, length, size) of a tensor of three axes or four; `implied` is the size of a head where the
    attribute num_heads is not given."""
    heads = int(op.attr("num_heads", 0))
    if len(x.shape) == 4:
        batch, count, length, size = x.shape
        return batch, count, length, size
    if len(x.shape) != 3:
        fail(op, f"of shape {list(x.shape)}, expected three axes or four", "X")
    batch, length, hidden = x.shape
    if not heads:
        if not implied or hidden % implied:
            fail(op, f"a hidden size of {hidden} is not heads of {implied} elements", "X")
        heads = hidden // implied
    return batch, heads, length, head_size(op, hidden, heads, "X")


def _views(array: Array, heads: int) -> Array:
    return array if array.ndim == 4 else split_heads(array, heads)


@kernel("RotaryEmbedding", domain="com.microsoft", versions=(1,))
def rotary_embedding(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """input (B, S, N*H) or (B, N, S, H), position_ids (B, S) or of one element (the first position of every entry),
    cos_cache and sin_cache (positions, angles) -> input, turned.

    `scale` and `is_packed_batching` change nothing, as in onnxruntime.
    """
    return _table(op, specs, xp, rotary_embedding, x=0, positions=1, cos=2, sin=3)


@kernel("RotaryEmbedding", versions=(23,))
def standard_rotary_embedding(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (B, S, N*H) or (B, N, S, H), cos_cache and sin_cache (positions, angles) with position_ids (B, S), or
    (B, S, angles) without -> X, turned."""
    x, cos = tensor(op, specs, 0), tensor(op, specs, 1)
    if len(x.shape) == 3 and not op.attr("num_heads", 0):
        fail(op, "is needed for an input of three axes", "num_heads")
    if given(specs, 3) is not None:
        return _table(op, specs, xp, standard_rotary_embedding, x=0, positions=3, cos=1, sin=2)
    if one_dtype(op, (x, cos, tensor(op, specs, 2)), FLOATS) in NARROW:
        return widened(standard_rotary_embedding, op, specs, xp)
    batch, heads, length, size = _heads(op, x, 0)
    rotation = rotation_of(
        op,
        size,
        cos,
        tensor(op, specs, 2),
        turned=int(op.attr("rotary_embedding_dim", 0)) or size,
        interleaved=bool(op.attr("interleaved", 0)),
    )
    check_shape(op, cos, (batch, length, rotation.turned // 2), "cos_cache")
    parts = (rotation.part(batch, heads, length),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        (scratch,) = carve(workspace, *parts)
        source, target = (_views(a, heads) for a in (inputs[0], outputs[0]))
        cosines, sines = inputs[1][:, None], inputs[2][:, None]
        return Quiet(in_turn(rotation.bind(xp, source, cosines, sines, target, scratch)))

    return computed(
        [TensorSpec(x.dtype, x.shape)], bind, contiguous=(0, 1, 2), workspace_bytes=carved_bytes(*parts)
    )


def _table(
    op: Operation,
    specs: Sequence[Spec],
    xp: Any,
    this: CompileFunction,
    *,
    x: int,
    positions: int,
    cos: int,
    sin: int,
) -> Compiled:
    """The kernel whose angles stand in tables by position; the operands' indices are given."""
    source, ids = tensor(op, specs, x), tensor(op, specs, positions)
    cosines, sines = tensor(op, specs, cos), tensor(op, specs, sin)
    if one_dtype(op, (source, cosines, sines), FLOATS) in NARROW:
        return widened(this, op, specs, xp)
    if ids.dtype.kind not in "iu":
        fail(op, f"is {ids.dtype}, not an integer", "position_ids")
    if len(cosines.shape) != 2:
        fail(op, f"of shape {list(cosines.shape)}, expected two axes", "cos_cache")
    angles = cosines.shape[1]
    attribute = int(op.attr("rotary_embedding_dim", 0))
    batch, heads, length, size = _heads(op, source, 2 * angles)
    whole = 2 * angles if op.domain else size
    rotation = rotation_of(
        op, size, cosines, sines, turned=attribute or whole, interleaved=bool(op.attr("interleaved", 0))
    )
    first_only = ids.size == 1 and bool(op.domain)
    if not first_only:
        check_shape(op, ids, (batch, length), "position_ids")
    entries = 1 if first_only else batch
    table: Part = ((entries, length, angles), source.dtype)
    parts: tuple[Part, ...] = (
        rotation.part(batch, heads, length),
        table,
        table,
        ((1, length if first_only else 0), INT64),
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        scratch, own_cos, own_sin, steps = carve(workspace, *parts)
        calls: list[Call] = []
        where = inputs[positions]
        if first_only:
            offsets = xp.arange(length).reshape(1, -1)
            calls.append(partial(xp.add, where.reshape(1, 1), offsets, steps))
            where = steps
        pair = (_views(inputs[x], heads), _views(outputs[0], heads), scratch)
        calls += rotation.looking_up(op, xp, [pair], (inputs[cos], inputs[sin]), where, (own_cos, own_sin))
        return Quiet(in_turn(calls))

    return computed(
        [TensorSpec(source.dtype, source.shape)],
        bind,
        contiguous=(x, positions, cos, sin),
        workspace_bytes=carved_bytes(*parts),
    )


@kernel("MRotaryEmbedding", domain="com.microsoft", versions=(1,))
def multimodal_rotary_embedding(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """input (B, S, N*H) or (B, N, S, H), position_ids (3, B, S): in time, height and width, cos_cache and sin_cache
    (positions, angles) -> input, turned.

    `mrope_section` says how many angles each of the three positions gives: in three stretches (`mrope_layout` 0), or
    in turns of three for as long as height and width have some left, the rest being time's (1).
    """
    source, ids = tensor(op, specs, 0), tensor(op, specs, 1)
    cosines, sines = tensor(op, specs, 2), tensor(op, specs, 3)
    if one_dtype(op, (source, cosines, sines), FLOATS) in NARROW:
        return widened(multimodal_rotary_embedding, op, specs, xp)
    if len(cosines.shape) != 2:
        fail(op, f"of shape {list(cosines.shape)}, expected two axes", "cos_cache")
    angles = cosines.shape[1]
    batch, heads, length, size = _heads(op, source, 0)
    rotation = rotation_of(
        op,
        size,
        cosines,
        sines,
        turned=int(op.attr("rotary_embedding_dim", 0)) or size,
        interleaved=bool(op.attr("interleaved", 0)),
    )
    check_shape(op, ids, (3, batch, length), "position_ids")
    picks = _picks(op, angles)
    table: Part = ((3, batch, length, angles), source.dtype)
    chosen: Part = ((batch, 1, length, angles), source.dtype)
    parts: tuple[Part, ...] = (rotation.part(batch, heads, length), table, table, chosen, chosen)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        scratch, *found, cos, sin = carve(workspace, *parts)
        calls = looked_up(op, xp, (inputs[2], inputs[3]), inputs[1], (found[0], found[1]))
        for every, own in ((found[0], cos), (found[1], sin)):
            for stream, columns in enumerate(picks):
                calls.append(partial(xp.copyto, own[:, 0, :, columns], every[stream][..., columns]))
        to, from_ = _views(outputs[0], heads), _views(inputs[0], heads)
        return Quiet(in_turn(calls + rotation.bind(xp, from_, cos, sin, to, scratch)))

    return computed(
        [TensorSpec(source.dtype, source.shape)],
        bind,
        contiguous=(0, 1, 2, 3),
        workspace_bytes=carved_bytes(*parts),
    )


def _picks(op: Operation, angles: int) -> list[slice]:
    """The columns that time, height and width give, in this order: later ones overwrite earlier ones."""
    sections = tuple(int(n) for n in op.attr("mrope_section", ()))
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != angles:
        fail(op, f"{list(sections)} are not three parts of {angles} angles", "mrope_section")
    if op.attr("mrope_layout", 0):
        return [slice(0, angles), *(slice(i, 3 * sections[i], 3) for i in (1, 2))]
    time, height, _ = sections
    return [slice(0, time), slice(time, time + height), slice(time + height, angles)]
