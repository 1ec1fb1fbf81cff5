"""The Reduce family: every version, dtype, axis choice and empty extent."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError
from hetero.kernels.fused import PIECE_BYTES
from tests.kernels.harness import assert_close, check_op, run_op

RNG = np.random.default_rng(5)
ALL = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]
LATEST = {name: 13 if name == "Sum" else 18 for name in ALL}


def positive(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return RNG.uniform(0.5, 3, shape).astype(dtype)


def axes_of(*axes: int) -> Any:
    return np.array(axes, np.int64)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, (0,), (1, -1), (0, 1, 2)])
def test_axes_as_attribute_and_as_input(name: str, keepdims: int, axes: tuple[int, ...] | None) -> None:
    x = positive((3, 4, 5))
    keywords: dict[str, Any] = {} if axes is None else {"axes": list(axes)}
    check_op(f"Reduce{name}", [x], opset=11, keepdims=keepdims, **keywords)
    inputs = [x] if axes is None else [x, axes_of(*axes)]
    check_op(f"Reduce{name}", inputs, opset=LATEST[name], keepdims=keepdims)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_integers_are_the_truncated_reduction_of_float64(name: str, dtype: Any) -> None:
    x = RNG.integers(1, 5, (3, 4)).astype(dtype)
    (real,) = check_op(f"Reduce{name}", [x.astype(np.float64), axes_of(1)], opset=LATEST[name])
    assert_close(run_op(f"Reduce{name}", [x, axes_of(1)], opset=LATEST[name]), [(real + 1e-9).astype(dtype)])


def test_integer_sums_wrap() -> None:
    x = np.array([2**31 - 1, 1], np.int32)
    assert_close(run_op("ReduceSum", [x], opset=13), [np.array([-(2**31)], np.int32)])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_adds_in_float32(name: str, dtype: Any) -> None:
    x = positive((4, 300), dtype)
    x = x if name != "Prod" else np.ones_like(x)
    (wide,) = run_op(f"Reduce{name}", [x.astype(np.float32), axes_of(1)], opset=LATEST[name])
    (y,) = run_op(f"Reduce{name}", [x, axes_of(1)], opset=LATEST[name])
    assert y.tobytes() == wide.astype(dtype).tobytes()


@pytest.mark.parametrize("name", ALL)
def test_no_axes_is_the_elementwise_part_when_asked_for(name: str) -> None:
    x = positive((2, 3))
    function = {"L1": np.abs, "L2": np.abs, "LogSum": np.log, "SumSquare": np.square}.get(name, np.array)
    for axes in (None, axes_of()):
        (y,) = run_op(f"Reduce{name}", [x, axes], opset=LATEST[name], noop_with_empty_axes=1)
        assert_close([y], [function(x)])
    (everything,) = run_op(f"Reduce{name}", [x, axes_of()], opset=LATEST[name], keepdims=0)
    assert everything.shape == ()


IDENTITIES = {"Sum": 0, "Mean": np.nan, "Max": -np.inf, "Min": np.inf, "Prod": 1, "L1": 0, "L2": 0,
              "LogSum": -np.inf, "LogSumExp": -np.inf, "SumSquare": 0}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_nothing_reduces_to_the_identity(name: str, dtype: Any) -> None:
    (y,) = run_op(f"Reduce{name}", [np.zeros((2, 0, 3), dtype), axes_of(1)], opset=LATEST[name])
    assert_close([y], [np.full((2, 1, 3), IDENTITIES[name], dtype)])
    (empty,) = run_op(f"Reduce{name}", [np.zeros((2, 0, 3), dtype), axes_of(0)], opset=LATEST[name])
    assert empty.shape == (1, 0, 3)


def test_integers_and_bools_of_nothing_reduce_to_their_bounds() -> None:
    for dtype, low, high in ((np.int8, -128, 127), (np.uint64, 0, 2**64 - 1), (bool, False, True)):
        x = np.zeros((0, 2), dtype)
        assert_close(run_op("ReduceMax", [x, axes_of(0)], opset=20), [np.array([[low, low]], dtype)])
        assert_close(run_op("ReduceMin", [x, axes_of(0)], opset=20), [np.array([[high, high]], dtype)])


def test_bools_have_a_maximum() -> None:
    x = np.array([[True, False], [False, False]])
    assert_close(run_op("ReduceMax", [x, axes_of(1)], opset=20), [np.array([[True], [False]])])


def test_a_scalar_reduces_to_itself() -> None:
    for name in ("Sum", "Max", "LogSumExp"):
        assert_close(
            run_op(f"Reduce{name}", [np.array(2.5, np.float32)], opset=LATEST[name]), [np.float32(2.5)]
        )


def test_log_sum_exp_of_extremes() -> None:
    inf = np.inf
    x = np.array([[-inf, -inf], [inf, 0], [1000, 1000], [np.nan, 0], [-1000, -1001]], np.float32)
    (y,) = run_op("ReduceLogSumExp", [x, axes_of(1)], opset=18, keepdims=0)
    expected = [-inf, inf, 1000 + np.log(2), np.nan, -1000 + np.log1p(np.exp(-1))]
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_overflowing_sums_raise_no_warning() -> None:
    assert run_op("ReduceSum", [np.full(4, 3e38, np.float32)], opset=13)[0] == np.inf


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.data(),
    st.sampled_from(["Sum", "Max", "L1", "SumSquare", "LogSumExp"]),
)
@settings(max_examples=60, deadline=None)
def test_any_axes_of_any_layout(shape: list[int], data: st.DataObject, name: str) -> None:
    axes = data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), unique_by=lambda a: a % len(shape)))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 8
    order = data.draw(st.permutations(range(len(shape))))
    turned = x.transpose(order)[::-1]
    functions: dict[str, Any] = {
        "Sum": np.sum,
        "Max": lambda v, axis, keepdims: np.max(v, axis, keepdims=keepdims, initial=-np.inf),
        "L1": lambda v, axis, keepdims: np.sum(np.abs(v), axis, keepdims=keepdims),
        "SumSquare": lambda v, axis, keepdims: np.sum(v * v, axis, keepdims=keepdims),
        "LogSumExp": lambda v, axis, keepdims: np.log(np.sum(np.exp(v), axis, keepdims=keepdims)),
    }
    axis = tuple(a % len(shape) for a in axes) or tuple(range(len(shape)))
    with np.errstate(divide="ignore"):
        expected = functions[name](turned, axis=axis, keepdims=True)
    actual = run_op(f"Reduce{name}", [turned, axes_of(*axes)], opset=LATEST[name])
    assert_close(actual, [expected], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["L2", "LogSumExp", "Mean"])
def test_more_than_one_piece(name: str) -> None:
    x = positive((PIECE_BYTES // 4 // 50 + 7, 90))
    check_op(f"Reduce{name}", [x, axes_of(1)], opset=18, rtol=1e-4)
    whole = (x * 9).astype(np.int32)
    (real,) = run_op(f"Reduce{name}", [whole.astype(np.float64), axes_of(1)], opset=18)
    assert_close(run_op(f"Reduce{name}", [whole, axes_of(1)], opset=18), [real.astype(np.int32)])


def test_axes_that_cannot_be_are_errors() -> None:
    with pytest.raises(KernelError, match="axis 2 is out of range"):
        run_op("ReduceSum", [np.zeros((2, 2), np.float32), axes_of(2)], opset=13)
    with pytest.raises(KernelError, match="twice"):
        run_op("ReduceSum", [np.zeros((2, 2), np.float32), axes_of(0, -2)], opset=13)
