"""Integer arithmetic at the ends of every dtype's range, against Python's integers: results keep their low bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.types import onnx_dtype
from tests.conformance.variants import integer_bounds
from tests.kernels.harness import assert_close, run_op

INTEGERS = [np.dtype(t) for t in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]
SIGNED = INTEGERS[:4]
MINUTE = [np.dtype(t) for t in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2)]

BINARY: dict[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Max": max,
    "Min": min,
    "BitwiseAnd": lambda a, b: a & b,
    "BitwiseOr": lambda a, b: a | b,
    "BitwiseXor": lambda a, b: a ^ b,
}
UNARY: dict[str, tuple[Callable[[int], int], Sequence[Any]]] = {
    "Abs": (abs, INTEGERS),
    "Neg": (lambda a: -a, SIGNED),
    "Sign": (lambda a: (a > 0) - (a < 0), INTEGERS),
    "BitwiseNot": (lambda a: ~a, INTEGERS),
}
REDUCTIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "ReduceSum": sum,
    "ReduceProd": math.prod,
    "ReduceMax": max,
    "ReduceMin": min,
    "ReduceL1": lambda row: sum(map(abs, row)),
    "ReduceSumSquare": lambda row: sum(v * v for v in row),
}


def ends(dtype: np.dtype[Any]) -> list[int]:
    """Numbers at the ends of the dtype's range and around 0."""
    bounds = integer_bounds(dtype)
    assert bounds is not None
    low, high = bounds
    return sorted({v for v in (low, low + 1, -3, -1, 0, 1, 2, high // 2, high - 1, high) if low <= v <= high})


def wrapped(values: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """The low bits of each number, read as `dtype`."""
    bounds = integer_bounds(dtype)
    assert bounds is not None
    low, high = bounds
    exact = [(v - low) % (high - low + 1) + low for v in values]
    return np.array(exact, np.int64 if high < 2**63 else np.uint64).astype(dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op_type", BINARY)
def test_two_operands(op_type: str, dtype: np.dtype[Any]) -> None:
    values = ends(dtype)
    pairs = [(a, b) for a in values for b in values]
    operands = [wrapped(side, dtype) for side in zip(*pairs, strict=True)]
    expected = wrapped([BINARY[op_type](a, b) for a, b in pairs], dtype)
    opset = 18 if op_type.startswith("Bitwise") else 14
    assert_close(run_op(op_type, operands, opset=opset), [expected])


@pytest.mark.parametrize(
    ("op_type", "dtype"), [(name, dtype) for name, (_, dtypes) in UNARY.items() for dtype in dtypes], ids=str
)
def test_one_operand(op_type: str, dtype: np.dtype[Any]) -> None:
    values = ends(dtype)
    expected = wrapped([UNARY[op_type][0](v) for v in values], dtype)
    assert_close(run_op(op_type, [wrapped(values, dtype)], opset=18), [expected])


@pytest.mark.parametrize("dtype", INTEGERS[4:], ids=str)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts(direction: str, dtype: np.dtype[Any]) -> None:
    pairs = [(v, n) for v in ends(dtype) for n in (0, 1, 8 * dtype.itemsize - 1)]
    operands = [wrapped(side, dtype) for side in zip(*pairs, strict=True)]
    expected = wrapped([v << n if direction == "LEFT" else v >> n for v, n in pairs], dtype)
    assert_close(run_op("BitShift", operands, opset=11, direction=direction), [expected])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_reductions(op_type: str, dtype: np.dtype[Any]) -> None:
    values = ends(dtype)
    rows = [values, values[::-1], values[1:] + values[:1]]
    x = np.stack([wrapped(row, dtype) for row in rows])
    columns = list(zip(*rows, strict=True))
    for axis, lines in ((1, rows), (0, columns)):
        expected = wrapped([REDUCTIONS[op_type](line) for line in lines], dtype)
        assert_close(run_op(op_type, [x, np.array([axis])], opset=20, keepdims=0), [expected])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_running_sums_and_products(dtype: np.dtype[Any]) -> None:
    values = ends(dtype)
    x, axis = wrapped(values, dtype), np.array(0)
    assert_close(run_op("CumSum", [x, axis], opset=14), [wrapped(list(accumulate(values)), dtype)])
    products = list(accumulate(values[::-1], lambda a, b: a * b))[::-1]
    assert_close(run_op("CumProd", [x, axis], opset=26, reverse=1), [wrapped(products, dtype)])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_products_of_matrices(dtype: np.dtype[Any]) -> None:
    values = ends(dtype)
    a, b = wrapped(values, dtype)[None], wrapped(values[::-1], dtype)[:, None]
    exact = reduce(lambda total, pair: total + pair[0] * pair[1], zip(values, values[::-1], strict=True), 0)
    assert_close(run_op("MatMul", [a, b], opset=13), [wrapped([exact], dtype)[None]])


@pytest.mark.parametrize("source", [*INTEGERS, *MINUTE], ids=str)
@pytest.mark.parametrize("target", [*INTEGERS, *MINUTE], ids=str)
def test_casts_drop_high_bits(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    values = ends(source)
    (y,) = run_op("Cast", [wrapped(values, source)], opset=25, to=int(onnx_dtype(target)))
    assert y.dtype == target
    assert y.tolist() == wrapped(values, target).tolist()
