"""DynamicQuantizeMatMul, MatMulIntegerToFloat, MatMulInteger16 and QGemm: bit for bit what onnxruntime gives."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import compile_op, run_op
from tests.kernels.peer import onnxruntime
from tests.kernels.quantities import Quantities

Q = Quantities(31)
MS: dict[str, Any] = {"opset": 1, "domain": "com.microsoft"}
SHAPES = [((3, 5), (5, 7)), ((2, 3, 5), (5, 7)), ((2, 3, 5), (2, 5, 7)), ((3, 700), (700, 7))]


def check(op_type: str, inputs: list[Any], *, constant: tuple[int, ...] = (), **attributes: Any) -> None:
    """The very bits of onnxruntime, whether its optimiser may run or not and its weights are packed or not."""
    (y,) = run_op(op_type, inputs, **attributes, **MS)
    for fixed in ((), constant):
        for optimised in (False, True):
            (expected,) = onnxruntime(op_type, inputs, constant=fixed, optimised=optimised, **attributes)
            assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
            assert (y == expected).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
@pytest.mark.parametrize("columns", [False, True], ids=["", "per column"])
def test_integer_products_become_floats(a: Any, b: Any, columns: bool, dtype: Any) -> None:
    if columns and len(b) > 2:
        b = b[1:]  # onnxruntime reads a vector of scales as if it had a row for each matrix
    n = (b[-1],) if columns else ()
    for zero, bias in ((False, True), (True, False)):
        shift = Q.integers(dtype, *n) if zero else None
        more = Q.scale(b[-1]) if bias else None
        inputs = [Q.normal(*a), Q.integers(dtype, *b), Q.scale(*n), shift, more]
        check("DynamicQuantizeMatMul", inputs[: 5 if bias else 4], constant=(1, 2, 3, 4)[: 4 if bias else 3])
        for left in (np.uint8, np.int8) if dtype == np.int8 else (np.uint8,):
            zero_a = Q.integers(left) if zero else None
            inputs = [
                Q.integers(left, *a),
                Q.integers(dtype, *b),
                Q.scale(),
                Q.scale(*n),
                zero_a,
                shift,
                more,
            ]
            check("MatMulIntegerToFloat", inputs if bias else inputs[:6], constant=(1, 3, 5))


def test_each_matrix_may_have_scales_of_its_own() -> None:
    a, b, scale = Q.integers(np.uint8, 2, 3, 5), Q.integers(np.int8, 2, 5, 7), Q.scale(2, 1, 7)
    (y,) = run_op("MatMulIntegerToFloat", [a, b, Q.scale(2, 3, 1), scale], **MS)
    assert y.shape == (2, 3, 7)
    rows = Q.scale(3)
    (y,) = run_op("MatMulIntegerToFloat", [a[0], b[0], rows, scale[0, 0]], **MS)
    exact = a[0].astype(np.int32) @ b[0].astype(np.int32)
    np.testing.assert_allclose(y, exact * rows[:, None] * scale[0], rtol=1e-6)


def test_scales_in_half_precision_give_their_dtype() -> None:
    a, b = Q.integers(np.uint8, 3, 5), Q.integers(np.int8, 5, 7)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        one, two = Q.scale().astype(dtype), Q.scale(7, high=0.02).astype(dtype)
        (y,) = run_op("MatMulIntegerToFloat", [a, b, one, two], **MS)
        wide = run_op("MatMulIntegerToFloat", [a, b, one.astype(np.float32), two.astype(np.float32)], **MS)
        assert (y == wide[0].astype(dtype)).all()


@pytest.mark.parametrize("values", [[[0.0, 0.0]], [[1.0, 2.0]], [[-3.0, -1.0]], [[-1.5, 3.0]]])
def test_the_range_of_the_left_factor_always_holds_zero(values: Any) -> None:
    check("DynamicQuantizeMatMul", [np.array(values, np.float32), Q.integers(np.int8, 2, 3), Q.scale()])


def test_empty_products() -> None:
    for a, b in (((0, 5), (5, 7)), ((3, 0), (0, 7))):
        (y,) = run_op("DynamicQuantizeMatMul", [Q.normal(*a), Q.integers(np.int8, *b), Q.scale()], **MS)
        assert y.shape == (a[0], 7)
        assert (y == 0).all()


def test_sixteen_bits_wrap_at_thirty_two() -> None:
    a, b = Q.integers(np.int16, 3, 40), Q.integers(np.int16, 40, 5)
    check("MatMulInteger16", [a, b])
    low = np.full((1, 40), -32768, np.int16)
    (y,) = run_op("MatMulInteger16", [low, low.T.copy()], **MS)
    assert y.item() == np.int64(40 << 30).astype(np.int32)
    a, b = Q.integers(np.uint16, 3, 40), Q.integers(np.uint16, 40, 5)
    (y,) = run_op("MatMulInteger16", [a, b], **MS)
    assert (y == (a.astype(np.int64) @ b.astype(np.int64)).astype(np.uint32)).all()


@pytest.mark.parametrize(
    ("left", "right"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)], ids=["uu", "us", "ss"]
)
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_quantised_gemm(left: Any, right: Any, trans_a: int, trans_b: int) -> None:
    k = 300
    for i, c in enumerate((None, (7,), (3, 7), (3, 1), ())):
        n = (7,) if i % 2 else ()
        inputs = [
            Q.integers(left, *((k, 3) if trans_a else (3, k))), *Q.pair(left),
            Q.integers(right, *((7, k) if trans_b else (k, 7))), Q.scale(*n), Q.integers(right, *n),
            None if c is None else np.asarray(Q.rng.integers(-(10**5), 10**5, c), np.int32),
        ]  # fmt: skip
        quantised = [*inputs, Q.scale(low=20, high=40), Q.integers(left)]
        keywords: dict[str, Any] = {"alpha": 1.5, "transA": trans_a, "transB": trans_b, "constant": (3, 4, 5)}
        check("QGemm", inputs if c is not None else inputs[:6], **keywords)
        check("QGemm", quantised, **keywords)


def test_operands_that_do_not_fit_are_errors() -> None:
    a, b = Q.integers(np.uint8, 3, 5), Q.integers(np.int8, 5, 7)
    with pytest.raises(KernelError, match="do not multiply"):
        compile_op("MatMulIntegerToFloat", [a, b.T, Q.scale(), Q.scale()], **MS)
    with pytest.raises(KernelError, match="b_scale"):
        compile_op("MatMulIntegerToFloat", [a, b, Q.scale(), Q.scale(5)], **MS)
    with pytest.raises(KernelError, match="for 7 columns"):
        compile_op("DynamicQuantizeMatMul", [Q.normal(3, 5), b, Q.scale(), None, Q.scale(5)], **MS)
    with pytest.raises(UnsupportedError, match="int16"):
        compile_op("DynamicQuantizeMatMul", [Q.normal(3, 5), b.astype(np.int16), Q.scale()], **MS)
    pairs = [a, *Q.pair(np.uint8), b, *Q.pair(np.int8)]
    with pytest.raises(KernelError, match="does not broadcast"):
        compile_op("QGemm", [*pairs, np.zeros((2, 7), np.int32)], **MS)
    with pytest.raises(KernelError, match="come together"):
        compile_op("QGemm", [*pairs, None, Q.scale()], **MS)
    with pytest.raises(UnsupportedError, match="of uint8 and int8"):
        compile_op("MatMulInteger16", [a, b], **MS)
