"""com.microsoft's CropAndResize: regions of images, resized with their corners aligned, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.limits import bounded
from hetero.kernels.operands import fail, known_ints, text_of
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import NARROW, widened
from hetero.program.operation import Operation
from hetero.types import FLOATS, HostArray, Spec


def positions(low: HostArray, high: HostArray, count: int, extent: int) -> HostArray:
    """Where `count` samples of [low, high] (fractions of an axis of `extent`; one region an element) stand on it."""
    last = low.dtype.type(extent - 1)
    if count == 1:
        middle: HostArray = low.dtype.type(0.5) * (low + high) * last
        return middle[:, None]
    step = (high - low) * last / low.dtype.type(count - 1)
    spots: HostArray = (low * last)[:, None] + np.arange(count, dtype=low.dtype) * step[:, None]
    return spots


@kernel("CropAndResize", domain="com.microsoft", versions=(1,), values=(3,), portable=False)
def crop_and_resize(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, H, W), rois (R, 4) as [y1, x1, y2, x2] in fractions, batch_indices (R), crop_size (2) -> (R, C, h, w).

    Samples are interpolated (`mode` bilinear) or the nearest element (nearest); outside the image they are
    `extrapolation_value`. Raises when called: KernelError for a batch index that is none.
    """
    x, rois, batch = (tensor(op, specs, i) for i in range(3))
    if one_dtype(op, (x, rois), FLOATS) in NARROW:
        return widened(crop_and_resize, op, specs, xp)
    size = known_ints(op, specs, 3, "crop_size")
    if size is None or len(size) != 2 or min(size) < 1:
        fail(op, f"{size} is no height and width", "crop_size")
    if len(x.shape) != 4 or rois.shape != (*batch.shape, 4) or len(batch.shape) != 1:
        fail(
            op, f"{list(rois.shape)} regions and indices {list(batch.shape)} for an input of {list(x.shape)}"
        )
    mode = text_of(op, "mode", "bilinear")
    if mode not in ("bilinear", "nearest"):
        fail(op, f"{mode!r} is neither bilinear nor nearest", "mode")
    outside = x.dtype.type(op.attr("extrapolation_value", 0.0))
    extents = x.shape[2:]
    output = bounded(op, x.dtype, (batch.shape[0], x.shape[1], *size))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        image, regions, entries, out = *inputs[:3], outputs[0]

        def taken(rows: HostArray, columns: HostArray) -> HostArray:
            """Elements at (R, h) rows and (R, w) columns, as (R, C, h, w)."""
            picked = image[entries[:, None, None], :, rows[:, :, None], columns[:, None, :]]
            return np.moveaxis(picked, -1, 1)

        def call() -> None:
            if entries.size and not 0 <= entries.min() <= entries.max() < x.shape[0]:
                fail(op, f"{entries.tolist()} for a batch of {x.shape[0]}", "batch_indices")
            spots = [positions(regions[:, a], regions[:, a + 2], size[a], extents[a]) for a in (0, 1)]
            inside = [(s >= 0) & (s <= e - 1) for s, e in zip(spots, extents, strict=True)]
            spots = [np.where(i, s, 0) for s, i in zip(spots, inside, strict=True)]
            if mode == "nearest":
                found = taken(*(np.floor(s + s.dtype.type(0.5)).astype(np.intp) for s in spots))
            else:
                low = [np.floor(s).astype(np.intp) for s in spots]
                high = [np.ceil(s).astype(np.intp) for s in spots]
                down, right = (s - k for s, k in zip(spots, low, strict=True))
                down, right = down[:, None, :, None].astype(x.dtype), right[:, None, None, :].astype(x.dtype)
                top, bottom = (
                    left + (taken(rows, high[1]) - left) * right
                    for rows, left in ((rows, taken(rows, low[1])) for rows in (low[0], high[0]))
                )
                found = top + (bottom - top) * down
            kept = inside[0][:, None, :, None] & inside[1][:, None, None, :]
            out[...] = np.where(kept, found, outside)

        return Quiet(call)

    return computed((output,), bind)
