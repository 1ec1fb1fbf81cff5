"""Einsum: parsing, the matrix-product road and the general one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError
from hetero.kernels.einsum import as_product, parse
from tests.kernels.harness import assert_close, check_op, operation, run_op

RNG = np.random.default_rng(9)
PRODUCTS = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk", (2, 3), (3, 4)), ("ij,kj->ik", (2, 3), (4, 3)),
    ("ij,jk->ki", (2, 3), (3, 4)),
    ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)), ("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bhij,bhjd->bihd", (2, 3, 4, 5), (2, 3, 5, 6)), ("bihd,bjhd->bhij", (2, 4, 3, 5), (2, 6, 3, 5)),
    ("abc,cd->abd", (2, 3, 4), (4, 5)), ("abc,bcd->ad", (2, 3, 4), (3, 4, 5)), ("abc,cbd->da", (2, 3, 4), (4, 3, 5)),
    ("...ij,...jk->...ik", (5, 2, 3), (5, 3, 4)), ("...ij,jk", (5, 2, 3), (3, 4)), ("i,i->", (4,), (4,)),
    ("i,j->ij", (3,), (4,)), ("ij,ij->i", (3, 4), (3, 4)), ("bk,bk->b", (3, 4), (3, 4)), ("i,i", (4,), (4,)),
    ("aibj,jc->abic", (2, 3, 4, 5), (5, 6)), (" i j , j k -> i k ", (2, 3), (3, 4)), ("Ab,bC->AC", (2, 3), (3, 4)),
    ("ab,cd->acbd", (2, 3), (4, 5)), ("nchw,vwx->nchvx", (2, 3, 4, 5), (6, 5, 7)),
]  # fmt: skip
OTHERS = [
    ("ii->i", [(3, 3)]), ("ii", [(3, 3)]), ("ij->ji", [(2, 3)]), ("ij->", [(2, 3)]), ("ij->j", [(2, 3)]),
    ("...ii->...i", [(2, 3, 3)]), ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]), ("iij,j->i", [(2, 2, 3), (3,)]),
    ("ij,kl->ik", [(2, 3), (4, 5)]), ("...i,...i->...", [(2, 1, 3), (4, 3)]), ("b...,b->...", [(2, 3, 4), (2,)]),
    ("cba", [(2, 3, 4)]), ("i,i,i->i", [(3,), (3,), (3,)]),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "a", "b"), PRODUCTS)
def test_two_operands(equation: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = RNG.standard_normal(a).astype(np.float32), RNG.standard_normal(b).astype(np.float32)
    check_op("Einsum", [x, y], opset=12, equation=equation, atol=1e-5)
    turned = np.ascontiguousarray(x.T).T[..., ::-1]
    expected = np.einsum(equation.replace(" ", ""), turned, y)
    assert_close(run_op("Einsum", [turned, y], opset=12, equation=equation), [expected], atol=1e-5)


@pytest.mark.parametrize(("equation", "shapes"), OTHERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_all_other_equations(equation: str, shapes: list[tuple[int, ...]], dtype: Any) -> None:
    operands = [(RNG.standard_normal(s) * 4).astype(dtype) for s in shapes]
    expected = np.einsum(equation, *operands)
    assert_close(run_op("Einsum", operands, opset=12, equation=equation), [expected], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("equation", ["bhid,bhjd->bhij", "ij,jk->ki", "abc,cd->abd"])
def test_these_are_matrix_products(equation: str) -> None:
    shapes = {"b": 2, "h": 2, "i": 3, "j": 4, "d": 5, "k": 6, "a": 2, "c": 5}
    sides = equation.split("->")[0].split(",")
    concrete = [tuple(shapes[c] for c in side) for side in sides]
    op = operation("Einsum", [None, None], opset=12)
    assert as_product(parse(op, equation, concrete), concrete) is not None


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_adds_in_float32(dtype: Any) -> None:
    x, y = (RNG.standard_normal(s).astype(dtype) for s in ((3, 200), (200, 2)))
    expected = (x.astype(np.float32) @ y.astype(np.float32)).astype(dtype)
    assert_close(run_op("Einsum", [x, y], opset=12, equation="ij,jk->ik"), [expected], rtol=1e-2, atol=1e-2)


def test_empty_extents() -> None:
    x, y = np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)
    assert_close(run_op("Einsum", [x, y], opset=12, equation="ij,jk->ik"), [np.zeros((2, 3), np.float32)])
    assert_close(run_op("Einsum", [x], opset=12, equation="ij->i"), [np.zeros(2, np.float32)])


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ij,jk,kl->il", "3 terms for 2 operands"),
        ("ijk,jk->ik", "does not describe"),
        ("i1,jk->ik", "does not describe"),
        ("ij,jk->iz", "no output"),
        ("ij,jk->ii", "no output"),
        ("ij,ik->jk", "'i' is 2 and 3"),
        ("....ij,jk->ik", "does not describe"),
    ],
)
def test_equations_that_cannot_be_are_errors(equation: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        run_op(
            "Einsum",
            [np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)],
            opset=12,
            equation=equation,
        )
