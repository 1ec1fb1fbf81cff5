"""MaxPool, AveragePool and LpPool: one pass per spatial axis, for a window's reduction splits into its axes'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel
from hetero.kernels.pool_index import max_pool_with_indices
from hetero.kernels.pool_max import bind_max_planes
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.window import Window, axis_taps, spatial, window_of
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

FLOATS = frozenset((np.dtype(np.float32), np.dtype(np.float64)))
BYTES = frozenset((np.dtype(np.int8), np.dtype(np.uint8)))


def _pool_window(op: Operation, x: TensorSpec, *, dilate: bool = True) -> Window:
    shape = op.attr("kernel_shape")
    if shape is None:
        raise KernelError("kernel_shape is missing", op=op.id, node=op.name, operand="kernel_shape")
    return window_of(op, x.shape[2:], shape, ceil_mode=bool(op.attr("ceil_mode", 0)), dilate=dilate)


class _Passes:
    """Reducing (planes, *extents) to (planes, *outputs) with `combine`, axis after axis, front to back.

    The last axis goes last: its strided reads are the slow ones, and the passes before have shrunk the rest.
    """

    def __init__(self, planes: int, dtype: np.dtype[Any], window: Window) -> None:
        self.window = window
        rank = len(window.kernel)
        shapes = [(planes, *window.outputs[: a + 1], *window.extents[a + 1 :]) for a in range(rank - 1)]
        self.parts: tuple[Part, ...] = tuple((shape, dtype) for shape in shapes)

    def bind(self, x: Array, y: Array, between: Sequence[Array], xp: Any, combine: Any, neutral: Any) -> Call:
        """A call that reduces x into y by way of `between` (arrays of `parts`). `neutral` stands for pads."""
        steps: list[tuple[Any, Array, Array | None]] = []
        source = x
        for axis, target in enumerate((*between, y)):
            taps = [pair for pair in axis_taps(self.window, axis) if pair[0].stop]
            count = self.window.outputs[axis]
            lead = (slice(None),) * (axis + 1)
            # A tap that serves every output writes the target first; where there is none, the neutral does.
            full = next((k for k, (out, _) in enumerate(taps) if (out.start, out.stop) == (0, count)), None)
            if full is None:
                steps.append((None, target, None))
            else:
                steps.append((xp.copyto, target, source[(*lead, taps.pop(full)[1])]))
            steps.extend((combine, target[(*lead, out)], source[(*lead, read)]) for out, read in taps)
            source = target
        copyto = xp.copyto

        def call() -> None:
            for act, target, source in steps:
                if act is None:
                    target.fill(neutral)
                elif act is copyto:
                    copyto(target, source)
                else:
                    combine(target, source, out=target)

        return call


@kernel("MaxPool", versions=(1, 8, 10, 11, 12, 22))
def max_pool(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, D1…) -> Y, and Indices (int64, into the flattened X) where asked for."""
    x = spatial(op, specs)
    indexed = len(op.present_outputs) > 1 and op.present_outputs[1]
    if x.dtype in NARROW and not indexed:
        return widened(max_pool, op, specs, xp)
    if x.dtype not in FLOATS | BYTES | NARROW:
        raise UnsupportedError(f"MaxPool of {x.dtype}", op=op.id, node=op.name)
    window = _pool_window(op, x)
    if indexed:
        return max_pool_with_indices(op, x, window, xp)
    n, c = x.shape[:2]
    passes = _Passes(n * c, x.dtype, window)
    neutral = -np.inf if x.dtype in FLOATS else np.iinfo(x.dtype).min

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        y = outputs[0].reshape(n * c, *window.outputs)
        planes = inputs[0].reshape(n * c, *window.extents)

        def in_passes() -> Call:
            return passes.bind(planes, y, carve(workspace, *passes.parts), xp, xp.maximum, neutral)

        return bind_max_planes(planes, y, window, in_passes) if xp is np else in_passes()

    output = TensorSpec(x.dtype, (n, c, *window.outputs))
    return computed((output,), bind, contiguous=(0,), workspace_bytes=carved_bytes(*passes.parts))


