"""Global pools against onnxruntime, in every float and for strided, empty and one-element planes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import check_op, compile_op, run_op

OPS = ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"]
RNG = np.random.default_rng(23)


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 5, 6), (1, 2, 3, 4, 5), (2, 3, 1, 1)], ids=str)
def test_global_pools_agree_with_onnxruntime(op_type: str, shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    (y,) = check_op(op_type, [x], opset=7, rtol=1e-5, atol=1e-6)
    (newer,) = run_op(op_type, [x], opset=22)
    assert (y == newer).all()
    (none,) = run_op(op_type, [x[:0]], opset=22)
    assert none.shape == (0, *y.shape[1:])


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_floats_and_strides(op_type: str, dtype: Any) -> None:
    x = RNG.standard_normal((2, 5, 4, 3)).astype(dtype).transpose(0, 3, 1, 2)
    (y,) = run_op(op_type, [x], opset=22)
    (wide,) = run_op(op_type, [x.astype(np.float32)], opset=22)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, wide, rtol=2e-3 if dtype == np.float16 else 1e-6, atol=1e-3)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_the_norm_has_the_order_it_is_given(p: int) -> None:
    x = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
    (y,) = run_op("GlobalLpPool", [x], opset=22, p=p)
    np.testing.assert_allclose(y[..., 0, 0], np.linalg.norm(x.reshape(2, 3, -1), p, axis=-1), rtol=1e-5)


@pytest.mark.parametrize("op_type", OPS)
def test_planes_without_elements_and_integers_are_refused(op_type: str) -> None:
    with pytest.raises(KernelError, match="no element"):
        compile_op(op_type, [np.zeros((1, 2, 0, 3), np.float32)], opset=22)
    with pytest.raises(UnsupportedError, match="int32"):
        compile_op(op_type, [np.zeros((1, 2, 3), np.int32)], opset=22)
