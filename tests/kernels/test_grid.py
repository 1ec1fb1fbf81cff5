"""GridSample and AffineGrid against onnxruntime and onnx.reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import assert_close, check_op, compile_op, run_op

RNG = np.random.default_rng(31)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample_agrees_with_onnxruntime(mode: str, padding: str, align: int) -> None:
    x, grid = normal(2, 3, 5, 6), (RNG.random((2, 4, 3, 2)) * 4 - 2).astype(np.float32)
    keywords: dict[str, Any] = {"padding_mode": padding, "align_corners": align, "rtol": 1e-4, "atol": 1e-4}
    check_op("GridSample", [x, grid], opset=20, mode=mode, **keywords)
    old = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    check_op("GridSample", [x, grid], opset=16, mode=old, **keywords)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_grid_sample_of_volumes(mode: str, padding: str) -> None:
    x, grid = normal(1, 2, 3, 4, 5), (RNG.random((1, 2, 3, 2, 3)) * 3 - 1.5).astype(np.float32)
    check_op("GridSample", [x, grid], opset=20, mode=mode, padding_mode=padding, rtol=1e-4, atol=1e-4)


def test_coordinates_without_a_number_read_nothing_out_of_bounds() -> None:
    grid = np.array([np.nan, np.inf, -np.inf, 1e30], np.float32).reshape(1, 2, 1, 2)
    with np.errstate(invalid="ignore"):
        (y,) = run_op(
            "GridSample", [normal(1, 2, 3, 3), grid], opset=20, padding_mode="border", mode="nearest"
        )
    assert y.shape == (1, 2, 2, 1)


def test_one_element_half_precision_and_empty_grids() -> None:
    x, grid = normal(1, 1, 1, 1), normal(1, 3, 2, 2)
    (y,) = run_op("GridSample", [x, grid], opset=20, padding_mode="reflection", align_corners=1)
    assert (y == x).all()
    (y,) = run_op(
        "GridSample", [x.astype(np.float16), grid.astype(np.float16)], opset=20, padding_mode="border"
    )
    assert (y == x.astype(np.float16)).all()
    (y,) = run_op("GridSample", [normal(1, 2, 3, 3), grid[:, :0]], opset=20)
    assert y.shape == (1, 2, 0, 2)


def test_grids_of_other_shapes_and_modes_are_refused() -> None:
    x = normal(1, 2, 3, 3)
    with pytest.raises(KernelError, match="grid of shape"):
        compile_op("GridSample", [x, normal(1, 3, 2, 3)], opset=20)
    with pytest.raises(KernelError, match="unknown mode"):
        compile_op("GridSample", [x, normal(1, 3, 2, 2)], opset=20, mode="lanczos")
    with pytest.raises(UnsupportedError, match="cubic"):
        compile_op("GridSample", [normal(1, 2, 3, 3, 3), normal(1, 2, 2, 2, 3)], opset=20, mode="cubic")


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 2, 3, 4, 2), (2, 1, 2, 2)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_affine_grid_agrees_with_a_peer(size: tuple[int, ...], align: int, dtype: Any) -> None:
    rank = len(size) - 2
    theta = normal(size[0], rank, rank + 1, dtype=dtype)
    check_op("AffineGrid", [theta, np.array(size)], opset=20, align_corners=align, rtol=1e-5, atol=1e-5)


def test_the_only_element_of_an_axis_lies_in_its_middle() -> None:
    theta = np.array([[[2, 0, 5], [0, 3, 7]]], np.float32)
    for align in (0, 1):
        (y,) = run_op("AffineGrid", [theta, np.array([1, 1, 1, 1])], opset=20, align_corners=align)
        assert y.tolist() == [[[[5, 7]]]]


def test_affine_grid_refuses_what_does_not_fit() -> None:
    with pytest.raises(KernelError, match="theta"):
        compile_op("AffineGrid", [normal(1, 2, 3), np.array([2, 1, 3, 3])], opset=20)
    with pytest.raises(KernelError, match="size"):
        compile_op("AffineGrid", [normal(1, 2, 3), np.array([1, 1, 3])], opset=20)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_grid_of_half_precision_samples_in_the_inputs_own(dtype: Any) -> None:
    x, grid = normal(1, 2, 4, 5), RNG.uniform(-1, 1, (1, 3, 2, 2)).astype(dtype)
    expected = run_op("GridSample", [x, grid.astype(np.float32)], opset=20)
    assert_close(run_op("GridSample", [x, grid], opset=20), expected, rtol=0, atol=0)