def _counts(window: Window, include_pad: bool) -> np.ndarray[Any, Any]:
    """Positions each window averages over, shape window.outputs: those on the input, or also on declared pads."""
    total = np.ones((), np.int64)
    for axis, count in enumerate(window.outputs):
        begin, end = (window.begins[axis], window.ends[axis]) if include_pad else (0, 0)
        starts = np.arange(count) * window.strides[axis] - window.begins[axis]
        step, last = window.dilations[axis], window.extents[axis] + end - 1
        first_tap = np.maximum(-((begin + starts) // step), 0)  # ceil((-begin - start) / step)
        last_tap = np.minimum((last - starts) // step, window.kernel[axis] - 1)
        total = total[..., None] * np.maximum(last_tap - first_tap + 1, 0)
    return np.maximum(total, 1)


@kernel("AveragePool", versions=(7, 10, 11, 19, 22))
def average_pool(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, D1…) -> the mean of each window."""
    x = spatial(op, specs)
    if x.dtype in NARROW:
        return widened(average_pool, op, specs, xp)
    if x.dtype not in FLOATS:
        raise UnsupportedError(f"AveragePool of {x.dtype}", op=op.id, node=op.name)
    window = _pool_window(op, x, dilate=op.version >= 19)
    n, c = x.shape[:2]
    passes = _Passes(n * c, x.dtype, window)
    counts = _counts(window, bool(op.attr("count_include_pad", 0))).astype(x.dtype)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        y = outputs[0].reshape(n * c, *window.outputs)
        between = carve(workspace, *passes.parts)
        sums = passes.bind(inputs[0].reshape(n * c, *window.extents), y, between, xp, xp.add, 0)
        shared, divide = xp.asarray(counts), xp.divide

        def call() -> None:
            sums()
            divide(y, shared, out=y)

        return call

    output = TensorSpec(x.dtype, (n, c, *window.outputs))
    return computed((output,), bind, contiguous=(0,), workspace_bytes=carved_bytes(*passes.parts))


@kernel("LpPool", versions=(2, 11, 18, 22))
def lp_pool(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, D1…) -> (sum over each window of |x|^p) ^ (1/p); p is 2 unless given."""
    x = spatial(op, specs)
    if x.dtype in NARROW:
        return widened(lp_pool, op, specs, xp)
    if x.dtype not in FLOATS:
        raise UnsupportedError(f"LpPool of {x.dtype}", op=op.id, node=op.name)
    p = lp_order(op)
    window = _pool_window(op, x, dilate=op.version >= 18)
    n, c = x.shape[:2]
    passes = _Passes(n * c, x.dtype, window)
    parts: tuple[Part, ...] = (((n * c, *window.extents), x.dtype), *passes.parts)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        y = outputs[0].reshape(n * c, *window.outputs)
        powers, *between = carve(workspace, *parts)
        sums = passes.bind(powers, y, between, xp, xp.add, 0)
        source = inputs[0].reshape(n * c, *window.extents)

        def call() -> None:
            raise_to(xp, source, powers, p)
            sums()
            xp.power(y, 1 / p, out=y)

        return call

    output = TensorSpec(x.dtype, (n, c, *window.outputs))
    return computed((output,), bind, contiguous=(0,), workspace_bytes=carved_bytes(*parts))


def lp_order(op: Operation) -> int:
    """The attribute p. Raises: KernelError unless positive."""
    p = int(op.attr("p", 2))
    if p < 1:
        raise KernelError(f"p is {p}, not positive", op=op.id, node=op.name, operand="p")
    return p


def raise_to(xp: Any, source: Array, target: Array, p: int) -> None:
    """|source| ** p into target."""
    xp.absolute(source, out=target)
    if p == 2:
        xp.multiply(target, target, out=target)
    elif p != 1:
        xp.power(target, p, out=target)
