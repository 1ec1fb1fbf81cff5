"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from hetero.errors import KernelError, UnsupportedError
from hetero.types import DataType, onnx_dtype
from tests.kernels.harness import assert_close, check_op, node_model, run_op
from tests.kernels.peer import onnxruntime

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


EVERY = [row[0] for row in INTEGERS] + [row[0] for row in NARROW] + [ml_dtypes.float4_e2m1fn]
FORMS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "per tensor": ((), {}),
    "per axis": ((6,), {"axis": 1}),
    "per block": ((4, 3), {"axis": 1, "block_size": 2}),
}


def zeros_of(dtype: Any, *shape: int) -> Any:
    """Zero points: over the whole range of an integer, 0 of a float."""
    bounds = {np.dtype(d): (low, high) for d, low, high in INTEGERS}.get(np.dtype(dtype))
    drawn = RNG.integers(bounds[0], bounds[1] + 1, shape) if bounds else np.zeros(shape, np.float32)
    return np.asarray(drawn).astype(dtype)


def against_the_reference(op_type: str, inputs: list[Any], opset: int, **attributes: Any) -> None:
    model = node_model(op_type, inputs, opset=opset, **attributes)
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(model).run(None, {f"i{k}": x for k, x in enumerate(inputs)})
    assert_close(run_op(op_type, inputs, opset=opset, **attributes), expected, rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", EVERY)
def test_every_dtype_and_form_agrees_with_the_reference(dtype: Any, form: str) -> None:
    shape, attributes = FORMS[form]
    high = 30 if np.dtype(dtype).name.endswith(("int2", "int4", "e2m1fn")) else 400
    for real in (np.float32, np.float16, ml_dtypes.bfloat16):
        x = (RNG.standard_normal((4, 6)) * high).astype(real)
        scale, zero = np.asarray(RNG.uniform(0.5, 3, shape)).astype(real), zeros_of(dtype, *shape)
        against_the_reference("QuantizeLinear", [x, scale, zero], 25, **attributes)
        if np.dtype(dtype).name.startswith("float8"):
            against_the_reference("QuantizeLinear", [x, scale, zero], 25, saturate=0, **attributes)
        codes = zeros_of(dtype, 4, 6)
        if np.dtype(dtype).name.startswith("float"):
            codes = (RNG.standard_normal((4, 6)) * 2).astype(np.float32).astype(dtype)
        against_the_reference("DequantizeLinear", [codes, scale, zero], 25, **attributes)
        half = int(onnx_dtype(np.float16))
        against_the_reference("DequantizeLinear", [codes, scale], 25, output_dtype=half, **attributes)


@pytest.mark.parametrize("form", ["per tensor", "per block"])
@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.int4, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn])
def test_scales_that_are_powers_of_two_by_their_dtype(dtype: Any, form: str) -> None:
    shape, attributes = FORMS[form]
    scale = np.asarray(2.0 ** RNG.integers(-3, 3, shape)).astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)
    zero = zeros_of(dtype, *shape)
    x = (RNG.standard_normal((4, 6)) * 3).astype(np.float32)
    against_the_reference("QuantizeLinear", [x, scale, zero], 24, **attributes)
    (codes,) = run_op("QuantizeLinear", [x, scale, zero], opset=24, **attributes)
    single = int(onnx_dtype(np.float32))
    against_the_reference("DequantizeLinear", [codes, scale, zero], 24, output_dtype=single, **attributes)
    with pytest.raises(UnsupportedError, match="dequantizing to float8_e8m0fnu"):
        run_op("DequantizeLinear", [codes, scale, zero], opset=24, **attributes)


def test_a_whole_number_is_divided_by_a_whole_number_exactly() -> None:
    x = RNG.integers(-1000, 1000, (4, 6)).astype(np.int32)
    inputs = [x, np.asarray(7, np.int32), np.asarray(3, np.int8)]
    against_the_reference("QuantizeLinear", inputs, 23)
    big = np.array([2**31 - 1, -(2**31)], np.int32)
    (y,) = run_op("QuantizeLinear", [big, np.asarray(2**28 + 1, np.int32), np.asarray(0, np.int8)], opset=23)
    assert y.tolist() == [8, -8]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_the_contributed_operators_take_axes_at_once(dtype: Any) -> None:
    x = RNG.uniform(-1e3, 1e3, (4, 5)).astype(np.float32)
    for shape, attributes in (((), {}), ((5,), {"axis": 1}), ((4,), {"axis": 0})):
        scale, zero = np.asarray(RNG.uniform(0.1, 1, shape)).astype(np.float32), zeros_of(dtype, *shape)
        keywords: dict[str, Any] = {"opset": 1, "domain": "com.microsoft", **attributes}
        codes = run_op("QuantizeLinear", [x, scale, zero], **keywords)
        assert_close(codes, onnxruntime("QuantizeLinear", [x, scale, zero], **attributes))
        back = run_op("DequantizeLinear", [codes[0], scale, zero], **keywords)
        assert_close(back, onnxruntime("DequantizeLinear", [codes[0], scale, zero], **attributes))


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
def test_the_contributed_operators_know_four_bits(dtype: Any) -> None:
    codes, scale, zero = zeros_of(dtype, 4, 5), np.asarray(0.3, np.float32), zeros_of(dtype)
    keywords: dict[str, Any] = {"opset": 1, "domain": "com.microsoft"}
    back = run_op("DequantizeLinear", [codes, scale, zero], **keywords)
    assert_close(back, onnxruntime("DequantizeLinear", [codes, scale, zero], constant=(0, 2)))
    assert (run_op("QuantizeLinear", [back[0], scale, zero], **keywords)[0] == codes).all()


def test_one_image_is_worked_on_in_pieces() -> None:
    x = RNG.uniform(-5, 5, (1, 3, 300, 300)).astype(np.float32)
    check_op("QuantizeLinear", [x, np.asarray(0.1, np.float32), np.asarray(3, np.uint8)], opset=21)
