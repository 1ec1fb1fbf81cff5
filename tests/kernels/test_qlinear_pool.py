"""Pools and means of bytes in com.microsoft: the very bytes of onnxruntime, in both layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import compile_op, run_op
from tests.kernels.peer import onnxruntime
from tests.kernels.quantities import Quantities

Q = Quantities(33)
MS: dict[str, Any] = {"opset": 1, "domain": "com.microsoft"}
BYTES = pytest.mark.parametrize("dtype", [np.uint8, np.int8])
LAYOUTS = pytest.mark.parametrize("last", [0, 1], ids=["channels first", "channels last"])


def check(op_type: str, inputs: list[Any], **attributes: Any) -> None:
    (y,) = run_op(op_type, inputs, **attributes, **MS)
    (expected,) = onnxruntime(op_type, inputs, **attributes)
    assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
    assert (y == expected).all()


@BYTES
@LAYOUTS
@pytest.mark.parametrize("shape", [(2, 5, 7, 6), (1, 3, 9), (2, 4, 3, 5, 2), (4, 33, 20, 20)], ids=str)
def test_global_average(shape: tuple[int, ...], last: int, dtype: Any) -> None:
    for _ in range(3):
        inputs = [Q.integers(dtype, *shape), *Q.pair(dtype), *Q.pair(dtype)]
        check("QLinearGlobalAveragePool", inputs, channels_last=last)


@BYTES
@LAYOUTS
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 3]},
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 1, 0, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1, "pads": [1] * 4},
    ],
    ids=["plain", "pads", "pads count", "ceil", "same", "pads count, ceil"],
)
def test_average_of_windows(attributes: dict[str, Any], last: int, dtype: Any) -> None:
    for _ in range(3):
        inputs = [Q.integers(dtype, 2, 7, 7, 7), *Q.pair(dtype), *Q.pair(dtype)]
        check("QLinearAveragePool", inputs, channels_last=last, **attributes)


@LAYOUTS
def test_average_of_one_and_three_axes(last: int) -> None:
    for extents, kernel in (((7,), [3]), ((5, 4, 6), [2, 3, 2])):
        shape = (2, *extents, 5) if last else (2, 5, *extents)
        inputs = [Q.integers(np.uint8, *shape), *Q.pair(np.uint8), *Q.pair(np.uint8)]
        check("QLinearAveragePool", inputs, channels_last=last, kernel_shape=kernel)


@BYTES
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[0], [1, -1], [0, 1, 2]])
def test_the_mean_over_axes(axes: list[int], keepdims: int, dtype: Any) -> None:
    # onnxruntime declares the operator and has no kernel: the expected levels come from exact sums.
    x, (scale, zero), (to, shift) = Q.integers(dtype, 3, 4, 5), Q.pair(dtype), Q.pair(dtype)
    (y,) = run_op("QLinearReduceMean", [x, scale, zero, to, shift], axes=axes, keepdims=keepdims, **MS)
    mean = (x.astype(np.float64) - float(zero)).mean(tuple(axes), keepdims=bool(keepdims)) * float(scale)
    limits = np.iinfo(dtype)
    expected = np.clip(np.rint(mean / float(to)) + float(shift), limits.min, limits.max)
    assert (y.dtype, y.shape) == (x.dtype, expected.shape)
    assert (y == expected).all()
    (bare,) = run_op("QLinearReduceMean", [x, scale, None, to], axes=axes, keepdims=keepdims, **MS)
    plain = x.astype(np.float64).mean(tuple(axes), keepdims=bool(keepdims)) * float(scale) / float(to)
    assert (bare == np.clip(np.rint(plain), limits.min, limits.max)).all()


@BYTES
def test_largest_of_windows_with_channels_last(dtype: Any) -> None:
    attributes = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [1, 2]}
    check("NhwcMaxPool", [Q.integers(dtype, 2, 7, 6, 5)], **attributes)


def test_operands_that_make_no_sense_are_errors() -> None:
    pairs = [*Q.pair(np.uint8), *Q.pair(np.uint8)]
    with pytest.raises(KernelError, match="a mean over axes"):
        compile_op("QLinearGlobalAveragePool", [np.zeros((1, 2, 0), np.uint8), *pairs], **MS)
    with pytest.raises(KernelError, match="kernel_shape"):
        compile_op("QLinearAveragePool", [Q.integers(np.uint8, 1, 2, 3), *pairs], **MS)
    with pytest.raises(KernelError, match="no spatial axis"):
        compile_op("QLinearAveragePool", [Q.integers(np.uint8, 2, 3), *pairs], kernel_shape=[1], **MS)
    with pytest.raises(UnsupportedError, match="float32"):
        compile_op("NhwcMaxPool", [Q.normal(1, 3, 3, 2)], kernel_shape=[2, 2], **MS)
