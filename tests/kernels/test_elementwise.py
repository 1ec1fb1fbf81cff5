"""Unary, binary and variadic ufunc operators against onnxruntime and onnx.reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import lookup
from hetero.kernels.quiet import Quiet, bare
from hetero.types import SequenceValue
from tests.kernels.harness import assert_close, check_op, compile_op, run_op

RNG = np.random.default_rng(0)
ODD = np.array([0.0, -0.0, 1.5, -2.5, 0.5, 2.5, np.inf, -np.inf, np.nan, 1e-30, 3e38, -3e38], np.float32)

DOMAINS = {
    "Log": (0.01, 5), "Sqrt": (0, 5), "Acosh": (1, 9), "Asin": (-1, 1), "Acos": (-1, 1), "Atanh": (-0.99, 0.99),
}  # fmt: skip
UNARY = {
    "Abs": 13, "Neg": 13, "Sign": 13, "Reciprocal": 13, "Sqrt": 13, "Exp": 13, "Log": 13, "Floor": 13, "Ceil": 13,
    "Round": 11, "Sin": 7, "Cos": 7, "Tan": 7, "Asin": 7, "Acos": 7, "Atan": 7, "Sinh": 9, "Cosh": 9, "Tanh": 13,
    "Asinh": 9, "Acosh": 9, "Atanh": 9, "Erf": 13,
}  # fmt: skip


def sample(op_type: str, shape: tuple[int, ...], dtype: Any) -> Any:
    low, high = DOMAINS.get(op_type, (-3, 3))
    return RNG.uniform(low, high, shape).astype(dtype)


@pytest.mark.parametrize("op_type", UNARY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unary_operators_match(op_type: str, dtype: Any) -> None:
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    check_op(op_type, [sample(op_type, (3, 7), dtype)], opset=UNARY[op_type], rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("op_type", UNARY)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_unary_operators_of_half_precision_round_once(op_type: str, dtype: Any) -> None:
    x = sample(op_type, (40,), np.float32).astype(dtype)
    (wide,) = run_op(op_type, [x.astype(np.float64)], opset=22)
    (y,) = run_op(op_type, [x], opset=22)
    assert y.dtype == dtype
    step = 2**-10 if dtype == np.float16 else 2**-7
    np.testing.assert_allclose(y.astype(np.float64), wide, rtol=step, atol=step)


@pytest.mark.parametrize("op_type", UNARY)
def test_infinities_and_nans_raise_no_warning(op_type: str) -> None:
    (y,) = run_op(op_type, [ODD], opset=22)
    assert np.isnan(y[8])


@pytest.mark.parametrize("op_type", ["Abs", "Neg", "Sign"])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_unary_operators_of_integers(op_type: str, dtype: Any) -> None:
    check_op(op_type, [np.array([0, -5, 7, 127, -128], dtype)], opset=13)


def test_erf_is_accurate_to_the_last_digits() -> None:
    from math import erf

    x = np.concatenate([np.linspace(-7, 7, 40001), np.logspace(-30, 0, 1000)])
    exact = np.array([erf(v) for v in x])
    (y,) = run_op("Erf", [x], opset=13)
    assert np.abs(y - exact).max() < 1e-15
    single = x.astype(np.float32)
    (y32,) = run_op("Erf", [single], opset=13)
    assert np.abs(y32 - np.array([erf(v) for v in single])).max() < 1e-6
    far = np.array([4, -4, 100, -3e38, np.inf, -np.inf], np.float32)
    assert run_op("Erf", [far], opset=13)[0].tolist() == [1, -1, 1, -1, 1, -1]
    assert_close(run_op("Erf", [ODD[6:9]], opset=13), [np.array([1, -1, np.nan], np.float32)])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_empty_and_scalar_tensors(shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    check_op("Erf", [x], opset=13)
    check_op("Exp", [x], opset=13)
    check_op("Add", [x, x], opset=14)


BINARY = ["Add", "Sub", "Mul"]


@pytest.mark.parametrize("op_type", BINARY)
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8, np.int8, ml_dtypes.bfloat16]
)
def test_binary_arithmetic_of_every_dtype(op_type: str, dtype: Any) -> None:
    a, b = (RNG.uniform(0, 9, s).astype(dtype) for s in ((2, 1, 4), (3, 1)))
    check_op(op_type, [a, b], opset=14, rtol=1e-2 if dtype == ml_dtypes.bfloat16 else 1e-3)


@pytest.mark.parametrize("op_type", BINARY)
def test_overflow_is_an_infinity_and_no_warning(op_type: str) -> None:
    (y,) = run_op(op_type, [ODD, ODD[::-1]], opset=14)
    assert y.shape == ODD.shape


@given(
    hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=3, min_side=0),
    st.sampled_from(["Add", "Mul", "Less", "Max"]),
)
@settings(max_examples=60, deadline=None)
def test_broadcasting_follows_numpy(shapes: Any, op_type: str) -> None:
    a, b = (np.arange(np.prod(s), dtype=np.float32).reshape(s) + 1 for s in shapes.input_shapes)
    function = {"Add": np.add, "Mul": np.multiply, "Less": np.less, "Max": np.maximum}[op_type]
    assert_close(run_op(op_type, [a, b], opset=13), [function(a, b)])


def test_strided_operands_are_read_as_they_lie() -> None:
    base = RNG.standard_normal((6, 8)).astype(np.float32)
    a, b = base.T[::2, ::-1], np.broadcast_to(base[0, :6], (4, 6))
    assert_close(run_op("Sub", [a, b], opset=14), [a - b])
    assert_close(run_op("Tanh", [a], opset=13), [np.tanh(a)])
    (y,) = run_op("Erf", [a], opset=13)
    assert y.shape == a.shape


def test_one_array_as_both_operands_may_be_overwritten() -> None:
    x = RNG.standard_normal(5).astype(np.float32)
    assert_close(run_op("Mul", [x, x], opset=14), [x * x])


@pytest.mark.parametrize("op_type", ["And", "Or", "Xor"])
def test_logic(op_type: str) -> None:
    a, b = np.array([[True, False, True]]), np.array([[True], [False]])
    check_op(op_type, [a, b], opset=7)
    check_op("Not", [a], opset=13)


@pytest.mark.parametrize("op_type", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_bitwise_logic(op_type: str, dtype: Any) -> None:
    a, b = np.array([1, 6, 100], dtype), np.array([[3], [5]], dtype)
    check_op(op_type, [a, b], opset=18)
    check_op("BitwiseNot", [a], opset=18)


def test_shifts_past_the_width_leave_zero_or_the_sign() -> None:
    x = np.array([1, 255, 8, 7], np.uint8)
    y = np.array([1, 2, 8, 200], np.uint8)
    left = run_op("BitShift", [x, y], opset=11, direction="LEFT")
    right = run_op("BitShift", [x, y], opset=11, direction="RIGHT")
    assert_close(left, [np.array([2, 252, 0, 0], np.uint8)])
    assert_close(right, [np.array([0, 63, 0, 0], np.uint8)])
    signed = run_op(
        "BitShift",
        [np.array([-8, -8, 8], np.int32), np.array([1, 40, -1], np.int32)],
        opset=28,
        direction="RIGHT",
    )
    assert_close(signed, [np.array([-4, -1, 0], np.int32)])


@pytest.mark.parametrize("op_type", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.float64])
def test_comparisons(op_type: str, dtype: Any) -> None:
    a, b = np.array([[1], [2], [3]], dtype), np.array([1, 2, 3], dtype)
    (y,) = check_op(op_type, [a, b], opset=16)
    assert y.dtype == bool


def test_nan_compares_false() -> None:
    for op_type in ("Equal", "Less", "GreaterOrEqual"):
        assert_close(run_op(op_type, [ODD[8:9], ODD[8:9]], opset=16), [np.array([False])])


def test_equal_takes_bool_and_strings() -> None:
    assert_close(
        run_op("Equal", [np.array([True, False]), np.array([True])], opset=13), [np.array([True, False])]
    )
    texts = np.array(["a", "b"], object)
    assert_close(run_op("Equal", [texts, np.array("b", object)], opset=19), [np.array([False, True])])


@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_variadic_operators_broadcast(op_type: str, count: int, dtype: Any) -> None:
    inputs = [RNG.standard_normal(s).astype(dtype) for s in ((2, 3, 4), (3, 1), (4,))][:count]
    check_op(op_type, inputs, opset=13, rtol=2e-3 if dtype == np.float16 else 1e-5, atol=1e-3)


def test_a_repeated_operand_of_a_sum_is_not_overwritten() -> None:
    x, y = np.full(3, 1, np.float32), np.full(3, 5, np.float32)
    assert_close(run_op("Sum", [x, y, x], opset=13), [np.full(3, 7, np.float32)])
    _, compiled = compile_op("Sum", [x, y, x], opset=13)
    assert not compiled.overwrites


def test_max_propagates_nan() -> None:
    (y,) = check_op("Max", [ODD, np.zeros_like(ODD)], opset=13)
    assert np.isnan(y[8])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_is_nan_and_is_inf(dtype: Any) -> None:
    x = np.array([1, np.nan, np.inf, -np.inf], np.float32).astype(dtype)
    assert_close(run_op("IsNaN", [x], opset=20), [np.array([False, True, False, False])])
    assert_close(run_op("IsInf", [x], opset=20), [np.array([False, False, True, True])])
    assert_close(run_op("IsInf", [x], opset=20, detect_negative=0), [np.array([False, False, True, False])])
    assert_close(run_op("IsInf", [x], opset=20, detect_positive=0), [np.array([False, False, False, True])])
    nothing = run_op("IsInf", [x], opset=20, detect_positive=0, detect_negative=0)
    assert_close(nothing, [np.zeros(4, bool)])


def test_identity_is_a_view_of_a_tensor_and_hands_a_sequence_on() -> None:
    x = np.arange(4)[::-1]
    assert_close(run_op("Identity", [x], opset=16), [x])
    _, compiled = compile_op("Identity", [x], opset=16)
    assert compiled.view is not None
    viewed = compiled.view([x])
    assert viewed is not None
    assert viewed[0] is x
    sequence = SequenceValue([x])
    assert run_op("Identity", [sequence], opset=16)[0] is sequence


def test_operands_that_do_not_fit_are_named() -> None:
    with pytest.raises(KernelError, match=r"\[2\], \[3\] do not broadcast"):
        run_op("Add", [np.zeros(2, np.float32), np.zeros(3, np.float32)], opset=14)
    with pytest.raises(KernelError, match="differ in dtype: float32, float64"):
        run_op("Add", [np.zeros(2, np.float32), np.zeros(2)], opset=14)
    with pytest.raises(UnsupportedError, match="Exp of int32"):
        run_op("Exp", [np.zeros(2, np.int32)], opset=13)


def test_versions_with_another_meaning_are_not_served() -> None:
    assert lookup("", "Add", 6) is None
    assert lookup("", "Add", 7) is not None


def test_integer_arithmetic_is_a_bare_ufunc_and_float_arithmetic_a_guarded_one() -> None:
    for dtype, guarded in ((np.int32, False), (np.float32, True)):
        x = np.ones(3, dtype)
        _, compiled = compile_op("Add", [x, x], opset=14)
        assert compiled.bind is not None
        out = np.empty(3, dtype)
        call = compiled.bind([x, x], [out], None)
        assert isinstance(call, Quiet) is guarded
        assert bare(call).func is np.add  # type: ignore[attr-defined]
