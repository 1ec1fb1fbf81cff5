"""Convolution as matrix products: of the input itself for 1×1 kernels, else of gathered windows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Bind, Call
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.fused import in_turn
from hetero.kernels.window import interior, windows
from hetero.kernels.workspace import Part, carve
from hetero.types import Array

COLUMN_BYTES = 1 << 28
"""Bound on the columns that a device gathers for one product. The host takes one sample: cached."""


def pointwise_serves(shape: ConvShape) -> bool:
    """Whether the input, reshaped, is the matrix of columns already."""
    w = shape.window
    return w.taps == 1 and not w.padded and all(s == 1 for s in w.strides)


def bind_pointwise(shape: ConvShape, xp: Any) -> Bind:
    """1×1 convolution: one product per sample and group, straight from the input into the output."""
    n, g, positions = shape.batch, shape.group, shape.window.positions

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        x = inputs[0].reshape(n, g, shape.group_channels, positions)
        w = inputs[1].reshape(g, shape.group_maps, shape.group_channels)
        y = outputs[0].reshape(n, g, shape.group_maps, positions)
        bias = _bias(inputs, (g, shape.group_maps, 1))
        if shape.empty:
            return _nothing
        if g == 1:
            x, w, y = x[:, 0], w[0], y[:, 0]
            bias = None if bias is None else bias[0]
        if n == 1:
            x, y = x[0], y[0]
        matmul, add = xp.matmul, xp.add
        if bias is None:
            return lambda: matmul(w, x, out=y)

        def call() -> None:
            matmul(w, x, out=y)
            add(y, bias, out=y)

        return call

    return bind


def _nothing() -> None:
    """An empty output needs no work."""


def _bias(inputs: Sequence[Any], shape: tuple[int, ...]) -> Array | None:
    return inputs[2].reshape(shape) if len(inputs) > 2 and inputs[2] is not None else None


def _one_sample(
    padded: Array | None,
    inner: Array | None,
    x: Array,
    view: Array,
    target: Array,
    w: Array,
    columns: Array,
    product: Array,
    bias: Array | None,
) -> Call:
    """The calls of a batch of one on the host, without a loop between them; w (group, maps, depth)."""
    calls: list[Call] = []
    if padded is not None and inner is not None:
        calls += [partial(padded.fill, 0), partial(np.copyto, inner, x)]
    calls.append(partial(np.copyto, target, view))
    if len(w) == 1:
        w, columns, product = w[0], columns[0], product[0]
        bias = None if bias is None else bias[0]
    calls.append(partial(np.matmul, w, columns, product))
    if bias is not None:
        calls.append(partial(np.add, product, bias, product))
    return in_turn(calls)


def _chunk(shape: ConvShape, itemsize: int, xp: Any) -> int:
    """Samples gathered at a time."""
    if xp is np:
        return 1
    one = max(shape.channels * shape.window.taps * shape.window.positions * itemsize, 1)
    return max(1, min(shape.batch, COLUMN_BYTES // one))


def gemm_parts(shape: ConvShape, dtype: np.dtype[Any], xp: Any) -> tuple[Part, ...]:
    """Padded planes and columns."""
    if shape.empty:
        return ()
    n, w = _chunk(shape, dtype.itemsize, xp), shape.window
    planes = ((n, shape.channels, *w.reach) if w.padded else (0,), dtype)
    return planes, ((n, shape.group, shape.depth, w.positions), dtype)


def bind_gemm(shape: ConvShape, dtype: np.dtype[Any], xp: Any) -> Bind:
    """Gather every window into a column (im2col), then one product per sample and group."""
    win = shape.window
    step = _chunk(shape, dtype.itemsize, xp)
    parts = gemm_parts(shape, dtype, xp)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if shape.empty:
            return _nothing
        planes, columns = carve(workspace, *parts)
        x, y = inputs[0], outputs[0]
        w = inputs[1].reshape(shape.group, shape.group_maps, shape.depth)
        bias = _bias(inputs, (shape.group, shape.group_maps, 1))
        jobs: list[tuple[Array | None, Array | None, Array, Array, Array, Array]] = []
        for at in range(0, shape.batch, step):
            n = min(step, shape.batch - at)
            source = x[at : at + n]
            inner = padded = None
            if win.padded:
                padded = planes[:n]
                inner = interior(padded, win)
            view = windows(xp, source if padded is None else padded, win)
            target = columns[:n].reshape(view.shape)
            product = y[at : at + n].reshape(n, shape.group, shape.group_maps, win.positions)
            jobs.append((padded, inner, source, view, target, product))
        if xp is np and shape.batch == 1:
            ((padded, inner, source, view, target, product),) = jobs
            return _one_sample(padded, inner, source, view, target, w, columns[0], product[0], bias)
        copyto, matmul, add = xp.copyto, xp.matmul, xp.add

        def call() -> None:
            for padded, inner, source, view, target, product in jobs:
                if padded is not None:
                    padded.fill(0)
                    copyto(inner, source)
                copyto(target, view)
                matmul(w, columns[: len(product)], out=product)
                if bias is not None:
                    add(product, bias, out=product)

        return call

    return bind
