"""MatMul, Gemm, MatMulInteger and FusedMatMul: shapes, strides, dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError
from hetero.kernels.gemm import bind_matmul
from hetero.kernels.quiet import bare
from tests.kernels.harness import assert_close, check_op, compile_op, run_op

RNG = np.random.default_rng(8)
SHAPES = [
    ((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((2, 4), (4, 3)), ((5, 2, 4), (4, 3)), ((2, 4), (5, 4, 3)),
    ((6, 1, 2, 4), (5, 4, 3)), ((1, 1, 2, 4), (1, 4, 3)), ((5, 1, 4), (4, 3)), ((4,), (5, 4, 3)), ((5, 2, 4), (4,)),
    ((2, 5, 2, 4), (2, 5, 4, 3)), ((0, 4), (4, 3)), ((2, 0), (0, 3)), ((3, 2, 0), (0, 3)), ((0, 2, 4), (4, 3)),
]  # fmt: skip


def normal(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matmul_of_all_ranks(a: Any, b: Any, dtype: Any) -> None:
    x, y = normal(a, dtype), normal(b, dtype)
    assert_close(run_op("MatMul", [x, y], opset=13), [np.matmul(x, y)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_matmul_of_integers_wraps(dtype: Any) -> None:
    x, y = RNG.integers(0, 2**31, (3, 4)).astype(dtype), RNG.integers(0, 2**31, (4, 2)).astype(dtype)
    assert_close(run_op("MatMul", [x, y], opset=13), [np.matmul(x, y)])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_adds_in_float32(dtype: Any) -> None:
    x, y = normal((3, 500), dtype), normal((500, 2), dtype)
    expected = np.matmul(x.astype(np.float32), y.astype(np.float32)).astype(dtype)
    assert_close(run_op("MatMul", [x, y], opset=13), [expected], rtol=1e-2, atol=1e-2)


LAYOUTS: dict[str, Any] = {
    "as is": lambda a: a,
    "transposed": lambda a: np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2),
    "reversed": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "every other": lambda a: np.repeat(a, 2, -1)[..., ::2],
    "broadcast": lambda a: np.broadcast_to(a[..., :1, :], a.shape),
    "fortran": lambda a: np.asfortranarray(a),
}


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_matmul_of_any_strides(left: str, right: str, batch: tuple[int, ...]) -> None:
    a, b = LAYOUTS[left](normal((*batch, 4, 5))), LAYOUTS[right](normal((5, 6)))
    assert_close(run_op("MatMul", [a, b], opset=13), [np.matmul(a, b)], atol=1e-5)


@given(
    st.lists(st.integers(1, 3), min_size=2, max_size=4),
    st.permutations(range(4)),
    st.integers(1, 3),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_batch_is_folded_only_where_its_strides_allow(
    shape: list[int], order: list[int], n: int, backwards: bool
) -> None:
    rank = len(shape)
    a = np.arange(np.prod(shape), dtype=np.float64).reshape(shape).transpose([i for i in order if i < rank])
    a = a[::-1] if backwards else a
    b = np.arange(a.shape[-1] * n, dtype=np.float64).reshape(a.shape[-1], n)
    assert_close(run_op("MatMul", [a, b], opset=13), [a @ b])


def test_a_contiguous_batch_against_one_weight_is_one_product() -> None:
    a, b, out = normal((8, 16, 32)), normal((32, 24)), np.empty((8, 16, 24), np.float32)
    call: Any = bind_matmul(np, a, b, out)
    assert call.func is np.matmul
    assert [x.shape for x in call.args] == [(128, 32), (32, 24), (128, 24)]


def test_an_operand_that_blas_reads_is_not_copied() -> None:
    _, compiled = compile_op("MatMul", [normal((3, 4)), normal((5, 4)).T], opset=13)
    assert compiled.bind is not None
    a, b, out = normal((3, 4)), normal((5, 4)).T, np.empty((3, 5), np.float32)
    call: Any = bare(compiled.bind([a, b], [out], None))
    assert call.args[1] is b


def test_shapes_that_do_not_multiply_are_named() -> None:
    with pytest.raises(KernelError, match=r"\[2, 3\] and \[4, 3\] do not multiply"):
        run_op("MatMul", [normal((2, 3)), normal((4, 3))], opset=13)
    with pytest.raises(KernelError, match="scalar"):
        run_op("MatMul", [normal(()), normal((4, 3))], opset=13)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("c", [None, (), (1,), (3,), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 2.0), (2.0, 0.0)])
def test_gemm(trans_a: int, trans_b: int, c: Any, alpha: float, beta: float) -> None:
    a, b = normal((4, 2) if trans_a else (2, 4)), normal((3, 4) if trans_b else (4, 3))
    inputs = [a, b] if c is None else [a, b, normal(c)]
    check_op("Gemm", inputs, opset=13, transA=trans_a, transB=trans_b, alpha=alpha, beta=beta, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 200], ids=["a row", "few rows", "many rows"])
def test_gemm_gives_the_same_bits_with_a_constant_and_a_variable_factor(rows: int) -> None:
    a, b = normal((rows, 70)), normal((33, 70))
    _, compiled = compile_op("Gemm", [a, b], opset=13, transB=1)
    assert compiled.bind is not None
    found = set()
    for writeable in (True, False):
        factor, y = b.copy(), np.empty((rows, 33), np.float32)
        factor.flags.writeable = writeable
        bare(compiled.bind([a, factor], [y], None))()
        found.add(y.tobytes())
    assert len(found) == 1
    assert_close([y], [a @ b.T], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("opset", [7, 9])
def test_gemm_of_old_versions(opset: int) -> None:
    check_op("Gemm", [normal((2, 4)), normal((4, 3)), normal((3,))], opset=opset, beta=0.5)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint64, np.float16, ml_dtypes.bfloat16])
def test_gemm_of_other_dtypes(dtype: Any) -> None:
    a, b, c = (RNG.integers(0, 5, s).astype(dtype) for s in ((2, 4), (4, 3), (3,)))
    expected = (a.astype(np.float64) @ b.astype(np.float64) * 2 + c.astype(np.float64) * 3).astype(dtype)
    assert_close(run_op("Gemm", [a, b, c], opset=13, alpha=2.0, beta=3.0), [expected])


def test_gemm_of_no_rows_or_no_depth() -> None:
    check_op("Gemm", [normal((0, 4)), normal((4, 3)), normal((3,))], opset=13)
    check_op("Gemm", [normal((2, 0)), normal((0, 3)), normal((3,))], opset=13)


def test_gemm_refuses_what_does_not_fit() -> None:
    with pytest.raises(KernelError, match="not two matrices"):
        run_op("Gemm", [normal((2, 2, 2)), normal((2, 2))], opset=13)
    with pytest.raises(KernelError, match="does not broadcast"):
        run_op("Gemm", [normal((2, 4)), normal((4, 3)), normal((4,))], opset=13)


@pytest.mark.parametrize("a_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("b_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    "shapes", [((3, 700), (700, 5)), ((2, 3, 40), (40, 5)), ((2, 3, 4), (2, 4, 5)), ((7,), (7, 2))]
)
def test_matmul_integer_is_exact(a_dtype: Any, b_dtype: Any, shapes: Any) -> None:
    a, b = (np.full(s, 255, np.int64).astype(t) for s, t in zip(shapes, (a_dtype, b_dtype), strict=True))
    a.reshape(-1)[::3] = 7
    zero_a, zero_b = np.array(3, a_dtype), np.array([5], b_dtype)
    expected = (a.astype(np.int32) - 3) @ (b.astype(np.int32) - 5)
    assert_close(run_op("MatMulInteger", [a, b, zero_a, zero_b], opset=10), [expected])
    assert_close(run_op("MatMulInteger", [a, b], opset=10), [a.astype(np.int32) @ b.astype(np.int32)])
    assert_close(
        run_op("MatMulInteger", [a, b, None, zero_b], opset=10),
        [a.astype(np.int32) @ (b.astype(np.int32) - 5)],
    )


def test_matmul_integer_with_zero_points_per_row_and_column() -> None:
    a, b = RNG.integers(0, 255, (3, 4), np.uint8), RNG.integers(0, 255, (4, 2), np.uint8)
    rows, columns = np.array([1, 2, 3], np.uint8), np.array([4, 5], np.uint8)
    expected = (a.astype(np.int32) - rows[:, None]) @ (b.astype(np.int32) - columns)
    assert_close(run_op("MatMulInteger", [a, b, rows, columns], opset=10), [expected.astype(np.int32)])
    with pytest.raises(KernelError, match="does not fit"):
        run_op("MatMulInteger", [a, b, np.zeros(2, np.uint8)], opset=10)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("trans_batch", [0, 1])
def test_fused_matmul(trans_a: int, trans_b: int, trans_batch: int) -> None:
    a = normal((3, 4, 2) if trans_a else (3, 2, 4)) if not trans_batch else None
    b = normal((3, 5, 4) if trans_b else (3, 4, 5))
    if a is None:
        a = normal((4, 3, 2) if trans_a else (2, 3, 4))
    check_op(
        "FusedMatMul", [a, b], opset=1, domain="com.microsoft", transA=trans_a, transB=trans_b, alpha=0.5,
        transBatchA=trans_batch, atol=1e-5,
    )  # fmt: skip
