"""Division, remainders, powers, Where and Clip."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hetero.errors import KernelError
from tests.kernels.harness import assert_close, check_op, run_op

RNG = np.random.default_rng(1)
FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16]
INTEGERS = [np.int8, np.uint8, np.int32, np.int64, np.uint32]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_truncates_toward_zero(dtype: Any) -> None:
    a, b = np.array([7, -7, 7, -7, 6, 0], np.int64), np.array([2, 2, -2, -2, 3, 5], np.int64)
    a, b = a.astype(dtype), b.astype(dtype)
    exact = [
        int(x) // int(y) if (x < 0) == (y < 0) else -(abs(int(x)) // abs(int(y)))
        for x, y in zip(a, b, strict=True)
    ]
    assert_close(run_op("Div", [a, b], opset=14), [np.array(exact).astype(dtype)])


@given(hnp.arrays(np.int32, 6), hnp.arrays(np.int32, (2, 1)))
@settings(max_examples=50, deadline=None)
def test_integer_division_of_any_numbers_neither_fails_nor_warns(a: Any, b: Any) -> None:
    (y,) = run_op("Div", [a, b], opset=14)
    for (i, j), got in np.ndenumerate(y):
        p, q = int(a[j]), int(b[i, 0])
        if q != 0 and not (p == -(2**31) and q == -1):
            assert got == int(abs(p) // abs(q)) * (1 if (p < 0) == (q < 0) else -1)


def test_integer_division_by_zero_is_zero() -> None:
    for dtype in INTEGERS:
        assert_close(
            run_op("Div", [np.array([5, 0], dtype), np.zeros(2, dtype)], opset=14), [np.zeros(2, dtype)]
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_division(dtype: Any) -> None:
    a = RNG.standard_normal((2, 3)).astype(dtype)
    b = np.array([0.5, 0.0, -4.0]).astype(dtype)
    check_op("Div", [a, b], opset=14, rtol=1e-2 if dtype == ml_dtypes.bfloat16 else 1e-3)


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_mod_of_integers(dtype: Any, fmod: int) -> None:
    a = np.array([[-7], [7], [100]], np.int64).astype(dtype)
    b = np.array([3, 5, -3], np.int64).astype(dtype)
    check_op("Mod", [a, b], opset=13, fmod=fmod)


def test_mod_by_zero_is_zero() -> None:
    assert_close(
        run_op("Mod", [np.array([5], np.int32), np.array([0], np.int32)], opset=13), [np.array([0], np.int32)]
    )


def test_mod_of_floats_follows_the_sign_that_fmod_says() -> None:
    a, b = np.array([-4.5, 4.5, 5.0, np.inf], np.float32), np.array([2.0, -2.0, 3.0, 2.0], np.float32)
    check_op("Mod", [a, b], opset=13, fmod=1)
    assert_close(run_op("Mod", [a, b], opset=28), [np.array([1.5, -1.5, 2.0, np.nan], np.float32)])
    with pytest.raises(KernelError, match="fmod must be 1"):
        run_op("Mod", [a, b], opset=13)


@pytest.mark.parametrize("x_dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("y_dtype", [np.float32, np.float64, np.int32, np.int64])
def test_pow_has_the_dtype_of_its_base(x_dtype: Any, y_dtype: Any) -> None:
    x, y = np.array([[1], [2], [3]], x_dtype), np.array([0, 1, 2, 3], y_dtype)
    check_op("Pow", [x, y], opset=15)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0, -1.0, 2.5])
def test_pow_with_a_scalar_exponent(exponent: float) -> None:
    x = RNG.standard_normal((4, 5)).astype(np.float32)
    check_op("Pow", [x, np.array(exponent, np.float32)], opset=15)
    check_op("Pow", [x.astype(np.float16), np.array([exponent], np.float16)], opset=15, rtol=1e-2)


def test_pow_of_integers_to_negative_powers_truncates() -> None:
    x, y = np.array([1, -1, -1, 2, -3, 0], np.int32), np.array([-1, -1, -2, -1, -2, -1], np.int64)
    assert_close(run_op("Pow", [x, y], opset=15), [np.array([1, -1, 1, 0, 0, 0], np.int32)])
    unsigned = run_op("Pow", [np.array([1, 2], np.uint8), np.array([-1, -1], np.int8)], opset=15)
    assert_close(unsigned, [np.array([1, 0], np.uint8)])


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.int8, np.int64, bool, ml_dtypes.bfloat16, np.complex128]
)
def test_where_of_every_width(dtype: Any) -> None:
    x, y = (RNG.integers(0, 2, s).astype(dtype) for s in ((3, 1), (1, 4)))
    condition = RNG.random((2, 3, 4)) < 0.5
    assert_close(run_op("Where", [condition, x, y], opset=16), [np.where(condition, x, y)])


def test_where_selects_nan_infinity_and_strings_untouched() -> None:
    condition = np.array([True, False, True])
    odd = np.array([np.nan, np.inf, -0.0], np.float32)
    (y,) = run_op("Where", [condition, odd, np.array(-np.inf, np.float32)], opset=16)
    assert y.tobytes() == np.array([np.nan, -np.inf, -0.0], np.float32).tobytes()
    texts = run_op("Where", [condition, np.array("yes", object), np.array(["a", "b", "c"], object)], opset=16)
    assert texts[0].tolist() == ["yes", "b", "yes"]


@given(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=3, min_side=0), st.booleans())
@settings(max_examples=50, deadline=None)
def test_where_broadcasts_all_three(shapes: Any, flip: bool) -> None:
    c, x, y = (np.arange(np.prod(s)).reshape(s).astype(np.float32) for s in shapes.input_shapes)
    condition = (c % 2 == 0) ^ flip
    x = x[..., ::-1] if x.ndim else x
    assert_close(run_op("Where", [condition, x, y], opset=16), [np.where(condition, x, y)])


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.int8, np.uint64])
@pytest.mark.parametrize("bounds", [(1, 3), (None, 3), (1, None), (None, None), (3, 1)])
def test_clip_by_inputs(dtype: Any, bounds: tuple[Any, Any]) -> None:
    x = np.array([0, 1, 2, 5]).astype(dtype)
    low, high = (None if b is None else np.array(b).astype(dtype) for b in bounds)
    expected = x
    if low is not None:
        expected = np.maximum(expected, low)
    if high is not None:
        expected = np.minimum(expected, high)
    assert_close(run_op("Clip", [x, low, high], opset=13), [expected])


def test_clip_by_attributes_keeps_nan() -> None:
    x = np.array([[-9, 9, np.nan, 0.5]], np.float32)
    check_op("Clip", [x], opset=6, min=-1.0, max=1.0)
    check_op("Clip", [x], opset=6, min=0.0)
    check_op("Clip", [x], opset=6)


def test_clip_bounds_must_be_scalars() -> None:
    with pytest.raises(KernelError, match="must be a scalar"):
        run_op("Clip", [np.zeros(3, np.float32), np.zeros(3, np.float32)], opset=13)


@pytest.mark.parametrize("op_version", [11, 13])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_bound_that_is_left_out_is_the_last_finite_number(op_version: int, dtype: Any) -> None:
    x = np.array([-np.inf, -2, 2, np.inf, np.nan]).astype(dtype)
    one, most = np.array(1).astype(dtype), ml_dtypes.finfo(dtype).max
    bounds: list[tuple[Any, Any]] = [(None, None), (one, None), (None, one)]
    for low, high in bounds:
        (y,) = run_op("Clip", [x, low, high], opset=op_version)
        expected = x.astype(np.float64).clip(
            float(-most if low is None else low), float(most if high is None else high)
        )
        assert_close([y], [expected.astype(dtype)])


def test_clip_by_attributes_is_bounded_by_float32() -> None:
    x = np.array([-1e300, -np.inf, 1e300, 5.0])
    largest = float(np.finfo(np.float32).max)
    assert run_op("Clip", [x], opset=6)[0].tolist() == [-largest, -largest, largest, 5.0]
    assert run_op("Clip", [x.clip(-9, 9).astype(np.float16)], opset=6, min=0.0)[0].tolist() == [0, 0, 9, 5]


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(np.int32, np.int64), (np.int32, np.uint32), (np.int64, np.uint64), (np.int32, np.uint64)],
)
def test_powers_wrap_however_large_the_exponent_is(dtype: Any, wide: Any) -> None:
    bits, top = 8 * np.dtype(dtype).itemsize, int(np.iinfo(wide).max)
    bases = np.array([0, 1, -1, 2, 3, -5, 6, np.iinfo(dtype).max], dtype)[:, None]
    exponents = np.array([0, 1, 33, 2**30, 2**30 + 1, 2**31 - 1, 2**31, top - 1, top], wide)
    exact = [[pow(int(b), int(e), 1 << bits) for e in exponents] for b in bases[:, 0]]
    expected = np.array(exact, np.uint64).astype(np.dtype(f"u{bits // 8}")).view(dtype)
    assert_close(run_op("Pow", [bases, exponents], opset=15), [expected])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("y_dtype", [np.float32, np.float64, np.int64])
def test_half_precision_to_the_power_of_a_wider_number_rounds_once(dtype: Any, y_dtype: Any) -> None:
    x = np.array([1.5, 2.25, 3.0, 1.001953125]).astype(dtype)
    y = np.array([5.8, 4.3, 4.1, 2049.0]).astype(y_dtype)
    expected = (x.astype(np.float64) ** y.astype(np.float64)).astype(dtype)
    assert_close(run_op("Pow", [x, y], opset=15), [expected], rtol=0, atol=0)
