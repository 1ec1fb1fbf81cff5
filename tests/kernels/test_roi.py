"""RoiAlign and MaxRoiPool against onnxruntime, with boxes inside, outside and across the edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import check_op, compile_op, run_op

RNG = np.random.default_rng(37)
X = RNG.standard_normal((2, 3, 9, 8)).astype(np.float32)
BOXES = np.array(
    [[0, 0, 7, 8], [1.3, 2.1, 4.9, 6.4], [-3, -2, 3, 3], [5, 6, 12, 12], [3, 3, 3, 3]], np.float32
)
SAMPLES = np.array([0, 1, 0, 1, 1])


@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
def test_roi_align_agrees_with_onnxruntime(transform: str, ratio: int) -> None:
    for opset in (16, 22):
        check_op(
            "RoiAlign",
            [X, BOXES, SAMPLES],
            opset=opset,
            rtol=1e-4,
            atol=1e-5,
            output_height=3,
            output_width=2,
            sampling_ratio=ratio,
            spatial_scale=0.9,
            coordinate_transformation_mode=transform,
        )


def test_roi_align_10_knows_no_half_pixels() -> None:
    check_op("RoiAlign", [X, BOXES, SAMPLES], opset=10, rtol=1e-4, atol=1e-5, output_height=2, output_width=2)


def test_roi_align_takes_maxima() -> None:
    boxes = BOXES[:2]
    check_op("RoiAlign", [X, boxes, SAMPLES[:2]], opset=16, rtol=1e-4, atol=1e-5, mode="max",
             output_height=2, output_width=3, sampling_ratio=2)  # fmt: skip


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_max_roi_pool_agrees_with_onnxruntime(scale: float) -> None:
    boxes = np.concatenate([SAMPLES[:, None], np.rint(BOXES)], axis=1).astype(np.float32)
    (y,) = check_op("MaxRoiPool", [X, boxes], opset=7, pooled_shape=[3, 2], spatial_scale=scale)
    (newer,) = run_op("MaxRoiPool", [X, boxes], opset=22, pooled_shape=[3, 2], spatial_scale=scale)
    assert (y == newer).all()


def test_no_box_gives_no_output_and_half_precision_is_taken() -> None:
    (y,) = run_op("RoiAlign", [X, BOXES[:0], SAMPLES[:0]], opset=16)
    assert y.shape == (0, 3, 1, 1)
    half = [X.astype(np.float16), BOXES.astype(np.float16), SAMPLES]
    (y,) = run_op("RoiAlign", half, opset=22)
    (wide,) = run_op("RoiAlign", [half[0].astype(np.float32), half[1].astype(np.float32), SAMPLES], opset=22)
    assert (y == wide.astype(np.float16)).all()


def test_a_box_of_a_sample_that_is_not_there_is_refused() -> None:
    with pytest.raises(KernelError, match="sample 2"):
        run_op("RoiAlign", [X, BOXES[:1], np.array([2])], opset=16)
    with pytest.raises(KernelError, match="sample"):
        run_op("MaxRoiPool", [X, np.array([[-1, 0, 0, 1, 1]], np.float32)], opset=7, pooled_shape=[1, 1])


def test_a_box_too_large_to_sample_is_refused() -> None:
    huge: Any = np.array([[0, 0, 1e9, 1e9]], np.float32)
    with pytest.raises(KernelError, match="samples a cell"):
        run_op("RoiAlign", [X, huge, np.array([0])], opset=16)


@pytest.mark.parametrize(
    "attributes", [{"output_height": 0}, {"mode": "sum"}, {"sampling_ratio": -1}], ids=str
)
def test_attributes_that_cannot_be_meant_are_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(KernelError, match="output"):
        compile_op("RoiAlign", [X, BOXES, SAMPLES], opset=16, **attributes)
