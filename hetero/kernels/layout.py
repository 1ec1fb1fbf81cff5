"""Layout operators that are views wherever strides allow: Reshape, Transpose, Slice, Split, Expand, kin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import GuardError
from hetero.kernels.base import Call, Compiled, kernel, tensor, viewed
from hetero.kernels.limits import bounded
from hetero.kernels.operands import axes_of, axis_of, fail, known_ints
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import Array, Spec, TensorSpec


def keeps_strides(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> bool:
    """Whether an array of `shape` and `strides` (bytes) can be seen as `target` without a copy.

    `target` holds as many elements. The same rule as NumPy's reshape: runs of axes that fuse into one
    stride are regrouped.
    """
    if math.prod(shape) == 0:
        return True
    old = [(d, s) for d, s in zip(shape, strides, strict=True) if d != 1]
    new = [d for d in target if d != 1]
    i = j = 0
    while i < len(old) and j < len(new):
        i_end, j_end = i + 1, j + 1
        n_old, n_new = old[i][0], new[j]
        while n_old != n_new:
            if n_old < n_new:
                n_old *= old[i_end][0]
                i_end += 1
            else:
                n_new *= new[j_end]
                j_end += 1
        if any(old[k][1] != old[k + 1][1] * old[k + 1][0] for k in range(i, i_end - 1)):
            return False
        i, j = i_end, j_end
    return True


def _reshaped(x: TensorSpec, shape: tuple[int, ...], xp: Any) -> Compiled:
    def view(inputs: Sequence[Any]) -> tuple[Array, ...] | None:
        array = inputs[0]
        if array.flags.c_contiguous or keeps_strides(array.shape, array.strides, shape):
            return (array.reshape(shape),)
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return partial(xp.copyto, outputs[0].reshape(x.shape), inputs[0])

    return viewed([TensorSpec(x.dtype, shape)], view, bind)


def target_shape(
    op: Operation, shape: Sequence[int], wanted: Sequence[int], allowzero: bool
) -> tuple[int, ...]:
    """The shape that Reshape gives an input of `shape`.

    0 copies an extent (unless `allowzero`), -1 takes what the others leave.

    Raises: KernelError for a malformed request, GuardError where the element counts cannot agree.
    """
    size = math.prod(shape)
    target = list(wanted)
    for i, extent in enumerate(wanted):
        if extent < -1:
            fail(op, f"extent {extent} of {list(wanted)} is negative", "shape")
        if extent == 0 and not allowzero:
            if i >= len(shape):
                fail(op, f"{list(wanted)} copies axis {i} of an input of rank {len(shape)}", "shape")
            target[i] = shape[i]
    if wanted.count(-1) > 1:
        fail(op, f"{list(wanted)} leaves more than one extent open", "shape")
    if -1 in wanted:
        if allowzero and 0 in wanted:
            fail(op, f"{list(wanted)} holds both 0 and -1 with allowzero", "shape")
        at = wanted.index(-1)
        rest = math.prod(d for i, d in enumerate(target) if i != at)
        if rest == 0 or size % rest:
            raise GuardError(
                f"cannot reshape {list(shape)} ({size} elements) to {list(wanted)}:"
                f" the other extents hold {rest} elements",
                op=op.id,
                node=op.name,
                operand="shape",
            )
        target[at] = size // rest
    elif (elements := math.prod(target)) != size:
        raise GuardError(
            f"cannot reshape {list(shape)} ({size} elements) to {list(wanted)} ({elements} elements)",
            op=op.id,
            node=op.name,
            operand="shape",
        )
    return tuple(target)


@kernel(
    "Reshape", versions=(5, 13, 14, 19, 21, 23, 24, 25), dispatch=Dispatch.VIEW, values=(1,), strided=True
)
def reshape(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Reshape with the shape as an input; `allowzero` since 14."""
    x = tensor(op, specs, 0)
    wanted = known_ints(op, specs, 1, "shape")
    if wanted is None:
        fail(op, "is missing", "shape")
    return _reshaped(x, target_shape(op, x.shape, wanted, bool(op.attr("allowzero", 0))), xp)


def _axes(op: Operation, specs: Sequence[Spec]) -> tuple[int, ...] | None:
    """The `axes` of Squeeze and Unsqueeze: an attribute before version 13, an input since."""
    if op.version < 13:
        axes = op.attr("axes")
        return None if axes is None else tuple(axes)
    return known_ints(op, specs, 1, "axes")


