"""com.microsoft's Inverse, CDist and UnfoldTensor: matrices inverted, compared row by row, cut into windows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.fused import in_turn, piece_elements
from hetero.kernels.operands import axis_of, fail, host_reason, text_of
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import FLOATS, Array, Spec, TensorSpec

MICROSOFT = "com.microsoft"


@kernel("Inverse", domain=MICROSOFT, versions=(1,), dispatch=Dispatch.LIBRARY)
def inverse(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (…, n, n) -> the inverse of each matrix. Raises when called: KernelError for a singular one."""
    x = tensor(op, specs, 0)
    if one_dtype(op, (x,), FLOATS) in NARROW:
        return widened(inverse, op, specs, xp)
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
        fail(op, f"needs square matrices, has shape {list(x.shape)}", "X")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        def call() -> None:
            try:
                outputs[0][...] = xp.linalg.inv(inputs[0])
            except np.linalg.LinAlgError as error:
                fail(op, f"a matrix has no inverse: {error}", "X")

        return Quiet(call)

    capture = host_reason(xp, "allocates its result")
    return computed((TensorSpec(x.dtype, x.shape),), bind, capture=capture)


@kernel("CDist", domain=MICROSOFT, versions=(1,))
def c_dist(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A (M, N), B (K, N) -> the distance of each row of A to each of B, (M, K); `metric` euclidean or sqeuclidean."""
    a, b = tensor(op, specs, 0), tensor(op, specs, 1)
    if one_dtype(op, (a, b), FLOATS) in NARROW:
        return widened(c_dist, op, specs, xp)
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[1]:
        fail(op, f"{list(a.shape)} and {list(b.shape)} are not rows of one length")
    metric = text_of(op, "metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        fail(op, f"{metric!r} is neither euclidean nor sqeuclidean", "metric")
    (m, n), k = a.shape, b.shape[0]
    output = TensorSpec(a.dtype, (m, k))
    # Squares of differences, not the expanded product: that one cancels where rows are close.
    rows = max(1, min(m, piece_elements(xp, a) // max(1, k * n)))
    parts: tuple[Part, ...] = (((rows, k, n), a.dtype),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        (work,) = carve(workspace, *parts)
        left, right, out = inputs[0][:, None, :], inputs[1][None], outputs[0]

        def piece(x: Array, t: Array, y: Array) -> None:
            xp.subtract(x, right, t)
            xp.multiply(t, t, t)
            t.sum(2, None, y)

        calls: list[Call] = [
            partial(piece, left[i : i + rows], work[: m - i], out[i : i + rows]) for i in range(0, m, rows)
        ]
        if metric == "euclidean":
            calls.append(partial(xp.sqrt, out, out))
        return Quiet(in_turn(calls))

    return computed((output,), bind, workspace_bytes=carved_bytes(*parts))


@kernel("UnfoldTensor", domain=MICROSOFT, versions=(1,), strided=True)
def unfold(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> its slices of `size` along `dim`, `step` apart: (…, (extent - size) / step + 1, …, size)."""
    x = tensor(op, specs, 0)
    axis = axis_of(op, int(op.attr("dim", -1)), len(x.shape), "dim")
    size, step, extent = int(op.attr("size", 0)), int(op.attr("step", 1)), x.shape[axis]
    if not 1 <= size <= extent:
        fail(op, f"{size} is no part of an extent of {extent}", "size")
    if step < 1:
        fail(op, f"{step} is not positive", "step")
    shape = (*x.shape[:axis], (extent - size) // step + 1, *x.shape[axis + 1 :], size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        target, source = xp.moveaxis(outputs[0], axis, 0), xp.moveaxis(inputs[0], axis, 0)
        return in_turn(
            [
                partial(xp.copyto, part, xp.moveaxis(source[i * step : i * step + size], 0, -1))
                for i, part in enumerate(target)
            ]
        )

    return computed((TensorSpec(x.dtype, shape),), bind)
