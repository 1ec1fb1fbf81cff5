"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from hetero.types import DataType
from tests.kernels.harness import assert_close, check_op, run_op

RNG = np.random.default_rng(14)
INTEGERS: list[tuple[Any, int, int]] = [
    (np.uint8, 0, 255), (np.int8, -128, 127), (np.uint16, 0, 65535), (np.int16, -32768, 32767),
    (ml_dtypes.int4, -8, 7), (ml_dtypes.uint4, 0, 15), (ml_dtypes.int2, -2, 1), (ml_dtypes.uint2, 0, 3),
]  # fmt: skip
NARROW: list[tuple[Any, float]] = [
    (ml_dtypes.float8_e4m3fn, 448), (ml_dtypes.float8_e4m3fnuz, 240), (ml_dtypes.float8_e5m2, 57344),
    (ml_dtypes.float8_e5m2fnuz, 57344),
]  # fmt: skip


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("opset", [10, 13, 19, 21])
def test_per_tensor(dtype: Any, opset: int) -> None:
    x = np.concatenate([RNG.uniform(-300, 300, 200), [0.5, 1.5, 2.5, -0.5, 1e9, -1e9]]).astype(np.float32)
    scale, zero = np.array(1.0, np.float32), np.array(3, dtype)
    (y,) = check_op("QuantizeLinear", [x, scale, zero], opset=opset)
    check_op("DequantizeLinear", [y, scale, zero], opset=opset)
    if dtype == np.uint8:
        check_op("QuantizeLinear", [x, scale], opset=opset)


@pytest.mark.parametrize(("dtype", "low", "high"), INTEGERS)
def test_every_integer_dtype_saturates_at_its_bounds(dtype: Any, low: int, high: int) -> None:
    x, zero = f32(-1e6, 1e6, 0, 1), np.array(0).astype(dtype)
    (y,) = run_op("QuantizeLinear", [x, np.array(1, np.float32), zero], opset=25)
    assert y.dtype == zero.dtype
    assert y.astype(np.int32).tolist() == [low, high, 0, 1]
    back = run_op("DequantizeLinear", [y, np.array(0.5, np.float32), zero], opset=25)
    assert_close(back, [f32(low * 0.5, high * 0.5, 0, 0.5)])


@pytest.mark.parametrize(("dtype", "largest"), NARROW)
def test_narrow_floats_saturate(dtype: Any, largest: float) -> None:
    x, zero = f32(1e6, -1e6, 1, 0), np.array(0, np.float32).astype(dtype)
    (y,) = run_op("QuantizeLinear", [x, np.array(2, np.float32), zero], opset=19)
    assert y.astype(np.float32).tolist() == [largest, -largest, 0.5, 0]
    (loose,) = run_op("QuantizeLinear", [x, np.array(2, np.float32), zero], opset=19, saturate=0)
    assert not np.isfinite(loose[:2].astype(np.float32)).any()
    assert_close(run_op("DequantizeLinear", [y[2:], np.array(2, np.float32)], opset=19), [f32(1, 0)])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("with_zero", [True, False])
