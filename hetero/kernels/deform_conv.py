"""DeformConv: a convolution whose taps are moved by offsets, between pixels by bilinear interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.conv import FLOATS, conv_shape
from hetero.kernels.operands import fail, host_reason
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.window import Window, spatial
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec


def _grid(window: Window, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Row and column that each tap reads where nothing is moved, (taps, 1…) over output positions: (taps, oh, ow)."""
    axes = []
    for axis in range(2):
        start = np.arange(window.outputs[axis]) * window.strides[axis] - window.begins[axis]
        axes.append(np.arange(window.kernel[axis])[:, None] * window.dilations[axis] + start)
    rows, columns = axes  # (kh, oh), (kw, ow)
    shape = (*window.kernel, *window.outputs)
    y = np.broadcast_to(rows[:, None, :, None], shape).reshape(window.taps, *window.outputs)
    x = np.broadcast_to(columns[None, :, None, :], shape).reshape(window.taps, *window.outputs)
    return y.astype(dtype), x.astype(dtype)


def _sample(
    xp: Any, planes: Array, y: Array, x: Array, scale: Array | None, out: Array, corner: Array
) -> None:
    """out (channels, positions) = planes (channels, height, width) at the positions (y, x), 0 outside; `corner` is
    scratch like `out`."""
    height, width = planes.shape[1:]
    flat = planes.reshape(planes.shape[0], -1)
    top, left = xp.floor(y), xp.floor(x)
    out[...] = 0
    for row, column, weight in (
        (top, left, (top + 1 - y) * (left + 1 - x)),
        (top, left + 1, (top + 1 - y) * (x - left)),
        (top + 1, left, (y - top) * (left + 1 - x)),
        (top + 1, left + 1, (y - top) * (x - left)),
    ):
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        index = xp.where(inside, row * width + column, 0).astype(np.int64)
        weight = xp.where(inside, weight, 0)
        if scale is not None:
            weight = weight * scale
        xp.take(flat, index, 1, out=corner, mode="clip")
        xp.multiply(corner, weight, corner)
        xp.add(out, corner, out)


@kernel("DeformConv", versions=(19, 22))
def deform_conv(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, H, W), W (M, C/group, kh, kw), offset (N, offset_group·kh·kw·2, oh, ow) as rows and columns by turns,
    optional B (M) and mask (N, offset_group·kh·kw, oh, ow) -> (N, M, oh, ow)."""
    x, w, offset = spatial(op, specs), tensor(op, specs, 1), tensor(op, specs, 2)
    bias, mask = given(specs, 3), given(specs, 4)
    if x.dtype in NARROW:
        return widened(deform_conv, op, specs, xp)
    if x.dtype not in FLOATS or len(x.shape) != 4:
        raise UnsupportedError(f"of {x}", op=op.id, node=op.name)
    shape = conv_shape(op, x, w)
    window, taps, positions = shape.window, shape.window.taps, shape.window.positions
    groups: int = op.attr("offset_group", 1)
    if groups < 1 or shape.channels % groups:
        fail(op, f"{groups} for {shape.channels} channels", "offset_group")
    for spec, name, per in ((offset, "offset", 2), (mask, "mask", 1)):
        wanted = (shape.batch, groups * taps * per, *window.outputs)
        if spec is not None and spec.shape != wanted:
            fail(op, f"of shape {list(spec.shape)}, must be {list(wanted)}", name)
    if bias is not None and bias.shape != (shape.maps,):
        fail(op, f"of shape {list(bias.shape)} for {shape.maps} maps", "B")
    channels = shape.channels // groups
    parts: tuple[Part, ...] = (
        ((shape.channels, taps * positions), x.dtype),
        ((channels, taps * positions), x.dtype),
    )
    grid_y, grid_x = (xp.asarray(a) for a in _grid(window, x.dtype))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        columns, corner = carve(workspace, *parts)
        offsets = inputs[2].reshape(shape.batch, groups, taps, 2, *window.outputs)
        scales = None
        if mask is not None:
            scales = inputs[4].reshape(shape.batch, groups, taps * positions)
        weights = inputs[1].reshape(shape.group, shape.group_maps, shape.depth)
        out = outputs[0].reshape(shape.batch, shape.group, shape.group_maps, positions)
        gathered = columns.reshape(shape.group, shape.depth, positions)
        added = inputs[3].reshape(shape.group, shape.group_maps, 1) if bias is not None else None

        def call() -> None:
            for n in range(shape.batch):
                for g in range(groups):
                    some = slice(g * channels, (g + 1) * channels)
                    y = (grid_y + offsets[n, g, :, 0]).reshape(-1)
                    z = (grid_x + offsets[n, g, :, 1]).reshape(-1)
                    scale = None if scales is None else scales[n, g]
                    _sample(xp, inputs[0][n, some], y, z, scale, columns[some], corner)
                xp.matmul(weights, gathered, out[n])
                if added is not None:
                    xp.add(out[n], added, out[n])

        return Quiet(call) if not shape.empty and x.size else _zero(outputs[0], added, out)

    return computed(
        [TensorSpec(x.dtype, (shape.batch, shape.maps, *window.outputs))],
        bind,
        contiguous=range(5),
        workspace_bytes=carved_bytes(*parts),
        capture=host_reason(xp, "makes arrays"),
    )


def _zero(output: Array, added: Array | None, out: Array) -> Call:
    """No pixels: what the bias says."""

    def call() -> None:
        output[...] = 0
        if added is not None:
            out[...] = added

    return call
