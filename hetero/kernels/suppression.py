"""NonMaxSuppression: greedy selection of boxes per batch entry and class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Compiled, dynamic, given, kernel, tensor
from hetero.kernels.operands import fail
from hetero.program.operation import Operation
from hetero.types import HostArray, Spec


def corners(boxes: HostArray, centered: bool) -> tuple[HostArray, HostArray]:
    """The low and high corners, each [..., 2], of boxes [..., 4] given by centre and size or by any diagonal."""
    a, b = boxes[..., :2], boxes[..., 2:]
    if centered:
        return a - b / 2, a + b / 2
    return np.minimum(a, b), np.maximum(a, b)


def keep(low: HostArray, high: HostArray, order: HostArray, limit: int, iou_threshold: float) -> list[int]:
    """At most `limit` of the boxes, in this order: each overlaps no earlier one by more than `iou_threshold`.

    The overlap is intersection over union; boxes of no area overlap nothing.
    """
    areas = (high - low).prod(axis=-1)
    kept: list[int] = []
    while len(order) and len(kept) < limit:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        sides = np.minimum(high[best], high[order]) - np.maximum(low[best], low[order])
        common = np.maximum(sides, 0).prod(axis=-1)
        union = areas[best] + areas[order] - common
        with np.errstate(divide="ignore", invalid="ignore"):
            overlap = np.where((common > 0) & (union > 0), common / union, 0)
        order = order[overlap <= iou_threshold]
    return kept


@kernel("NonMaxSuppression", versions=(10, 11), portable=False)
def non_max_suppression(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """[n, 3] rows of (batch, class, box), by batch, class, then falling score (ties: by box).

    Boxes that score less than `score_threshold` are left out, those that overlap a better one of their class by
    strictly more than `iou_threshold` suppressed.
    """
    boxes, scores = tensor(op, specs, 0), tensor(op, specs, 1)
    if len(boxes.shape) != 3 or boxes.shape[2] != 4 or len(scores.shape) != 3:
        fail(op, f"boxes {list(boxes.shape)} and scores {list(scores.shape)} must be [B, N, 4] and [B, C, N]")
    if (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2]):
        fail(op, f"boxes {list(boxes.shape)} and scores {list(scores.shape)} do not belong together")
    centered = bool(op.attr("center_point_box", 0))

    def scalar(inputs: Sequence[Any], index: int, default: float) -> float:
        if given(specs, index) is None:
            return default
        if inputs[index].size != 1:
            fail(op, f"input {index} must hold one element, has shape {list(inputs[index].shape)}")
        return inputs[index].reshape(-1)[0].item()  # type: ignore[no-any-return]

    def run(inputs: Sequence[Any]) -> tuple[HostArray]:
        limit = int(scalar(inputs, 2, 0))
        iou_threshold, score_threshold = scalar(inputs, 3, 0.0), scalar(inputs, 4, -np.inf)
        if not 0 <= iou_threshold <= 1:
            fail(op, f"{iou_threshold} is outside [0, 1]", "iou_threshold")
        rows: list[tuple[int, int, int]] = []
        low, high = corners(inputs[0], centered)
        for entry, per_class in enumerate(inputs[1] if limit > 0 else ()):
            for label, score in enumerate(per_class):
                candidates = np.flatnonzero(score >= score_threshold)
                order = candidates[np.argsort(-score[candidates], kind="stable")]
                kept = keep(low[entry], high[entry], order, limit, iou_threshold)
                rows.extend((entry, label, box) for box in kept)
        return (np.array(rows, np.int64).reshape(-1, 3),)

    return dynamic(run)