def test_per_axis(axis: int, with_zero: bool) -> None:
    x = RNG.uniform(-50, 50, (3, 4, 5)).astype(np.float32)
    n = x.shape[axis]
    inputs: list[Any] = [x, RNG.uniform(0.2, 2, (n,)).astype(np.float32)]
    if with_zero:
        inputs.append(RNG.integers(0, 200, n).astype(np.uint8))
    (y,) = check_op("QuantizeLinear", inputs, opset=13, axis=axis)
    check_op("DequantizeLinear", [y, *inputs[1:]], opset=13, axis=axis, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("block", [1, 2, 3, 7])
def test_blocks_with_and_without_a_rest(axis: int, block: int) -> None:
    x = RNG.uniform(-50, 50, (4, 5, 6)).astype(np.float32)
    shape = list(x.shape)
    shape[axis] = -(-shape[axis] // block)
    scale = RNG.uniform(0.5, 2, shape).astype(np.float32)
    zero = RNG.integers(0, 9, shape).astype(np.int8)
    spread: list[Any] = [np.repeat(a, block, axis).take(range(x.shape[axis]), axis) for a in (scale, zero)]
    expected: Any = np.clip(np.rint(x / spread[0]) + spread[1], -128, 127).astype(np.int8)
    (y,) = run_op("QuantizeLinear", [x, scale, zero], opset=21, axis=axis, block_size=block)
    assert_close([y], [expected])
    real: Any = (expected.astype(np.float32) - spread[1]) * spread[0]
    assert_close(run_op("DequantizeLinear", [y, scale, zero], opset=21, axis=axis, block_size=block), [real])


@pytest.mark.parametrize("scale_dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_scale_decides_the_precision_of_the_division(scale_dtype: Any) -> None:
    x: Any = RNG.uniform(-20, 20, (3, 40)).astype(scale_dtype)
    scale: Any = np.array(0.3, np.float32).astype(scale_dtype)
    (y,) = run_op("QuantizeLinear", [x, scale, np.array(2, np.int8)], opset=21)
    quotient: Any = np.rint(x / scale)
    assert_close([y], [np.clip(quotient.astype(np.float32) + 2, -128, 127).astype(np.int8)])
    (back,) = run_op("DequantizeLinear", [y, scale, np.array(2, np.int8)], opset=21)
    assert back.dtype == scale.dtype
    wide = run_op("QuantizeLinear", [x, scale], opset=23, precision=int(DataType.FLOAT))
    assert_close(
        wide, [np.clip(np.rint(x.astype(np.float32) / scale.astype(np.float32)), 0, 255).astype(np.uint8)]
    )


def test_output_dtypes_by_attribute() -> None:
    x, scale = f32(1, 2, 300), np.array(1, np.float32)
    assert (
        run_op("QuantizeLinear", [x, scale], opset=21, output_dtype=int(DataType.INT16))[0].dtype == np.int16
    )
    y = run_op(
        "DequantizeLinear", [np.array([1], np.int8), scale], opset=23, output_dtype=int(DataType.FLOAT16)
    )
    assert y[0].dtype == np.float16


def test_int32_is_quantized_and_dequantized() -> None:
    x = np.array([5, -5, 100000], np.int32)
    assert_close(
        run_op("QuantizeLinear", [x, np.array(2, np.float32)], opset=13), [np.array([2, 0, 255], np.uint8)]
    )
    check_op("DequantizeLinear", [x, np.array(0.5, np.float32)], opset=13)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (300, 400)])
def test_any_number_of_elements(shape: tuple[int, ...]) -> None:
    x = RNG.uniform(-5, 5, shape).astype(np.float32)
    scale = np.array(0.1, np.float32)
    assert_close(
        run_op("QuantizeLinear", [x, scale], opset=13), [np.clip(np.rint(x / scale), 0, 255).astype(np.uint8)]
    )
    assert run_op("DequantizeLinear", [x.astype(np.int8), scale], opset=13)[0].shape == shape


def test_strided_input() -> None:
    x = RNG.uniform(-5, 5, (6, 8)).astype(np.float32).T[::-2]
    scale = RNG.uniform(0.1, 1, 6).astype(np.float32)
    assert_close(
        run_op("QuantizeLinear", [x, scale, np.zeros(6, np.int8)], opset=13, axis=1),
        [np.clip(np.rint(x / scale), -128, 127).astype(np.int8)],
    )


@pytest.mark.parametrize(
    "x",
    [[0, 2, -3, -2.5, 1.34, 0.5], [-1.0, -2.1, -1.3], [1, 2.1, 1.3, 2.5], [0, 0], [5]],
)
def test_dynamic_quantization(x: list[float]) -> None:
    check_op("DynamicQuantizeLinear", [f32(*x)], opset=11, n_outputs=3)


def test_dynamic_quantization_of_nothing() -> None:
    y, scale, zero = run_op("DynamicQuantizeLinear", [np.zeros((0, 2), np.float32)], opset=11, n_outputs=3)
    assert (y.shape, float(scale), int(zero)) == ((0, 2), 1.0, 0)


def test_operands_that_do_not_fit_are_errors() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(KernelError, match="must be a scalar"):
        run_op("QuantizeLinear", [x, np.ones(3, np.float32)], opset=10)
    with pytest.raises(KernelError, match="for axis 1"):
        run_op("QuantizeLinear", [x, np.ones(2, np.float32)], opset=13)
    with pytest.raises(KernelError, match="blocks of 2 need"):
        run_op("QuantizeLinear", [x, np.ones((2, 3), np.float32)], opset=21, block_size=2)
    with pytest.raises(KernelError, match="zero point is int8, x is uint8"):
        run_op(
            "DequantizeLinear",
            [x.astype(np.uint8), np.float32(1).reshape(()), np.array(0, np.int8)],
            opset=13,
        )
    with pytest.raises(UnsupportedError, match="quantizing to int32"):
        run_op("QuantizeLinear", [x, np.array(1, np.float32), np.array(0, np.int32)], opset=13)
