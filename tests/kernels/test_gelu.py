"""Gelu, and the com.microsoft Gelus with a bias."""

from __future__ import annotations

from math import erf, sqrt
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import check_op, run_op

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_gelu_matches(approximate: str, dtype: Any) -> None:
    x = (RNG.standard_normal((4, 33)) * 3).astype(dtype)
    tolerance = 2e-3 if dtype == np.float16 else 1e-5
    check_op("Gelu", [x], opset=20, approximate=approximate, rtol=tolerance, atol=tolerance / 5)


def test_gelu_is_exact_where_float64_allows() -> None:
    x = np.linspace(-6, 6, 2001)
    (y,) = run_op("Gelu", [x], opset=20)
    assert np.abs(y - [v / 2 * (1 + erf(v / sqrt(2))) for v in x]).max() < 2e-15


def test_gelu_of_bfloat16_rounds_once() -> None:
    x = RNG.standard_normal(100).astype(ml_dtypes.bfloat16)
    (wide,) = run_op("Gelu", [x.astype(np.float32)], opset=20)
    (y,) = run_op("Gelu", [x], opset=20)
    assert y.tobytes() == wide.astype(x.dtype).tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_gelu_of_a_large_negative_number_is_zero(dtype: Any) -> None:
    x = np.array([-10, -1000, np.finfo(dtype).min]).astype(dtype)
    assert not run_op("Gelu", [x], opset=20)[0].any()


@pytest.mark.parametrize("shape", [(0, 4), (2, 3, 4)])
@pytest.mark.parametrize("op_type", ["Gelu", "BiasGelu", "FastGelu"])
def test_microsoft_gelus(op_type: str, shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    inputs = [x] if op_type == "Gelu" else [x, RNG.standard_normal(4).astype(np.float32)]
    check_op(op_type, inputs, opset=1, domain="com.microsoft", atol=2e-5)


def test_fast_gelu_needs_no_bias() -> None:
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    check_op("FastGelu", [x], opset=1, domain="com.microsoft", atol=2e-5)


def test_a_bias_of_another_length_is_an_error() -> None:
    with pytest.raises(KernelError, match="has shape"):
        run_op(
            "BiasGelu",
            [np.zeros((2, 4), np.float32), np.zeros(3, np.float32)],
            opset=1,
            domain="com.microsoft",
        )
