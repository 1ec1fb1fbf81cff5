"""Conv: checks operands and chooses the route by shape alone, so that equal shapes give equal bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Bind, Compiled, computed, given, kernel, tensor
from hetero.kernels.conv_depthwise import bind_depthwise, depthwise_parts, depthwise_serves
from hetero.kernels.conv_direct import bind_direct, direct_parts, direct_serves
from hetero.kernels.conv_few import bind_few, few_parts, few_serves
from hetero.kernels.conv_gathered import (
    bind_convolution,
    gathered_parts,
    gathered_serves,
    products_are_faster,
)
from hetero.kernels.conv_gemm import bind_gemm, bind_pointwise, gemm_parts, pointwise_serves
from hetero.kernels.conv_repeats import bind_once_each, repeats_serve
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.window import spatial, window_of
from hetero.kernels.winograd import bind_winograd, winograd_parts, winograd_serves
from hetero.kernels.workspace import Part, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Spec, TensorSpec

FLOATS = frozenset((np.dtype(np.float32), np.dtype(np.float64)))


def conv_shape(op: Operation, x: TensorSpec, w: TensorSpec) -> ConvShape:
    """The sizes of a convolution of `x` (N, C, …) with `w` (M, C/group, kernel…).

    Raises: KernelError where the two contradict each other or the attributes.
    """
    group = int(op.attr("group", 1))
    if len(w.shape) != len(x.shape):
        raise KernelError(
            f"weight of shape {list(w.shape)} for input of {list(x.shape)}", op=op.id, node=op.name
        )
    declared = op.attr("kernel_shape")
    if declared is not None and tuple(declared) != w.shape[2:]:
        raise KernelError(
            f"kernel_shape {list(declared)} is not the weight's {list(w.shape[2:])}",
            op=op.id,
            node=op.name,
            operand="kernel_shape",
        )
    channels, maps = x.shape[1], w.shape[0]
    if group < 1 or channels != w.shape[1] * group or maps % group:
        raise KernelError(
            f"{channels} channels, weight of {list(w.shape)} and group {group} contradict each other",
            op=op.id,
            node=op.name,
        )
    return ConvShape(x.shape[0], channels, maps, group, window_of(op, x.shape[2:], w.shape[2:]))


def route(
    shape: ConvShape, dtype: np.dtype[Any], xp: Any, *, exact: bool = False
) -> tuple[tuple[Part, ...], Bind]:
    """Workspace parts and bind of the route for this shape: of one that only adds products, if `exact`."""
    tiles = gathered_serves(shape, dtype, xp)
    few = few_serves(shape, dtype, xp)
    if pointwise_serves(shape) and not few:
        return (gathered_parts(shape), bind_convolution(shape)) if tiles else ((), bind_pointwise(shape, xp))
    if depthwise_serves(shape, dtype, xp):
        return depthwise_parts(shape, dtype), bind_depthwise(shape, dtype)
    if not exact and winograd_serves(shape, dtype, xp):
        return winograd_parts(shape), bind_winograd(shape)
    if few:
        return few_parts(shape), bind_few(shape)
    if direct_serves(shape, dtype, xp) and not (tiles and products_are_faster(shape)):
        return direct_parts(shape, dtype), bind_direct(shape, dtype)
    if tiles:
        return gathered_parts(shape), bind_convolution(shape)
    return gemm_parts(shape, dtype, xp), bind_gemm(shape, dtype, xp)


@kernel("Conv", versions=(1, 11, 22))
def conv(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, D1…), W (M, C/group, k1…), optional B (M) -> (N, M, o1…), in X's float dtype."""
    x, w, b = spatial(op, specs), tensor(op, specs, 1), given(specs, 2)
    if x.dtype in NARROW:
        return widened(conv, op, specs, xp)
    if x.dtype not in FLOATS:
        raise UnsupportedError(f"convolution of {x.dtype}", op=op.id, node=op.name)
    shape = conv_shape(op, x, w)
    if b is not None and b.shape != (shape.maps,):
        raise KernelError(
            f"bias of shape {list(b.shape)} for {shape.maps} maps", op=op.id, node=op.name, operand="B"
        )
    parts, bind = route(shape, x.dtype, xp)
    if repeats_serve(shape, xp):
        bind = bind_once_each(shape, x.dtype, bind, lambda fewer: route(fewer, x.dtype, xp))
    output = TensorSpec(x.dtype, (shape.batch, shape.maps, *shape.window.outputs))
    return computed((output,), bind, contiguous=(0, 1, 2), workspace_bytes=carved_bytes(*parts))