@kernel("Squeeze", versions=(1, 11, 13, 21, 23, 24, 25), dispatch=Dispatch.VIEW, values=(1,), strided=True)
def squeeze(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Drop axes of extent 1: the named ones, or all."""
    x = tensor(op, specs, 0)
    axes = _axes(op, specs)
    if axes is None:
        dropped = {i for i, d in enumerate(x.shape) if d == 1}
    else:
        dropped = set(axes_of(op, axes, len(x.shape)))
        for axis in sorted(dropped):
            if x.shape[axis] != 1:
                fail(op, f"axis {axis} of {list(x.shape)} has extent {x.shape[axis]}, not 1", "axes")
    return _reshaped(x, tuple(d for i, d in enumerate(x.shape) if i not in dropped), xp)


@kernel("Unsqueeze", versions=(1, 11, 13, 21, 23, 24, 25), dispatch=Dispatch.VIEW, values=(1,), strided=True)
def unsqueeze(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Insert axes of extent 1 at `axes`, counted in the output."""
    x = tensor(op, specs, 0)
    axes = _axes(op, specs)
    if axes is None:
        fail(op, "is missing", "axes")
    rank = len(x.shape) + len(axes)
    inserted = set(axes_of(op, axes, rank))
    selection = (*(None if i in inserted else slice(None) for i in range(rank)), ...)

    def shape(extents: Sequence[int]) -> tuple[int, ...]:
        rest = iter(extents)
        return tuple([1 if i in inserted else next(rest) for i in range(rank)])

    def stretch(others: Sequence[Spec]) -> tuple[TensorSpec, int] | None:
        other = tensor(op, others, 0)
        return (TensorSpec(x.dtype, shape(other.shape)), 0) if _axes(op, others) == axes else None

    def view(inputs: Sequence[Any]) -> tuple[Array, ...]:
        return (inputs[0][selection],)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return partial(xp.copyto, outputs[0], inputs[0][selection])

    return viewed([TensorSpec(x.dtype, shape(x.shape))], view, bind, stretch=stretch)


@kernel("Flatten", versions=(1, 9, 11, 13, 21, 23, 24, 25), dispatch=Dispatch.VIEW, strided=True)
def flatten(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A matrix: the axes before `axis` (in [-rank, rank]) as rows, the rest as columns."""
    x = tensor(op, specs, 0)
    rank = len(x.shape)
    axis = op.attr("axis", 1)
    if not -rank <= axis <= rank:
        fail(op, f"axis {axis} is out of range for rank {rank}", "axis")
    at = axis + rank if axis < 0 else axis
    return _reshaped(x, (math.prod(x.shape[:at]), math.prod(x.shape[at:])), xp)


@kernel("Transpose", versions=(1, 13, 21, 23, 24, 25), dispatch=Dispatch.VIEW, strided=True)
def transpose(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Permute the axes (reverse them where `perm` is not given)."""
    x = tensor(op, specs, 0)
    rank = len(x.shape)
    perm = tuple(op.attr("perm", range(rank - 1, -1, -1)))
    if sorted(perm) != list(range(rank)):
        fail(op, f"{list(perm)} is no permutation of {rank} axes", "perm")

    def view(inputs: Sequence[Any]) -> tuple[Array, ...]:
        return (inputs[0].transpose(perm),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return partial(xp.copyto, outputs[0], inputs[0].transpose(perm))

    return viewed([TensorSpec(x.dtype, tuple(x.shape[p] for p in perm))], view, bind)


def _broadcast_to(array: Array, shape: tuple[int, ...]) -> Array:
    """numpy.broadcast_to for plain arrays and a shape that fits, in half its time."""
    iterator = np.nditer(
        (array,), ["multi_index", "refs_ok", "zerosize_ok"], [["readonly"]], itershape=shape, order="C"
    )
    return iterator.itviews[0]


@kernel("Expand", versions=(8, 13), dispatch=Dispatch.VIEW, values=(1,), strided=True)
def expand(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Broadcast to the common shape of the input and `shape`. The view repeats elements: read it only."""
    x = tensor(op, specs, 0)
    wanted = known_ints(op, specs, 1, "shape")
    if wanted is None:
        fail(op, "is missing", "shape")
    rank = max(len(x.shape), len(wanted))
    ours = (1,) * (rank - len(x.shape)) + x.shape
    theirs = (1,) * (rank - len(wanted)) + wanted
    shape = []
    for a, b in zip(ours, theirs, strict=True):
        if b < 0 or (a != b and a != 1 and b != 1):
            fail(op, f"cannot broadcast {list(x.shape)} with {list(wanted)}", "shape")
        shape.append(b if a == 1 else a)
    out = bounded(op, x.dtype, shape)
    broadcast_to = _broadcast_to if xp is np else xp.broadcast_to

    def view(inputs: Sequence[Any]) -> tuple[Array, ...]:
        return (broadcast_to(inputs[0], out.shape),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return partial(xp.copyto, outputs[0], inputs[0])

    return viewed([out], view, bind)


def selected(
    op: Operation,
    x: TensorSpec,
    selections: Sequence[tuple[slice, ...]],
    shapes: Sequence[tuple[int, ...]],
    xp: Any,
) -> Compiled:
    """One output per selection of the input (None where it is omitted): views, or copies."""
    specs = [
        TensorSpec(x.dtype, shape) if present else None
        for shape, present in zip(shapes, op.present_outputs, strict=True)
    ]

    def view(inputs: Sequence[Any]) -> tuple[Array, ...]:
        return tuple(
            None if spec is None else inputs[0][(*selection, ...)]
            for spec, selection in zip(specs, selections, strict=True)
        )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        copies = [
            partial(xp.copyto, out, inputs[0][(*selection, ...)])
            for out, selection in zip(outputs, selections, strict=True)
            if out is not None
        ]
        if len(copies) == 1:
            return copies[0]

        def call() -> None:
            for copy in copies:
                copy()

        return call

    return viewed(specs, view, bind)


def clamped_slice(start: int, end: int, step: int, extent: int) -> tuple[slice, int]:
    """The effective slice along an axis, and how many elements it takes; clamped as the text of Slice says.

    Negative starts and ends count from the back once; then for positive steps both go to [0, extent]; for
    negative ones start goes to [0, extent - 1] and end to [-1, extent - 1]. `step` is not 0.
    """
    start = start + extent if start < 0 else start
    end = end + extent if end < 0 else end
    if step > 0:
        start, end = min(max(start, 0), extent), min(max(end, 0), extent)
        count = max(0, -(-(end - start) // step))
    else:
        start, end = min(max(start, 0), extent - 1), min(max(end, -1), extent - 1)
        count = max(0, -((end - start) // -step))
    if count == 0:
        return slice(0, 0), 0
    return slice(start, None if end < 0 else end, step), count


@kernel("Slice", versions=(1, 10, 11, 13), dispatch=Dispatch.VIEW, values=(1, 2, 3, 4), strided=True)
def slice_(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Slice with attributes (version 1: no steps) or inputs (since 10)."""
    x = tensor(op, specs, 0)
    axes: Sequence[int] | None
    steps: Sequence[int] | None
    if op.version < 10:
        starts, ends, axes, steps = op.attr("starts"), op.attr("ends"), op.attr("axes"), None
    else:
        starts, ends = known_ints(op, specs, 1, "starts"), known_ints(op, specs, 2, "ends")
        axes, steps = known_ints(op, specs, 3, "axes"), known_ints(op, specs, 4, "steps")
    if starts is None or ends is None:
        fail(op, "starts and ends must be given", "starts" if starts is None else "ends")
    axes = range(len(starts)) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        fail(
            op,
            f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes, {len(steps)} steps do not agree",
        )
    selection, shape = [slice(None)] * len(x.shape), list(x.shape)
    for axis, start, end, step in zip(axes_of(op, axes, len(x.shape)), starts, ends, steps, strict=True):
        if step == 0:
            fail(op, f"the step along axis {axis} is 0", "steps")
        selection[axis], shape[axis] = clamped_slice(start, end, step, x.shape[axis])
    return selected(op, x, [tuple(selection)], [tuple(shape)], xp)


@kernel("Split", versions=(2, 11, 13, 18), dispatch=Dispatch.VIEW, values=(1,), strided=True)
def split(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Split along `axis`: sizes as an attribute (before 13) or input; equal parts otherwise.

    Before 18 equal parts must divide the extent; since 18 the last parts may be smaller.
    """
    x = tensor(op, specs, 0)
    axis = axis_of(op, op.attr("axis", 0), len(x.shape))
    extent, n = x.shape[axis], len(op.present_outputs)
    sizes = op.attr("split") if op.version < 13 else known_ints(op, specs, 1, "split")
    if sizes is not None:
        if "num_outputs" in op.attributes:
            fail(op, "both split and num_outputs are given", "num_outputs")
        if len(sizes) != n:
            fail(op, f"{len(sizes)} sizes for {n} outputs", "split")
        if any(size < 0 for size in sizes) or sum(sizes) != extent:
            fail(op, f"sizes {list(sizes)} do not sum to extent {extent} of axis {axis}", "split")
    elif op.version < 18:
        if extent % n:
            fail(op, f"extent {extent} of axis {axis} does not split into {n} equal parts", "split")
        sizes = (extent // n,) * n
    else:
        wanted = op.attr("num_outputs", n)
        if wanted != n:
            fail(op, f"num_outputs is {wanted}, but the node has {n} outputs", "num_outputs")
        part = -(-extent // n)
        sizes = tuple(min(part, max(0, extent - i * part)) for i in range(n))
    before = (slice(None),) * axis
    selections, shapes, at = [], [], 0
    for size in sizes:
        selections.append((*before, slice(at, at + size)))
        shapes.append((*x.shape[:axis], size, *x.shape[axis + 1 :]))
        at += size
    return selected(op, x, selections, shapes, xp)
