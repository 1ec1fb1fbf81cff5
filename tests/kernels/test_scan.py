"""CumSum and CumProd."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import assert_close, check_op, run_op

RNG = np.random.default_rng(6)


@pytest.mark.parametrize("op_type", ["CumSum", "CumProd"])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64])
def test_every_direction(op_type: str, exclusive: int, reverse: int, axis: int, dtype: Any) -> None:
    x = RNG.integers(1, 4, (3, 4, 2)).astype(dtype)
    check_op(
        op_type, [x, np.array(axis, np.int64)], opset=26 if op_type == "CumProd" else 14, exclusive=exclusive,
        reverse=reverse,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_adds_in_float32(dtype: Any) -> None:
    x = np.full(600, 0.25, np.float32).astype(dtype)
    (y,) = run_op("CumSum", [x, np.array([0], np.int32)], opset=14)
    assert y[-1] == dtype(150)


def test_strided_and_empty_inputs() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4).T[::-1]
    assert_close(run_op("CumSum", [x, np.array(0)], opset=14), [np.cumsum(x, 0)])
    for exclusive in (0, 1):
        assert run_op("CumSum", [x[:0], np.array(0)], opset=14, exclusive=exclusive)[0].shape == (0, 3)


def test_an_axis_out_of_range_is_an_error() -> None:
    with pytest.raises(KernelError, match="out of range"):
        run_op("CumSum", [np.zeros(3, np.float32), np.array(1)], opset=14)
