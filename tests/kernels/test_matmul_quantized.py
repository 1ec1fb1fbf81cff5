"""QLinearMatMul and MatMulInteger against exact arithmetic and onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import check_op, compile_op, run_op

RNG = np.random.default_rng(13)


def integers(dtype: Any, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def operands(a: Any, b: Any, dtype: Any = np.uint8) -> list[Any]:
    one = [np.asarray(v) for v in (np.float32(0.01), dtype(7))]
    return [
        integers(dtype, *a),
        *one,
        integers(dtype, *b),
        *one,
        np.asarray(np.float32(0.05)),
        np.asarray(dtype(9)),
    ]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((5, 400), (400, 6)), ((0, 4), (4, 5))],
    ids=str,
)
def test_products_agree_with_onnxruntime(a: Any, b: Any, dtype: Any) -> None:
    for opset in (10, 21):
        check_op("QLinearMatMul", operands(a, b, dtype), opset=opset)


def test_scales_per_row_and_column_multiply_what_they_stand_beside() -> None:
    x = operands((3, 4), (4, 5))
    row, column = np.array([0.1, 0.2, 0.4], np.float32), np.array([1, 2, 3, 4, 5], np.float32)
    x[1], x[2], x[4], x[5] = row, np.array([1, 2, 3], np.uint8), column, np.arange(5, dtype=np.uint8)
    x[6] = np.asarray(np.float32(900))
    a = x[0].astype(np.int64) - x[2][:, None]
    b = x[3].astype(np.int64) - x[5]
    expected = np.clip(np.rint((a @ b) * (row[:, None] * column / np.float32(900))) + 9, 0, 255)
    (y,) = run_op("QLinearMatMul", x, opset=21)
    assert (y == expected).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_scales_in_half_precision_are_widened_first(dtype: Any) -> None:
    x = operands((3, 40), (40, 5))
    for i, value in ((1, 0.01), (4, 0.02), (6, 0.3)):
        x[i] = np.asarray(value, np.float32).astype(dtype)
    wide = [a.astype(np.float32) if i in (1, 4, 6) else a for i, a in enumerate(x)]
    assert (run_op("QLinearMatMul", x, opset=21)[0] == run_op("QLinearMatMul", wide, opset=21)[0]).all()


@pytest.mark.parametrize(
    ("kind", "largest"),
    [
        (ml_dtypes.float8_e4m3fn, 448), (ml_dtypes.float8_e4m3fnuz, 240), (ml_dtypes.float8_e5m2, 57344),
        (ml_dtypes.float8_e5m2fnuz, 57344),
    ],
)  # fmt: skip
def test_float8_multiplies_in_float32_and_saturates(kind: Any, largest: float) -> None:
    a, b = (
        RNG.integers(-4, 5, s).astype(np.float32).astype(kind) for s in ((3, 20), (20, 5))
    )  # sums are exact
    zero = np.zeros((), np.float32).astype(kind)
    one, two, three = (np.asarray(v, np.float32) for v in (0.5, 2, 0.25))
    (y,) = run_op("QLinearMatMul", [a, one, zero, b, two, zero, three, zero], opset=21)
    exact = (a.astype(np.float32) @ b.astype(np.float32)) * 4
    assert y.dtype == a.dtype
    assert (y == exact.clip(-largest, largest).astype(kind)).all()
    (y,) = run_op("QLinearMatMul", [a, one, zero, b, two, zero, np.asarray(1e-9, np.float32), zero], opset=21)
    assert (np.abs(y.astype(np.float64)) == np.where(exact == 0, 0, largest)).all()
    with pytest.raises(UnsupportedError, match="float8"):
        compile_op("QLinearMatMul", [a, one, zero, b, two, zero, three, zero], opset=10)


@pytest.mark.parametrize("op_type", ["QLinearMatMul", "MatMulInteger"])
def test_constant_weights_give_the_same_bits(op_type: str) -> None:
    x = operands((3, 600), (600, 5))
    inputs = x if op_type == "QLinearMatMul" else [x[0], x[3], x[2], x[5]]
    expected = run_op(op_type, inputs, opset=10)[0]
    frozen = [a.copy() for a in inputs]
    for array in frozen:
        array.flags.writeable = False
    _, compiled = compile_op(op_type, frozen, opset=10)
    assert compiled.bind is not None
    y = np.empty_like(expected)
    calls = [compiled.bind(frozen, [y], np.empty(compiled.workspace_bytes, np.uint8)) for _ in range(2)]
    for call in calls:
        y.fill(0)
        call()
        assert (y == expected).all()


def test_operands_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(KernelError, match="do not multiply"):
        compile_op("QLinearMatMul", operands((3, 4), (5, 4)), opset=21)
    with pytest.raises(KernelError, match="do not multiply"):
        compile_op("QLinearMatMul", operands((2, 3, 4), (3, 4, 5)), opset=21)
    x = operands((3, 4), (4, 5))
    x[1] = np.ones(2, np.float32)
    with pytest.raises(KernelError, match="a_scale"):
        compile_op("QLinearMatMul", x, opset=21)
    x = operands((3, 4), (4, 5))
    with pytest.raises(UnsupportedError, match="int16"):
        compile_op("QLinearMatMul", [x[0].astype(np.int16), *x[1:]], opset=21)
