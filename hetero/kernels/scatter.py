"""ScatterElements, ScatterND, TensorScatter: a copy of the data (or the data itself) written at indices."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.gather import FlatElements, FlatRows, same_shape
from hetero.kernels.operands import axis_of, fail, host_reason
from hetero.kernels.workspace import carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

FEW_ENTRIES = 8
"""Entries of a batch up to which a copy for each is faster than one by arrays of indices."""
REDUCTIONS = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def _writer(op: Operation, x: TensorSpec, xp: Any) -> Callable[[Array, Array, Array], None]:
    """What writes (target, positions, updates); without a reduction the last update of a place stands.

    Raises: UnsupportedError for what this version, dtype or array module does not fold.
    """
    name = op.attr("reduction", "none")
    if name == "none":
        return operator.setitem
    allowed = {16: ("add", "mul"), 18: ("add", "mul", "max", "min")}.get(op.version, ())
    if name not in allowed:
        fail(op, f"{name!r} is no reduction of version {op.version}", "reduction")
    if x.dtype.kind == "O":
        raise UnsupportedError("cannot reduce strings", op=op.id, node=op.name, operand="reduction")
    if name == "mul" and xp is not np:
        raise UnsupportedError("multiplies into place on the host alone", op=op.id, node=op.name)
    fold: Callable[[Array, Array, Array], None] = getattr(xp, REDUCTIONS[name]).at
    if xp is not np or x.dtype.kind in "biu":
        return fold

    def quiet(target: Array, positions: Array, updates: Array) -> None:
        with np.errstate(all="ignore"):
            fold(target, positions, updates)

    return quiet


def _copied(data: Array, out: Array, xp: Any) -> Call | None:
    """The copy that starts the output, or None where it is the input's own memory."""
    return None if xp.may_share_memory(data, out) else partial(xp.copyto, out, data)


def _scattered(copy: Call | None, flatten: Call, write: Callable[[], object], nothing_to_write: bool) -> Call:
    """Check the indices first, so that an error leaves memory shared with an input as it was."""

    def call() -> None:
        flatten()
        if copy is not None:
            copy()
        if not nothing_to_write:
            write()

    return call


