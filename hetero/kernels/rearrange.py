"""Layout operators that always copy: Concat, Tile, DepthToSpace, ReverseSequence, Trilu, Col2Im…"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.limits import bounded
from hetero.kernels.operands import (
    axes_of,
    axis_of,
    dtype_attribute,
    fail,
    host_reason,
    known_ints,
    known_scalar,
    zero_of,
)
from hetero.program.operation import Operation
from hetero.types import Spec, TensorSpec


@kernel("Concat", versions=(4, 11, 13), strided=True)
def concat(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Join along `axis`; the other extents agree."""
    parts = [tensor(op, specs, i) for i in range(len(specs))]
    if not parts:
        fail(op, "needs an input")
    first = parts[0]
    axis = axis_of(op, op.attr("axis", 1), len(first.shape))
    for i, part in enumerate(parts):
        others = (*part.shape[:axis], *part.shape[axis + 1 :])
        if len(part.shape) != len(first.shape) or others != (*first.shape[:axis], *first.shape[axis + 1 :]):
            fail(
                op, f"shape {list(part.shape)} of input {i} does not join {list(first.shape)} on axis {axis}"
            )
        if part.dtype != first.dtype:
            fail(op, f"input {i} is {part.dtype}, not {first.dtype}")
    shape = (*first.shape[:axis], sum(p.shape[axis] for p in parts), *first.shape[axis + 1 :])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if len(inputs) == 1:
            return partial(xp.copyto, outputs[0], inputs[0])
        return partial(xp.concatenate, tuple(inputs), axis, outputs[0])

    return computed([TensorSpec(first.dtype, shape)], bind)


