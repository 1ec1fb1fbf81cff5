"""MaxRoiPool and RoiAlign: pooling inside boxes that are data, one box at a time, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.limits import bounded
from hetero.kernels.operands import fail
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.window import spatial
from hetero.program.operation import Operation
from hetero.types import HostArray, Spec, TensorSpec

FLOATS = frozenset((np.dtype(np.float32), np.dtype(np.float64)))
MAX_SAMPLES = 1 << 12
"""Bound on the samples along one axis of one output cell: boxes are data, and their size sets the work."""


def _images(op: Operation, specs: Sequence[Spec]) -> TensorSpec:
    x = spatial(op, specs)
    if len(x.shape) != 4:
        fail(op, f"input of shape {list(x.shape)} must have four axes")
    if x.dtype not in FLOATS:
        raise UnsupportedError(f"{op.op_type} of {x.dtype}", op=op.id, node=op.name)
    return x


def _batch(op: Operation, index: float, batch: int) -> int:
    if not 0 <= index < batch:
        raise KernelError(f"box of sample {index}, but there are {batch}", op=op.id, node=op.name)
    return int(index)


@kernel("MaxRoiPool", versions=(1, 22), portable=False)
def max_roi_pool(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, H, W), rois (R, 5) of (sample, x1, y1, x2, y2) -> (R, C, *pooled_shape)."""
    if tensor(op, specs, 0).dtype in NARROW:
        return widened(max_roi_pool, op, specs, xp)
    x, rois = _images(op, specs), tensor(op, specs, 1)
    pooled = tuple(int(v) for v in (op.attr("pooled_shape") or ()))
    if len(pooled) != 2 or min(pooled) < 1 or len(rois.shape) != 2 or rois.shape[1] != 5:
        fail(op, f"pooled_shape {list(pooled)} and rois of shape {list(rois.shape)}", "pooled_shape")
    scale = float(op.attr("spatial_scale", 1.0))
    height, width = x.shape[2:]

    def cells(low: float, high: float, count: int, extent: int) -> list[slice]:
        # Half away from zero, as C's round
        start, end = (int(np.floor(abs(v) * scale + 0.5) * np.sign(v)) for v in (low, high))
        step = max(end - start + 1, 1) / count
        return [
            slice(
                min(max(int(np.floor(i * step)) + start, 0), extent),
                min(max(ceil((i + 1) * step) + start, 0), extent),
            )
            for i in range(count)
        ]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        images, boxes, y = inputs[0], inputs[1], outputs[0]

        def call() -> None:
            for r, (sample, x1, y1, x2, y2) in enumerate(boxes.tolist()):
                image = images[_batch(op, sample, x.shape[0])]
                columns = cells(x1, x2, pooled[1], width)
                for i, rows in enumerate(cells(y1, y2, pooled[0], height)):
                    for j, across in enumerate(columns):
                        cell = image[:, rows, across]
                        y[r, :, i, j] = cell.max(axis=(1, 2)) if cell.size else 0

        return call

    output = bounded(op, x.dtype, (rois.shape[0], x.shape[1], *pooled))
    return computed((output,), bind)


@kernel("RoiAlign", versions=(10, 16, 22), portable=False)
def roi_align(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, H, W), rois (R, 4) of (x1, y1, x2, y2), sample of each (R) -> (R, C, output_height, output_width).

    Mean of bilinear samples; in mode "max" the largest weighted corner, as onnxruntime and onnx have it.
    """
    if tensor(op, specs, 0).dtype in NARROW:
        return widened(roi_align, op, specs, xp)
    x, rois, samples = _images(op, specs), tensor(op, specs, 1), tensor(op, specs, 2)
    if len(rois.shape) != 2 or rois.shape[1] != 4 or samples.shape != rois.shape[:1]:
        fail(op, f"rois of shape {list(rois.shape)} with batch_indices of {list(samples.shape)}", "rois")
    pooled = (int(op.attr("output_height", 1)), int(op.attr("output_width", 1)))
    ratio = int(op.attr("sampling_ratio", 0))
    mode = op.attr("mode", "avg")
    mode = mode.decode("utf-8", "replace") if isinstance(mode, bytes) else mode
    if min(pooled) < 1 or ratio < 0 or ratio > MAX_SAMPLES or mode not in ("avg", "max"):
        fail(op, f"output {list(pooled)}, sampling_ratio {ratio}, mode {mode!r}", "mode")
    scale = float(op.attr("spatial_scale", 1.0))
    transform = op.attr(
        "coordinate_transformation_mode", "half_pixel" if op.version >= 16 else "output_half_pixel"
    )
    half = transform in ("half_pixel", b"half_pixel")
    height, width = x.shape[2:]
    real = x.dtype.type

    def axis(low: float, high: float, count: int, extent: int) -> tuple[HostArray, HostArray, int]:
        """Element indices and weights (count, samples, 2) along one axis."""
        start, end = (real(v) * real(scale) - real(0.5 if half else 0) for v in (low, high))
        length = end - start if half else max(end - start, real(1))
        step = length / real(count)
        number = ratio or ceil(step)
        if number > MAX_SAMPLES or not np.isfinite(step):
            raise KernelError(f"a box of {length} needs {step} samples a cell", op=op.id, node=op.name)
        number = max(number, 1) if ratio else max(number, 0)
        inner = (np.arange(number, dtype=x.dtype) + real(0.5)) * step / real(max(number, 1))
        at = start + np.arange(count, dtype=x.dtype)[:, None] * step + inner
        outside = (at < -1) | (at > extent)
        at = np.maximum(at, 0)
        left = np.minimum(at.astype(np.int64), extent - 1)
        right = np.minimum(left + 1, extent - 1)
        share = np.where(left >= extent - 1, 0, at - left).astype(x.dtype)
        weights = np.where(outside[..., None], 0, np.stack([1 - share, share], axis=-1))
        return np.stack([left, right], axis=-1), weights.astype(x.dtype), number

    def pool(image: HostArray, box: list[float], target: HostArray) -> None:
        x1, y1, x2, y2 = box
        rows, down, n_down = axis(y1, y2, pooled[0], height)
        columns, across, n_across = axis(x1, x2, pooled[1], width)
        if n_down * n_across == 0:
            target[...] = 0
            return
        corners = image[:, rows[:, :, :, None, None, None], columns]  # (C, ph, sh, 2, pw, sw, 2)
        weighted = corners * (down[:, :, :, None, None, None] * across)
        if mode == "avg":
            target[...] = weighted.sum(axis=(2, 3, 5, 6)) / real(n_down * n_across)
        else:
            target[...] = weighted.max(axis=(2, 3, 5, 6))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        images, boxes, which, y = inputs[0], inputs[1], inputs[2], outputs[0]

        def call() -> None:
            for box, sample, target in zip(boxes.tolist(), which.tolist(), y, strict=True):
                pool(images[_batch(op, sample, x.shape[0])], box, target)

        return call

    output = bounded(op, x.dtype, (rois.shape[0], x.shape[1], *pooled))
    return computed((output,), bind)
