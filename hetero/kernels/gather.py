"""Gather, GatherElements, GatherND: reading at indices, checked once per call by one reduction.

The checks read indices, so they run on NumPy alone; on other array modules an index beyond its axis wraps around.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor, viewed
from hetero.kernels.operands import axis_of, fail
from hetero.kernels.workspace import carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, HostArray, Spec, TensorSpec

Check = Callable[[], bool]
"""Whether any index is negative. Raises: KernelError where one is out of range."""


def _out_of_range(op: Operation, index: Any, axis: int, extent: int) -> None:
    fail(op, f"index {int(index)} is out of range for axis {axis} of extent {extent}", "indices")


def range_check(op: Operation, indices: HostArray, axis: int, extent: int) -> Check:
    """The check that all `indices` lie in [-extent, extent). The array is read anew at every call.

    A negative index seen as unsigned is huge, so one maximum settles the common case.
    """
    if indices.size == 0:
        return bool
    if indices.size == 1:
        item = indices.item

        def check_one() -> bool:
            index = item()
            if not -extent <= index < extent:
                _out_of_range(op, index, axis, extent)
            return bool(index < 0)

        return check_one
    largest = partial(np.maximum.reduce, indices.view(f"u{indices.dtype.itemsize}"), None)

    def check() -> bool:
        if largest() < extent:
            return False
        low, high = int(indices.min()), int(indices.max())
        if low < -extent or high >= extent:
            _out_of_range(op, low if low < -extent else high, axis, extent)
        return True

    return check


def taken(data: Array, indices: Array, axis: int, out: Array, xp: Any) -> Call:
    """A call that copies data[…, indices, …] into `out`; indices wrap around.

    `ndarray.take` with out= and a mode other than "raise" writes without a buffer. It would copy the whole of a
    strided `data` first, so that one is indexed.
    """
    if xp is not np:
        return partial(data.take, indices, axis, out)
    if data.flags.c_contiguous:
        return partial(data.take, indices, axis, out, "wrap")
    selection = (*(slice(None),) * axis, indices)

    def call() -> None:
        out[...] = data[selection]

    return call


def checked(check: Check, call: Call) -> Call:
    """`call`, after `check`."""

    def both() -> None:
        check()
        call()

    return both


def _gather_one(x: TensorSpec, axis: int, index: int, rank: int, out: TensorSpec, xp: Any) -> Compiled:
    """Gather at one known index: a view."""
    if rank == 0:
        selection: tuple[Any, ...] = (*(slice(None),) * axis, index, ...)
    else:
        selection = (*(slice(None),) * axis, slice(index, index + 1), *(None,) * (rank - 1))

    def view(inputs: Sequence[Any]) -> tuple[Array, ...]:
        return (inputs[0][selection],)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return partial(xp.copyto, outputs[0], inputs[0][selection])

    return viewed([out], view, bind)


@kernel("Gather", versions=(1, 11, 13), strided=True, views=True)
def gather(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Slices of data along `axis` at `indices`."""
    x, indices = tensor(op, specs, 0), tensor(op, specs, 1)
    axis = axis_of(op, op.attr("axis", 0), len(x.shape))
    extent = x.shape[axis]
    out = TensorSpec(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
    if indices.value is not None:
        range_check(op, indices.value, axis, extent)()
        if indices.size == 1:
            index = int(indices.value.reshape(-1)[0])
            index += extent if index < 0 else 0
            return _gather_one(x, axis, index, len(indices.shape), out, xp)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if indices.size == 0:
            return bool
        take = taken(inputs[0], inputs[1], axis, outputs[0], xp)
        if indices.value is not None or xp is not np:
            return take
        return checked(range_check(op, inputs[1], axis, extent), take)

    return computed([out], bind)


class FlatElements:
    """Where elements [i…, indices[i…, j], …] of an array lie in its flat form, for GatherElements and its kin.

    `work` is an int64 array of the indices' shape; `flatten()` fills it from the indices as they are now.
    """

    def __init__(self, op: Operation, data: TensorSpec, indices: TensorSpec, axis: int) -> None:
        if len(data.shape) != len(indices.shape):
            fail(op, f"rank {len(indices.shape)} is not the data's rank {len(data.shape)}", "indices")
        for i, (have, want) in enumerate(zip(data.shape, indices.shape, strict=True)):
            if i != axis and want > have:
                fail(op, f"extent {want} of axis {i} is beyond the data's {have}", "indices")
        self.op, self.axis, self.extent, self.shape = op, axis, data.shape[axis], indices.shape
        strides = [math.prod(data.shape[i + 1 :]) for i in range(len(data.shape))]
        self.stride = strides[axis]
        self.others = [(i, strides[i]) for i in range(len(strides)) if i != axis and indices.shape[i] > 1]
        self.parts = ((indices.shape, np.int64),)

    def bind(self, indices: Array, work: Array, xp: Any) -> Call:
        """A call that checks the indices and leaves their flat positions in `work`."""
        rank = len(self.shape)
        base = xp.zeros((1,) * rank, xp.int64)
        for i, stride in self.others:
            steps = xp.arange(self.shape[i], dtype=xp.int64) * stride
            base = base + steps.reshape((-1,) + (1,) * (rank - 1 - i))
        extent, stride = self.extent, self.stride
        check = range_check(self.op, indices, self.axis, extent) if xp is np else None

        def flatten() -> None:
            if check is None or check():
                xp.remainder(indices, extent, out=work)
                xp.multiply(work, stride, out=work)
            else:
                xp.multiply(indices, stride, out=work)
            xp.add(work, base, out=work)

        return flatten


@kernel("GatherElements", versions=(11, 13), strided=True)
def gather_elements(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Elements of data at `indices` along `axis`, at their own place along the others."""
    x, indices = tensor(op, specs, 0), tensor(op, specs, 1)
    axis = axis_of(op, op.attr("axis", 0), len(x.shape))
    flat = FlatElements(op, x, indices, axis)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if indices.size == 0:
            return bool
        (work,) = carve(workspace, *flat.parts)
        flatten = flat.bind(inputs[1], work, xp)
        take = taken(inputs[0].reshape(-1), work, 0, outputs[0], xp)

        def call() -> None:
            flatten()
            take()

        return call

    return computed(
        [TensorSpec(x.dtype, indices.shape)],
        bind,
        contiguous={0},
        workspace_bytes=carved_bytes(*flat.parts),
    )


class FlatRows:
    """Where index tuples point among the rows of an array seen as [batch · rows, elements], for GatherND and kin.

    The first `batch` axes are shared; a tuple of k indices names one of prod(shape[batch : batch + k]) rows.
    """

    def __init__(self, op: Operation, data: TensorSpec, indices: TensorSpec, batch: int) -> None:
        if not indices.shape:
            fail(op, "needs one axis or more", "indices")
        k = indices.shape[-1]
        if batch + k > len(data.shape):
            fail(op, f"tuples of {k} are too long for data of rank {len(data.shape)}", "indices")
        if data.shape[:batch] != indices.shape[:batch]:
            fail(
                op, f"batch axes {list(indices.shape[:batch])} are not {list(data.shape[:batch])}", "indices"
            )
        self.op, self.batch, self.shape = op, batch, indices.shape
        self.extents = data.shape[batch : batch + k]
        self.rest = data.shape[batch + k :]
        self.rows = math.prod(self.extents)
        self.matrix = (math.prod(data.shape[:batch]) * self.rows, math.prod(self.rest))
        """The shape in which the data's rows are addressed."""
        self.parts = ((indices.shape[:-1], np.int64), (indices.shape[:-1], np.int64))

    def bind(self, indices: Array, work: Array, scratch: Array, xp: Any) -> Call:
        """A call that checks the indices and leaves the rows they name in `work`."""
        columns = [indices[..., j] for j in range(len(self.extents))]
        checks = (
            [
                range_check(self.op, column, self.batch + j, extent)
                for j, (column, extent) in enumerate(zip(columns, self.extents, strict=True))
            ]
            if xp is np
            else None
        )
        offset = None
        if self.batch:
            shape = (*self.shape[: self.batch], *(1,) * (len(self.shape) - 1 - self.batch))
            offset = (xp.arange(math.prod(self.shape[: self.batch])) * self.rows).reshape(shape)

        def flatten() -> None:
            wraps = None if checks is None else [check() for check in checks]
            work.fill(0)
            for j, (column, extent) in enumerate(zip(columns, self.extents, strict=True)):
                if j:
                    xp.multiply(work, extent, out=work)
                if wraps is None or wraps[j]:
                    xp.remainder(column, extent, out=scratch)
                    xp.add(work, scratch, out=work)
                else:
                    xp.add(work, column, out=work)
            if offset is not None:
                xp.add(work, offset, out=work)

        return flatten


@kernel("GatherND", versions=(11, 12, 13), strided=True)
def gather_nd(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Slices of data at tuples of indices; the first `batch_dims` axes (since 12) are shared."""
    x, indices = tensor(op, specs, 0), tensor(op, specs, 1)
    batch = op.attr("batch_dims", 0)
    if not 0 <= batch < min(len(x.shape), len(indices.shape)):
        fail(op, f"{batch} is out of range for ranks {len(x.shape)} and {len(indices.shape)}", "batch_dims")
    rows = FlatRows(op, x, indices, batch)
    if indices.shape[-1] == 0:
        fail(op, "tuples of no index select nothing", "indices")
    out = TensorSpec(x.dtype, (*indices.shape[:-1], *rows.rest))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if indices.size == 0:
            return bool
        work, scratch = carve(workspace, *rows.parts)
        flatten = rows.bind(inputs[1], work, scratch, xp)
        if out.size == 0:
            return flatten
        target = outputs[0].reshape((*work.shape, rows.matrix[1]))
        take = taken(inputs[0].reshape(rows.matrix), work, 0, target, xp)

        def call() -> None:
            flatten()
            take()

        return call

    return computed([out], bind, contiguous={0}, workspace_bytes=carved_bytes(*rows.parts))


def same_shape(op: Operation, specs: Sequence[Spec], index: int, shape: tuple[int, ...], name: str) -> None:
    """Raises: KernelError unless input `index` has this shape."""
    spec = given(specs, index)
    if spec is None or spec.shape != shape:
        found = None if spec is None else list(spec.shape)
        fail(op, f"has shape {found}, not {list(shape)}", name)
