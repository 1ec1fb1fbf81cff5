"""Copying layout operators against onnxruntime, onnx.reference and by hand."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError, MemoryLimitError, UnsupportedError
from tests.kernels.harness import check_op, run_op


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def grid(*shape: int) -> Any:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_joins_along_any_axis(axis: int) -> None:
    shapes = [[2, 3, 4], [2, 3, 4], [2, 3, 4]]
    for i, shape in enumerate(shapes):
        shape[axis] = i
    check_op("Concat", [grid(*s) for s in shapes], opset=13, axis=axis)


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, ml_dtypes.bfloat16, ml_dtypes.int4, object])
def test_concat_takes_every_dtype_and_strides(dtype: Any) -> None:
    x = np.array([[0, 1, 0], [1, 1, 0]]).astype(dtype)
    (out,) = run_op("Concat", [x.T, x[:, ::-1].T], opset=13, axis=1)
    assert out.tolist() == np.concatenate([x.T, x[:, ::-1].T], 1).tolist()


def test_concat_refuses_parts_that_do_not_join() -> None:
    with pytest.raises(KernelError, match=r"shape \[3, 2\] of input 1 does not join"):
        run_op("Concat", [grid(2, 2), grid(3, 2)], opset=13, axis=1)
    with pytest.raises(KernelError, match="input 1 is int32, not float32"):
        run_op("Concat", [grid(2), np.zeros(2, np.int32)], opset=13, axis=0)
    with pytest.raises(KernelError, match="axis 0 is out of range for rank 0"):
        run_op("Concat", [np.float32(1).reshape(())], opset=13, axis=0)


def test_concat_of_one_input_is_a_copy() -> None:
    check_op("Concat", [grid(2, 3)], opset=11, axis=0)


def test_tile_repeats_every_axis() -> None:
    check_op("Tile", [grid(2, 3), i64(2, 3)], opset=13)
    check_op("Tile", [grid(2, 3).T, i64(1, 2)], opset=7)
    (empty,) = run_op("Tile", [grid(2, 3), i64(0, 2)], opset=13)
    assert empty.shape == (0, 6)
    (scalar,) = run_op("Tile", [np.array(2.0), np.zeros(0, np.int64)], opset=13)
    assert scalar.shape == ()


def test_tile_refuses_what_it_cannot_repeat() -> None:
    with pytest.raises(KernelError, match="negative"):
        run_op("Tile", [grid(2, 3), i64(2, -1)], opset=13)
    with pytest.raises(KernelError, match="1 repeats for rank 2"):
        run_op("Tile", [grid(2, 3), i64(2)], opset=13)
    with pytest.raises(MemoryLimitError):
        run_op("Tile", [grid(2, 3), i64(2**40, 2**40)], opset=13)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(mode: str) -> None:
    x = grid(2, 8, 3, 5)
    (spread,) = check_op("DepthToSpace", [x], opset=13, blocksize=2, mode=mode)
    (back,) = run_op("SpaceToDepth", [spread], opset=28, blocksize=2, mode=mode)
    assert back.tolist() == x.tolist()
    turned = np.ascontiguousarray(x.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0)
    assert run_op("DepthToSpace", [turned], opset=13, blocksize=2, mode=mode)[0].tolist() == spread.tolist()


def test_depth_to_space_refuses_extents_that_do_not_divide() -> None:
    with pytest.raises(KernelError, match="depth 6 is no multiple of 4"):
        run_op("DepthToSpace", [grid(1, 6, 1, 1)], opset=13, blocksize=2)
    with pytest.raises(KernelError, match="no multiples of 2"):
        run_op("SpaceToDepth", [grid(1, 1, 3, 2)], opset=13, blocksize=2)
    with pytest.raises(KernelError, match="0 is no block size"):
        run_op("SpaceToDepth", [grid(1, 1, 2, 2)], opset=13, blocksize=0)
    with pytest.raises(KernelError, match=r"needs \[N, C, H, W\]"):
        run_op("SpaceToDepth", [grid(1, 2, 2)], opset=13, blocksize=2)


@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
def test_reverse_sequence_reverses_each_entry_by_its_length(time: int, batch: int) -> None:
    lengths = i64(4, 0, 2, 1) if time == 0 else i64(1, 2, 3, 4)
    check_op("ReverseSequence", [grid(4, 4, 2), lengths], opset=10, time_axis=time, batch_axis=batch)


def test_reverse_sequence_checks_its_lengths() -> None:
    with pytest.raises(KernelError, match=r"beyond \[0, 4\]"):
        run_op("ReverseSequence", [grid(4, 2), i64(5, 1)], opset=10)
    with pytest.raises(KernelError, match="batch has 2 entries"):
        run_op("ReverseSequence", [grid(4, 2), i64(1, 1, 1)], opset=10)
    with pytest.raises(KernelError, match="must be 0 and 1"):
        run_op("ReverseSequence", [grid(4, 2), i64(1, 1)], opset=10, time_axis=1)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-5, -1, 0, 2, 7, 2**62, -(2**62)])
def test_trilu_keeps_a_triangle(upper: int, k: int) -> None:
    x = grid(2, 3, 4) + 1
    (out,) = run_op("Trilu", [x, np.array(k)], opset=14, upper=upper)
    kept = max(-9, min(k, 9))
    assert out.tolist() == (np.triu(x, kept) if upper else np.tril(x, kept)).tolist()


def test_trilu_drops_what_is_not_finite_too() -> None:
    x = np.full((2, 2), np.nan, np.float32)
    (out,) = run_op("Trilu", [x], opset=14)
    assert np.isnan(out).tolist() == [[True, True], [False, True]]
    assert out[1, 0] == 0


@pytest.mark.parametrize("k", [-4, -1, 0, 1, 9])
def test_eye_like_places_a_diagonal(k: int) -> None:
    check_op("EyeLike", [grid(3, 4)], opset=9, k=k)
    (out,) = run_op("EyeLike", [np.zeros((3, 2), np.int32)], opset=22, k=k, dtype=16)
    assert out.dtype == ml_dtypes.bfloat16
    assert out.astype(np.float32).tolist() == np.eye(3, 2, k).tolist()


def test_eye_like_declines_what_has_no_identity() -> None:
    with pytest.raises(KernelError, match="needs a matrix"):
        run_op("EyeLike", [grid(3)], opset=9)
    with pytest.raises(UnsupportedError, match="strings"):
        run_op("EyeLike", [grid(3, 3)], opset=9, dtype=8)


@pytest.mark.parametrize("shape", [(10, 7, 3), (20, 10, 3), (5, 11, 2), (10, 10, 0)])
def test_center_crop_pad_centres(shape: tuple[int, ...]) -> None:
    check_op("CenterCropPad", [grid(10, 8, 3), i64(*shape)], opset=18, use_ort=False)


def test_center_crop_pad_takes_some_axes() -> None:
    check_op("CenterCropPad", [grid(10, 8, 3), i64(5, 9)], opset=18, use_ort=False, axes=[-1, 0])
    with pytest.raises(KernelError, match="no extents for 1 axes"):
        run_op("CenterCropPad", [grid(10, 8), i64(5, 9)], opset=18, axes=[0])


@pytest.mark.parametrize(
    ("image", "block", "attributes"),
    [
        ((5, 5), (1, 5), {}),
        ((5, 6), (2, 3), {"strides": [2, 1]}),
        ((5, 5), (2, 2), {"pads": [0, 1, 0, 1], "strides": [2, 1]}),
        ((6, 6), (2, 2), {"dilations": [1, 5]}),
        ((4, 3, 3), (1, 2, 3), {"pads": [1, 1, 0, 1, 0, 0], "dilations": [1, 2, 1]}),
    ],
)
def test_col2im_sums_blocks_back(
    image: tuple[int, ...], block: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    rank = len(image)
    strides, dilations = attributes.get("strides", [1] * rank), attributes.get("dilations", [1] * rank)
    pads = attributes.get("pads", [0] * 2 * rank)
    counts = [
        (image[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    ]
    x = grid(2, 3 * math.prod(block), math.prod(counts))
    out = np.zeros((2, 3, *image), np.float32)
    columns = x.reshape(2, 3, *block, *counts)
    for tap in np.ndindex(*block):
        for at in np.ndindex(*counts):
            pixel = [at[i] * strides[i] + tap[i] * dilations[i] - pads[i] for i in range(rank)]
            if all(0 <= p < extent for p, extent in zip(pixel, image, strict=True)):
                out[(..., *pixel)] += columns[(slice(None), slice(None), *tap, *at)]
    (found,) = run_op("Col2Im", [x, i64(*image), i64(*block)], opset=18, **attributes)
    assert found.tolist() == out.tolist()


def test_col2im_refuses_columns_that_are_no_blocks() -> None:
    with pytest.raises(KernelError, match="are no blocks of"):
        run_op("Col2Im", [grid(1, 5, 4), i64(5, 5), i64(1, 5)], opset=18)