@kernel("Tile", versions=(6, 13), values=(1,), strided=True)
def tile(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Repeat along every axis."""
    x = tensor(op, specs, 0)
    repeats = known_ints(op, specs, 1, "repeats")
    if repeats is None or len(repeats) != len(x.shape):
        fail(op, f"{0 if repeats is None else len(repeats)} repeats for rank {len(x.shape)}", "repeats")
    if any(r < 0 for r in repeats):
        fail(op, f"{list(repeats)} holds a negative number", "repeats")
    out = bounded(op, x.dtype, [d * r for d, r in zip(x.shape, repeats, strict=True)])
    # Seen as (r0, d0, r1, d1, …) the output is one broadcast of the input seen as (1, d0, 1, d1, …).
    split = tuple(itertools.chain.from_iterable(zip(repeats, x.shape, strict=True)))
    spread = (None, slice(None)) * len(x.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return partial(xp.copyto, outputs[0].reshape(split), inputs[0][spread])

    return computed([out], bind)


def _blocks(op: Operation, x: TensorSpec) -> tuple[int, int, int, int, int, str]:
    if len(x.shape) != 4:
        fail(op, f"needs [N, C, H, W], has shape {list(x.shape)}", "input")
    size, mode = op.attr("blocksize", 0), op.attr("mode", "DCR")
    if size < 1:
        fail(op, f"{size} is no block size", "blocksize")
    if mode not in ("DCR", "CRD"):
        fail(op, f"{mode!r} is neither DCR nor CRD", "mode")
    n, c, h, w = x.shape
    return n, c, h, w, size, mode


@kernel("DepthToSpace", versions=(1, 11, 13, 28), strided=True)
def depth_to_space(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Move depth into blocks of height and width."""
    x = tensor(op, specs, 0)
    n, c, h, w, b, mode = _blocks(op, x)
    if c % (b * b):
        fail(op, f"depth {c} is no multiple of {b * b}", "input")
    depth = c // (b * b)
    seen = (n, b, b, depth, h, w) if mode == "DCR" else (n, depth, b, b, h, w)
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        target = outputs[0].reshape(n, depth, h, b, w, b)
        return partial(xp.copyto, target, inputs[0].reshape(seen).transpose(order))

    return computed([TensorSpec(x.dtype, (n, depth, h * b, w * b))], bind)


@kernel("SpaceToDepth", versions=(1, 13, 28), strided=True)
def space_to_depth(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Move blocks of height and width into depth; `mode` CRD since 28."""
    x = tensor(op, specs, 0)
    n, c, h, w, b, mode = _blocks(op, x)
    if h % b or w % b:
        fail(op, f"extents {h} × {w} are no multiples of {b}", "input")
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    seen = (n, c, h // b, b, w // b, b)
    target = tuple(seen[i] for i in order)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return partial(xp.copyto, outputs[0].reshape(target), inputs[0].reshape(seen).transpose(order))

    return computed([TensorSpec(x.dtype, (n, c * b * b, h // b, w // b))], bind)


@kernel("ReverseSequence", versions=(10, 28), strided=True)
def reverse_sequence(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Reverse the first sequence_lens[b] steps of every batch entry b."""
    x, lens = tensor(op, specs, 0), tensor(op, specs, 1)
    time, batch = op.attr("time_axis", 0), op.attr("batch_axis", 1)
    if {time, batch} != {0, 1} or len(x.shape) < 2:
        fail(op, f"time_axis {time} and batch_axis {batch} must be 0 and 1, of rank 2 or more")
    steps, n = x.shape[time], x.shape[batch]
    if lens.shape != (n,):
        fail(op, f"has shape {list(lens.shape)}, the batch has {n} entries", "sequence_lens")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source = inputs[0] if batch == 0 else inputs[0].swapaxes(0, 1)
        target = outputs[0] if batch == 0 else outputs[0].swapaxes(0, 1)
        lengths = inputs[1]
        at, rows = xp.arange(steps), xp.arange(n)[:, None]

        def call() -> None:
            if xp is np and n and not 0 <= lengths.min() <= lengths.max() <= steps:
                fail(op, f"lengths go beyond [0, {steps}]", "sequence_lens")
            column = lengths[:, None]
            target[...] = source[rows, xp.where(at < column, column - 1 - at, at)]

        return call

    return computed([x], bind, capture=host_reason(xp, "allocates an index array"))


@kernel("Trilu", versions=(14,), values=(1,), strided=True)
def trilu(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Keep the upper (or lower) triangle of the last two axes, from diagonal k on."""
    x = tensor(op, specs, 0)
    if len(x.shape) < 2:
        fail(op, f"needs rank 2 or more, has shape {list(x.shape)}", "input")
    k = known_scalar(op, specs, 1, "k") or 0
    rows, columns = x.shape[-2:]
    k = max(
        -rows - 1, min(k, columns + 1)
    )  # Beyond these nothing changes, and an int64 extreme would overflow.
    upper = bool(op.attr("upper", 1))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, target = inputs[0], outputs[0]
        distance = xp.arange(columns)[None, :] - xp.arange(rows)[:, None]
        dropped = distance < k if upper else distance > k
        zero = zero_of(x.dtype)

        def call() -> None:
            xp.copyto(target, source)
            xp.copyto(target, zero, where=dropped)

        return call

    return computed([x], bind)


@kernel("EyeLike", versions=(9, 22), strided=True)
def eye_like(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Ones on diagonal k of a matrix of the input's shape."""
    x = tensor(op, specs, 0)
    if len(x.shape) != 2:
        fail(op, f"needs a matrix, has shape {list(x.shape)}", "input")
    dtype = dtype_attribute(op, "dtype") or x.dtype
    if dtype.kind == "O":
        raise UnsupportedError("has no identity of strings", op=op.id, node=op.name)
    rows, columns = x.shape
    k = max(-rows, min(op.attr("k", 0), columns))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        out = outputs[0]
        diagonal = out[max(0, -k) :, max(0, k) :]
        n = min(diagonal.shape)
        at = xp.arange(n)
        one = xp.ones(n, dtype)

        def call() -> None:
            out.fill(0)
            diagonal[at, at] = one

        return call

    return computed([bounded(op, dtype, x.shape)], bind)


@kernel("CenterCropPad", versions=(18,), values=(1,), strided=True)
def center_crop_pad(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Crop or zero-pad the named axes around their centres to the given extents."""
    x = tensor(op, specs, 0)
    rank = len(x.shape)
    wanted = known_ints(op, specs, 1, "shape")
    axes = axes_of(op, op.attr("axes", range(rank)), rank)
    if wanted is None or len(wanted) != len(axes) or any(d < 0 for d in wanted):
        fail(op, f"{wanted} are no extents for {len(axes)} axes", "shape")
    shape, taken, placed = list(x.shape), [slice(None)] * rank, [slice(None)] * rank
    for axis, extent in zip(axes, wanted, strict=True):
        have, shape[axis] = x.shape[axis], extent
        if have > extent:
            start = (have - extent) // 2
            taken[axis] = slice(start, start + extent)
        else:
            start = (extent - have) // 2
            placed[axis] = slice(start, start + have)
    out = bounded(op, x.dtype, shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        target = outputs[0]
        place = partial(xp.copyto, target[tuple(placed)], inputs[0][tuple(taken)])
        if all(s == slice(None) for s in placed):
            return place
        fill = partial(target.fill, zero_of(x.dtype))

        def call() -> None:
            fill()
            place()

        return call

    return computed([out], bind)


@kernel("Col2Im", versions=(18,), values=(1, 2))
def col2im(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Sum column blocks back into an image: the adjoint of taking blocks. Any number of spatial axes."""
    x = tensor(op, specs, 0)
    image, block = known_ints(op, specs, 1, "image_shape"), known_ints(op, specs, 2, "block_shape")
    if image is None or block is None or len(image) != len(block) or len(x.shape) != 3:
        fail(op, f"needs [N, C·block, L] and shapes of one rank, has {list(x.shape)}, {image} and {block}")
    rank = len(image)
    strides, dilations = op.attr("strides", (1,) * rank), op.attr("dilations", (1,) * rank)
    pads = op.attr("pads", (0,) * (2 * rank))
    if not len(strides) == len(dilations) == rank == len(pads) // 2 or min(*strides, *dilations, *block) < 1:
        fail(op, f"strides {strides}, dilations {dilations} or pads {pads} do not suit {rank} spatial axes")
    counts = [
        (image[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    ]
    n, rows, columns = x.shape
    taps = math.prod(block)
    if rows % taps or min(counts) < 0 or columns != math.prod(counts):
        fail(op, f"{list(x.shape)} are no blocks of {list(block)} over an image of {list(image)}", "input")
    out = bounded(op, x.dtype, (n, rows // taps, *image))

    def overlap(axis: int, tap: int) -> tuple[slice, slice]:
        """Where blocks lie whose `tap` falls inside the image, and the pixels that these taps are."""
        step, offset = strides[axis], tap * dilations[axis] - pads[axis]
        low = max(0, -(offset // step))
        high = max(low, min(counts[axis], (image[axis] - 1 - offset) // step + 1))
        first = low * step + offset
        return slice(low, high), slice(first, first + (high - low) * step, step)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        target = outputs[0]
        source = inputs[0].reshape((n, rows // taps, *block, *counts))
        adds = []
        for at in itertools.product(*map(range, block)):
            pairs = [overlap(axis, tap) for axis, tap in enumerate(at)]
            if any(taken.start == taken.stop for taken, _ in pairs):
                continue
            pixels = target[(..., *(pixel for _, pixel in pairs))]
            part = source[(slice(None), slice(None), *at, *(taken for taken, _ in pairs))]
            adds.append(partial(xp.add, pixels, part, out=pixels))

        def call() -> None:
            target.fill(0)
            for add in adds:
                add()

        return call

    return computed([out], bind, contiguous={0})
