"""Softmax, LogSoftmax and Hardmax in all their versions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import assert_close, check_op, run_op

RNG = np.random.default_rng(4)
ALL = ["Softmax", "LogSoftmax", "Hardmax"]


@pytest.mark.parametrize("op_type", ALL)
@pytest.mark.parametrize("opset", [7, 11, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_every_version_and_axis(op_type: str, opset: int, axis: int | None) -> None:
    if opset < 11 and axis == -1:
        axis = 2
    x = (RNG.standard_normal((3, 4, 5)) * 4).astype(np.float32)
    keywords: dict[str, Any] = {} if axis is None else {"axis": axis}
    (y,) = check_op(op_type, [x], opset=opset, **keywords)
    assert_close(run_op(op_type, [x.astype(np.float64)], opset=opset, **keywords), [y.astype(np.float64)])


@pytest.mark.parametrize("op_type", ALL)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_computed_in_float32(op_type: str, dtype: Any) -> None:
    x = (RNG.standard_normal((3, 50)) * 4).astype(dtype)
    (wide,) = run_op(op_type, [x.astype(np.float32)], opset=13)
    assert_close(run_op(op_type, [x], opset=13), [wide.astype(dtype)], rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1,), (2, 0, 4)])
@pytest.mark.parametrize("op_type", ALL)
def test_empty_extents(op_type: str, shape: tuple[int, ...]) -> None:
    for opset in (11, 13):
        (y,) = run_op(op_type, [np.zeros(shape, np.float32)], opset=opset)
        assert y.shape == shape


def test_rows_of_many_pieces() -> None:
    x = RNG.standard_normal((40, 3000)).astype(np.float32)
    check_op("Softmax", [x], opset=13)
    check_op("LogSoftmax", [x.reshape(40, 30, 100)], opset=13, axis=1, atol=1e-5)


def test_masked_and_infinite_rows_raise_no_warning() -> None:
    inf = np.inf
    x = np.array([[1, -inf, 2], [-inf, -inf, -inf], [inf, 0, 0], [np.nan, 0, 1]], np.float32)
    (y,) = run_op("Softmax", [x], opset=13)
    assert y[0, 1] == 0
    assert y[0].sum() == pytest.approx(1)
    assert np.isnan(y[1:]).any(axis=1).all()


def test_large_values_do_not_overflow() -> None:
    x = np.array([[1e4, 1e4 + 1], [-1e4, -1e4 - 1]], np.float32)
    check_op("Softmax", [x], opset=13)
    check_op("LogSoftmax", [x], opset=13)


def test_hardmax_chooses_the_first_of_equals() -> None:
    (y,) = run_op("Hardmax", [np.array([[1, 3, 3], [2, 2, 2]], np.float32)], opset=13)
    assert y.tolist() == [[0, 1, 0], [1, 0, 0]]


def test_a_strided_input_is_made_contiguous() -> None:
    check_op("Softmax", [RNG.standard_normal((4, 6)).astype(np.float32).T[::-1]], opset=13, axis=0)


def test_an_axis_out_of_range_is_an_error() -> None:
    with pytest.raises(KernelError, match="axis 3 is out of range"):
        run_op("Softmax", [np.zeros((2, 2), np.float32)], opset=13, axis=3)
