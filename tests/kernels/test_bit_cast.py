"""BitCast."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from hetero.errors import KernelError
from tests.kernels.harness import run_op


@pytest.mark.parametrize(
    ("x", "to", "dtype"),
    [
        (np.array([[1.0, -0.0], [np.nan, np.inf]], np.float32), TensorProto.INT32, np.int32),
        (np.array([1, -1], np.int64), TensorProto.DOUBLE, np.float64),
        (np.array([0x3C00, 0xFFFF], np.uint16), TensorProto.FLOAT16, np.float16),
        (np.array(7, np.int8), TensorProto.UINT8, np.uint8),
        (np.array([True, False]), TensorProto.UINT8, np.uint8),
    ],
)
def test_the_bits_stay_and_the_dtype_changes(x: np.ndarray, to: int, dtype: type) -> None:
    (found,) = run_op("BitCast", [x], opset=26, to=to)
    assert found.dtype == dtype
    assert found.shape == x.shape
    assert found.tobytes() == x.tobytes()


def test_strided_bits_are_cast_too() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4).T
    (found,) = run_op("BitCast", [x], opset=26, to=TensorProto.INT32)
    np.testing.assert_array_equal(found.view(np.float32), x)


@pytest.mark.parametrize("to", [TensorProto.INT64, TensorProto.STRING, 99])
def test_another_width_is_an_error(to: int) -> None:
    with pytest.raises(KernelError):
        run_op("BitCast", [np.zeros(2, np.float32)], opset=26, to=to)
