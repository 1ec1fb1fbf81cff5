"""Pooling with positions: MaxPool's Indices output, and MaxUnpool, which puts values back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.limits import bounded, bounded_steps
from hetero.kernels.window import Window, axis_taps, spatial
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Spec, TensorSpec


def _first_inside(window: Window) -> np.ndarray[Any, Any]:
    """Row-major index into the extents of each window's first tap on the input (the nearest one, if none is)."""
    flat = np.zeros((), np.int64)
    for axis, count in enumerate(window.outputs):
        starts = np.arange(count) * window.strides[axis] - window.begins[axis]
        step = window.dilations[axis]
        skipped = -(np.minimum(starts, 0) // step)
        spots = np.clip(starts + skipped * step, 0, max(window.extents[axis] - 1, 0))
        flat = flat[..., None] * window.extents[axis] + spots
    return flat


def max_pool_with_indices(op: Operation, x: TensorSpec, window: Window, xp: Any) -> Compiled:
    """MaxPool with Indices: a tap replaces what it exceeds, so the first of equals stays."""
    n, c = x.shape[:2]
    planes = n * c
    bounded_steps(op, window.taps, "kernel_shape")
    first = _first_inside(window)
    shape = (planes, *window.outputs)
    spots = np.arange(int(np.prod(window.extents)), dtype=np.int64).reshape(window.extents)
    if op.attr("storage_order", 0):  # column major: the index counts along the first spatial axis first
        spots = spots.reshape(window.extents[::-1]).transpose()
    pairs = [axis_taps(window, axis) for axis in range(len(window.kernel))]
    parts: tuple[Part, ...] = ((shape, np.bool_),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source = inputs[0].reshape(planes, *window.extents)
        flat = inputs[0].reshape(planes, spots.size)
        y = (xp.empty(shape, x.dtype) if outputs[0] is None else outputs[0]).reshape(shape)
        where = outputs[1].reshape(shape)
        (exceeds,) = carve(workspace, *parts)
        table, start = xp.asarray(spots), xp.asarray(first)
        at_start = xp.asarray(spots.reshape(-1)[first] if spots.size else first)
        base = xp.arange(planes, dtype=np.int64).reshape(planes, *(1,) * len(window.kernel)) * spots.size
        steps = []
        for chosen in product(*pairs):
            if all(out.stop for out, _ in chosen):
                into = (slice(None), *(out for out, _ in chosen))
                read = tuple(r for _, r in chosen)
                steps.append((exceeds[into], y[into], source[(slice(None), *read)], where[into], table[read]))
        greater, copyto = xp.greater, xp.copyto

        def call() -> None:
            xp.take(flat, start, axis=1, out=y)
            copyto(where, at_start)
            for mask, best, value, index, spot in steps:
                greater(value, best, out=mask)
                copyto(best, value, where=mask)
                copyto(index, spot, where=mask)
            xp.add(where, base, out=where)

        return call if y.size else lambda: None

    out = (n, c, *window.outputs)
    kept = TensorSpec(x.dtype, out) if op.present_outputs[0] else None
    return computed(
        (kept, TensorSpec(np.dtype(np.int64), out)),
        bind,
        contiguous=(0,),
        workspace_bytes=carved_bytes(*parts),
    )


@kernel("MaxUnpool", versions=(9, 11, 22), values=(2,))
def max_unpool(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X and I (int64, same shape), optional output_shape -> zeros, but X's values where I says.

    I counts in the tensor that MaxPool had before; a larger output_shape puts that tensor at its start.
    """
    x, index, asked = spatial(op, specs), tensor(op, specs, 1), given(specs, 2)
    if index.dtype.kind != "i":
        raise KernelError(f"must be integers, not {index.dtype}", op=op.id, node=op.name, operand="I")
    if index.shape != x.shape:
        raise KernelError(
            f"indices of shape {list(index.shape)} for values of {list(x.shape)}", op=op.id, node=op.name
        )
    kernel_shape = tuple(op.attr("kernel_shape") or ())
    rank = len(x.shape) - 2
    strides = tuple(op.attr("strides") or (1,) * rank)
    pads = tuple(op.attr("pads") or (0,) * (2 * rank))
    if len(kernel_shape) != rank or len(strides) != rank or len(pads) != 2 * rank:
        raise KernelError(
            f"kernel_shape, strides and pads must fit {rank} spatial axes", op=op.id, node=op.name
        )
    natural = tuple(
        (e - 1) * s - b - a + k
        for e, s, b, a, k in zip(x.shape[2:], strides, pads[:rank], pads[rank:], kernel_shape, strict=True)
    )
    shape = natural
    if asked is not None:
        if asked.value is None:
            raise UnsupportedError("output_shape must be known when compiling", op=op.id, node=op.name)
        full = tuple(int(v) for v in asked.value.reshape(-1))
        shape = full[-rank:]
        if full not in (shape, (*x.shape[:2], *shape)):
            raise KernelError(
                f"output shape {list(full)} is of another batch, channels or rank than {list(x.shape)}",
                op=op.id,
                node=op.name,
                operand="output_shape",
            )
    if (
        min(natural, default=1) < 0
        or len(shape) != rank
        or any(s < e for s, e in zip(shape, natural, strict=True))
    ):
        raise KernelError(
            f"output shape {list(shape)} does not hold {list(natural)}",
            op=op.id,
            node=op.name,
            operand="output_shape",
        )
    lead = x.shape[:2]
    bounded(op, x.dtype, (*lead, *shape))
    parts: tuple[Part, ...] = () if shape == natural else (((*lead, *natural), x.dtype),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        y = outputs[0]
        whole = carve(workspace, *parts)[0] if parts else y
        flat, values, spots = whole.reshape(-1), inputs[0].reshape(-1), inputs[1].reshape(-1)
        corner = y[(slice(None), slice(None), *(slice(0, e) for e in natural))]

        def call() -> None:
            if xp is np and spots.size and (int(spots.min()) < 0 or int(spots.max()) >= whole.size):
                raise KernelError(
                    f"indices from {int(spots.min())} to {int(spots.max())} lie outside {whole.size} elements",
                    op=op.id,
                    node=op.name,
                    operand="I",
                )
            whole.fill(0)
            flat[spots] = values
            if parts:
                y.fill(0)
                xp.copyto(corner, whole)

        return call

    return computed(
        (TensorSpec(x.dtype, (*lead, *shape)),), bind, contiguous=(0, 1), workspace_bytes=carved_bytes(*parts)
    )
