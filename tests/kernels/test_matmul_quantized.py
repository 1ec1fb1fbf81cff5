"""QLinearMatMul against exact arithmetic and onnxruntime."""

from __future__ import annotations

from typing import Any

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


def test_operands_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(KernelError, match="no matrix product"):
        compile_op("QLinearMatMul", operands((3, 4), (5, 4)), opset=21)
    with pytest.raises(KernelError, match="do not broadcast"):
        compile_op("QLinearMatMul", operands((2, 3, 4), (3, 4, 5)), opset=21)
    x = operands((3, 4), (4, 5))
    x[1] = np.ones(2, np.float32)
    with pytest.raises(KernelError, match="a_scale"):
        compile_op("QLinearMatMul", x, opset=21)
    x = operands((3, 4), (4, 5))
    with pytest.raises(UnsupportedError, match="int16"):
        compile_op("QLinearMatMul", [x[0].astype(np.int16), *x[1:]], opset=21)