@kernel("ScatterElements", versions=(11, 13, 16, 18), strided=True)
@kernel("Scatter", versions=(9, 11), strided=True)
def scatter_elements(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The data, with `updates` written at `indices` along `axis`; of two at one place the last stands."""
    x, indices = tensor(op, specs, 0), tensor(op, specs, 1)
    axis = axis_of(op, op.attr("axis", 0), len(x.shape))
    same_shape(op, specs, 2, indices.shape, "updates")
    flat = FlatElements(op, x, indices, axis)
    writer = _writer(op, x, xp)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        (work,) = carve(workspace, *flat.parts)
        target, positions, updates = outputs[0].reshape(-1), work.reshape(-1), inputs[2].reshape(-1)
        write = partial(writer, target, positions, updates)
        copy = _copied(inputs[0], outputs[0], xp)
        if indices.size == 0:
            return copy or bool
        return _scattered(copy, flat.bind(inputs[1], work, xp), write, nothing_to_write=False)

    return computed(
        [TensorSpec(x.dtype, x.shape)],
        bind,
        contiguous={2},
        overwrites=[(0, 0)],
        workspace_bytes=carved_bytes(*flat.parts),
    )


@kernel("ScatterND", versions=(11, 13, 16, 18), strided=True)
def scatter_nd(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The data, with slices `updates` written at tuples of indices; of two at one place the last stands."""
    x, indices = tensor(op, specs, 0), tensor(op, specs, 1)
    rows = FlatRows(op, x, indices, 0)
    same_shape(op, specs, 2, (*indices.shape[:-1], *rows.rest), "updates")
    writer = _writer(op, x, xp)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        work, scratch = carve(workspace, *rows.parts)
        copy = _copied(inputs[0], outputs[0], xp)
        if work.size == 0:
            return copy or bool
        n, width = rows.matrix
        target = outputs[0].reshape(n) if width == 1 else outputs[0].reshape(n, width)
        updates = inputs[2].reshape(work.size) if width == 1 else inputs[2].reshape(work.size, width)
        positions = work.reshape(-1)
        write = partial(writer, target, positions, updates)
        return _scattered(copy, rows.bind(inputs[1], work, scratch, xp), write, nothing_to_write=width == 0)

    return computed(
        [TensorSpec(x.dtype, x.shape)],
        bind,
        contiguous={2},
        overwrites=[(0, 0)],
        workspace_bytes=carved_bytes(*rows.parts),
    )


def _place_few(
    op: Operation,
    data: Array,
    out: Array,
    update: Array,
    starts: Array,
    lead: tuple[slice, ...],
    length: int,
    copy: Call | None,
) -> None:
    """TensorScatter of a few entries: a copy for each."""
    places, capacity = starts.tolist(), data.shape[len(lead) + 1]
    for start in places:
        if not 0 <= start <= capacity - length:
            fail(op, f"{length} steps from {places} pass the end {capacity}", "write_indices")
    if copy is not None:
        copy()
    for entry, rows, start in zip(out, update, places, strict=True):
        entry[(*lead, slice(start, start + length))] = rows


@kernel("TensorScatter", versions=(24,), strided=True)
def tensor_scatter(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A cache with `update` written along `axis` from write_indices[b] on, for every batch entry b.

    In mode circular positions go on from the start after the end; in mode linear that is an error.
    """
    x, update = tensor(op, specs, 0), tensor(op, specs, 1)
    rank = len(x.shape)
    axis = axis_of(op, op.attr("axis", -2), rank)
    if axis == 0:
        fail(op, "axis 0 is the batch", "axis")
    mode = op.attr("mode", "linear")
    if mode not in ("linear", "circular"):
        fail(op, f"{mode!r} is neither linear nor circular", "mode")
    batch, capacity = x.shape[0], x.shape[axis]
    if len(update.shape) != rank or update.shape[axis] > capacity:
        fail(op, f"shape {list(update.shape)} does not fit into {list(x.shape)}", "update")
    length = update.shape[axis]
    same_shape(op, specs, 1, (*x.shape[:axis], length, *x.shape[axis + 1 :]), "update")
    where = given(specs, 2)
    if where is not None and where.shape != (batch,):
        fail(op, f"has shape {list(where.shape)}, the batch has {batch} entries", "write_indices")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        copy = _copied(inputs[0], outputs[0], xp)
        if update.size == 0:
            return copy or bool
        if where is None:
            front = outputs[0][(*(slice(None),) * axis, slice(0, length))]
            write = partial(xp.copyto, front, inputs[1])
            return write if copy is None else _scattered(copy, bool, write, nothing_to_write=False)
        starts = inputs[2]
        if xp is np and mode == "linear" and batch <= FEW_ENTRIES:
            lead = (slice(None),) * (axis - 1)
            return partial(_place_few, op, inputs[0], outputs[0], inputs[1], starts, lead, length, copy)
        target, source = outputs[0].swapaxes(1, axis), inputs[1].swapaxes(1, axis)
        entries, steps = xp.arange(batch)[:, None], xp.arange(length)

        def check() -> None:
            if xp is np and (int(starts.min()) < 0 or int(starts.max()) + length > capacity):
                fail(op, f"{length} steps from {starts.tolist()} pass the end {capacity}", "write_indices")

        def place() -> None:
            target[entries, (starts[:, None] + steps) % capacity] = source

        return _scattered(copy, check if mode == "linear" else bool, place, nothing_to_write=False)

    capture = host_reason(xp, "allocates an index array") if where is not None else None
    return computed(
        [TensorSpec(x.dtype, x.shape)], bind, overwrites=[(0, 0)], updates=[(0, 0)], capture=capture
    )
