"""Activations against onnxruntime and onnx.reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError
from hetero.kernels.fused import PIECE_BYTES
from tests.kernels.harness import assert_close, check_op, run_op

RNG = np.random.default_rng(2)
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("Relu", 14, {}), ("LeakyRelu", 16, {}), ("LeakyRelu", 16, {"alpha": 2.0}), ("LeakyRelu", 16, {"alpha": -1.0}),
    ("LeakyRelu", 16, {"alpha": 0.0}), ("Sigmoid", 13, {}), ("HardSigmoid", 6, {}),
    ("HardSigmoid", 6, {"alpha": 0.5, "beta": 0.3}), ("Elu", 6, {}), ("Elu", 6, {"alpha": 2.0}), ("Selu", 6, {}),
    ("Selu", 6, {"alpha": 2.0, "gamma": 3.0}), ("Celu", 12, {}), ("Celu", 12, {"alpha": 2.0}),
    ("ThresholdedRelu", 10, {}), ("ThresholdedRelu", 10, {"alpha": -0.5}), ("Softplus", 1, {}), ("Softsign", 1, {}),
    ("HardSwish", 14, {}), ("Mish", 18, {}), ("Shrink", 9, {}), ("Shrink", 9, {"lambd": 1.0, "bias": 0.5}),
    ("Swish", 24, {}), ("Swish", 24, {"alpha": 0.5}),
]  # fmt: skip
NAMES = [f"{op}{''.join(f' {k}={v}' for k, v in a.items())}" for op, _, a in CASES]


@pytest.mark.parametrize(("op_type", "opset", "attributes"), CASES, ids=NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_activations_match(op_type: str, opset: int, attributes: dict[str, Any], dtype: Any) -> None:
    x = (RNG.standard_normal((5, 9)) * 3).astype(dtype)
    tolerance = 2e-3 if dtype == np.float16 else 1e-5
    check_op(op_type, [x], opset=opset, rtol=tolerance, atol=tolerance / 10, **attributes)


@pytest.mark.parametrize(("op_type", "opset", "attributes"), CASES, ids=NAMES)
def test_activations_of_bfloat16_are_those_of_float32_rounded(
    op_type: str, opset: int, attributes: dict[str, Any]
) -> None:
    opset = 24 if op_type == "Swish" else 22
    x = (RNG.standard_normal(50) * 3).astype(ml_dtypes.bfloat16)
    wide = run_op(op_type, [x.astype(np.float32)], opset=opset, **attributes)
    assert_close(run_op(op_type, [x], opset=opset, **attributes), [wide[0].astype(x.dtype)])


@pytest.mark.parametrize(("op_type", "opset", "attributes"), CASES, ids=NAMES)
def test_extreme_operands_raise_no_warning(op_type: str, opset: int, attributes: dict[str, Any]) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e38, -1e38, 200, -200, 0, -0.0], np.float32)
    (y,) = run_op(op_type, [x], opset=opset, **attributes)
    assert y.shape == x.shape
    if op_type not in ("ThresholdedRelu", "Shrink"):
        assert np.isnan(y[0])
    if op_type in ("Elu", "Selu", "Celu", "LeakyRelu", "Relu", "Softplus"):
        assert y[1] == np.inf


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
@pytest.mark.parametrize("op_type", ["Relu", "Sigmoid", "Elu", "Softplus"])
def test_scalars_and_empty_tensors(op_type: str, shape: tuple[int, ...]) -> None:
    check_op(op_type, [np.full(shape, -0.5, np.float32)], opset=14)


def test_more_than_one_piece_and_strided_operands() -> None:
    x = RNG.standard_normal((PIECE_BYTES // 4 + 5, 3)).astype(np.float32)
    check_op("Mish", [x], opset=18)
    check_op("Sigmoid", [x.T[::2]], opset=13)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_relu_of_integers(dtype: Any) -> None:
    assert_close(run_op("Relu", [np.array([-5, 0, 5], dtype)], opset=14), [np.array([0, 0, 5], dtype)])


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_shrink_of_integers(dtype: Any) -> None:
    x = np.array([0, 1, 2, 9], dtype)
    assert_close(run_op("Shrink", [x], opset=9, lambd=1.5, bias=1.5), [np.array([0, 0, 0, 7], dtype)])


def test_softplus_keeps_small_results() -> None:
    (y,) = run_op("Softplus", [np.array([-30.0], np.float32)], opset=1)
    assert y[0] == pytest.approx(np.exp(-30.0), rel=1e-5)


def test_celu_of_alpha_zero_is_an_error() -> None:
    with pytest.raises(KernelError, match="must not be 0"):
        run_op("Celu", [np.zeros(2, np.float32)], opset=12, alpha=0.0)


def test_quick_gelu() -> None:
    check_op("QuickGelu", [RNG.standard_normal((3, 4)).astype(np.float32)], opset=1, domain="com.microsoft")


@pytest.mark.parametrize("slope", [(1,), (4,), (3, 1), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_prelu_broadcasts_its_slope(slope: tuple[int, ...], dtype: Any) -> None:
    x = (RNG.standard_normal((2, 3, 4)) * 4).astype(dtype)
    assert_close(
        run_op("PRelu", [x, s := (RNG.standard_normal(slope) * 3).astype(dtype)], opset=16),
        [np.where(x < 0, x * s, x)],
    )


def test_prelu_leaves_infinity_and_takes_half_precision() -> None:
    x = np.array([np.inf, -np.inf, np.nan, -1], np.float16)
    assert_close(
        run_op("PRelu", [x, np.array([0], np.float16)], opset=16),
        [np.array([np.inf, np.nan, np.nan, 0], np.float16)],
    )


def test_a_slope_that_is_too_large_is_an_error() -> None:
    with pytest.raises(KernelError, match="does not broadcast"):
        run_op("PRelu", [np.zeros(2, np.float32), np.zeros((3, 2), np.float32)], opset=16)


def test_prelu_of_infinities_is_what_the_definition_says() -> None:
    x = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, -2, 3], np.float32)
    (y,) = run_op("PRelu", [x, np.array([np.inf], np.float32)], opset=16)
    np.testing.assert_array_equal(y, [np.inf, -np.inf, np.nan, -0.0, 0.0, -np.inf, 3])
    assert np.signbit(y[3])
    (y,) = run_op("PRelu", [x, np.array([0], np.float32)], opset=16)
    np.testing.assert_array_equal(y, [np.inf, np.nan, np.nan, -0.0, 0.0, 0.0, 3])
