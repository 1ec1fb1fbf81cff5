"""NonMaxSuppression against onnxruntime, a plain loop and the letter of the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError
from tests.kernels.harness import check_op, run_op


def case(n: int, seed: int, batches: int = 1, classes: int = 1) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    corners = generator.random((batches, n, 2, 2))
    boxes = np.concatenate([corners.min(2), corners.max(2)], -1).astype(np.float32)
    return boxes, generator.random((batches, classes, n)).astype(np.float32)


def limits(n: int, iou: float, score: float) -> list[Any]:
    return [np.array([n]), np.array([iou], np.float32), np.array([score], np.float32)]


@pytest.mark.parametrize("opset", [10, 11])
@pytest.mark.parametrize("centered", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_selection_agrees_with_onnxruntime(seed: int, centered: int, opset: int) -> None:
    boxes, scores = case(40, seed, batches=2, classes=3)
    check_op(
        "NonMaxSuppression",
        [boxes, scores, *limits(7, 0.4, 0.2)],
        opset=opset,
        center_point_box=centered,
    )


def test_corners_may_be_given_in_any_order() -> None:
    boxes, scores = case(30, 5)
    flipped = boxes[..., [2, 1, 0, 3]]
    wanted = run_op("NonMaxSuppression", [boxes, scores, *limits(30, 0.3, 0.0)], opset=11)[0]
    assert run_op("NonMaxSuppression", [flipped, scores, *limits(30, 0.3, 0.0)], opset=11)[0].tolist() == (
        wanted.tolist()
    )


def test_the_default_limit_selects_nothing() -> None:
    boxes, scores = case(5, 1)
    (out,) = run_op("NonMaxSuppression", [boxes, scores], opset=11)
    assert (out.shape, out.dtype) == ((0, 3), np.int64)
    (out,) = run_op("NonMaxSuppression", [boxes[:, :0], scores[..., :0], *limits(3, 0.5, 0)], opset=11)
    assert out.shape == (0, 3)


def test_equal_thresholds_keep_a_box_and_ties_go_to_the_first() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.5], [5, 5, 6, 6], [5, 5, 6, 6]]], np.float32)
    scores = np.array([[[0.5, 0.5, 0.25, 0.125]]], np.float32)
    (out,) = run_op("NonMaxSuppression", [boxes, scores, *limits(9, 0.5, 0.25)], opset=11)
    assert out[:, 2].tolist() == [0, 1, 2]


def test_without_a_score_threshold_negative_scores_are_kept() -> None:
    boxes = np.array([[[0, 0, 1, 1], [5, 5, 6, 6]]], np.float32)
    scores = np.array([[[-2, -1]]], np.float32)
    (out,) = run_op("NonMaxSuppression", [boxes, scores, np.array(9), np.array(0.5, np.float32)], opset=11)
    assert out[:, 2].tolist() == [1, 0]


def test_boxes_of_no_area_overlap_nothing() -> None:
    boxes = np.zeros((1, 3, 4), np.float32)
    scores = np.array([[[3, 1, 2]]], np.float32)
    (out,) = run_op("NonMaxSuppression", [boxes, scores, *limits(9, 0.0, 0.0)], opset=11)
    assert out[:, 2].tolist() == [0, 2, 1]


def test_operands_that_do_not_belong_together_are_refused() -> None:
    boxes, scores = case(5, 1)
    with pytest.raises(KernelError, match="do not belong together"):
        run_op("NonMaxSuppression", [boxes, scores[..., 1:]], opset=11)
    with pytest.raises(KernelError, match=r"must be \[B, N, 4\]"):
        run_op("NonMaxSuppression", [boxes[0], scores], opset=11)
    with pytest.raises(KernelError, match=r"1.5 is outside \[0, 1\]"):
        run_op("NonMaxSuppression", [boxes, scores, *limits(3, 1.5, 0)], opset=11)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 25), seed=st.integers(0, 1000), iou=st.floats(0.05, 0.95), limit=st.integers(1, 25))
def test_what_is_kept_overlaps_little_and_what_is_not_overlaps_a_better_one(
    n: int, seed: int, iou: float, limit: int
) -> None:
    boxes, scores = case(n, seed)
    kept = run_op("NonMaxSuppression", [boxes, scores, *limits(limit, iou, 0.3)], opset=11)[0][:, 2].tolist()
    iou = float(np.float32(iou))

    def overlap(a: int, b: int) -> float:
        low = np.maximum(boxes[0, a, :2], boxes[0, b, :2])
        high = np.minimum(boxes[0, a, 2:], boxes[0, b, 2:])
        common = float(np.maximum(high - low, 0).prod())
        areas = [float((boxes[0, i, 2:] - boxes[0, i, :2]).prod()) for i in (a, b)]
        return common / (sum(areas) - common)

    score = scores[0, 0]
    assert [score[k] for k in kept] == sorted((score[k] for k in kept), reverse=True)
    assert all(overlap(a, b) <= iou + 1e-5 for i, a in enumerate(kept) for b in kept[:i])
    if len(kept) < limit:
        for i in set(range(n)) - set(kept):
            better = [k for k in kept if score[k] >= score[i]]
            assert score[i] < 0.3 or any(overlap(i, k) > iou - 1e-5 for k in better)
