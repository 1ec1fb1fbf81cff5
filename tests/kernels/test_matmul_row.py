"""One row times a matrix: the routes of MatMul and Gemm that read it turned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.matmul_row import is_row, row_product
from tests.kernels.harness import check_op, compile_op, run_op

RNG = np.random.default_rng(3)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def product(a: Any, b: Any) -> Any:
    return a.astype(np.float64) @ b.astype(np.float64)


@settings(deadline=None)  # the first example may load compiled code
@given(st.integers(64, 400), st.integers(64, 400), st.sampled_from([(), (1,), (1, 1), (1, 1, 1)]))
def test_a_row_times_a_matrix(k: int, n: int, lead: tuple[int, ...]) -> None:
    a, b = normal(*lead, k), normal(k, n)
    (y,) = run_op("MatMul", [a, b], opset=13)
    assert y.shape == (*lead, n)
    np.testing.assert_allclose(y, product(a, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "twin"])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_gemm_of_a_row(
    trans_a: int, trans_b: int, alpha: float, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setenv("HETERO_JIT", "0")
    a, b, c = normal(1, 150), normal(150, 130), normal(130)
    inputs = [a.T.copy() if trans_a else a, b.T.copy() if trans_b else b, c]
    check_op("Gemm", inputs, opset=13, transA=trans_a, transB=trans_b, alpha=alpha, rtol=1e-4, atol=1e-4)


def test_constant_and_variable_matrices_give_the_same_bits_and_variable_ones_are_read_anew() -> None:
    a, b = normal(1, 200), normal(200, 150)
    _, compiled = compile_op("MatMul", [a, b], opset=13)
    fixed = b.copy()
    fixed.flags.writeable = False
    y, z = np.empty((2, 1, 150), np.float32)
    assert compiled.bind is not None
    varying = compiled.bind([a, b], [y], None)
    varying()
    compiled.bind([a, fixed], [z], None)()
    assert y.tobytes() == z.tobytes()
    b *= 2
    varying()
    np.testing.assert_allclose(y, 2 * z, rtol=1e-5)


def test_the_twin_is_close() -> None:
    row, turned = normal(500), normal(300, 500)
    results = np.empty((2, 300), np.float32)
    for function, out in zip((row_product.variant(row), row_product.twin), results, strict=True):
        function(row, turned, out)
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)


def test_the_shapes_alone_decide() -> None:
    f32 = np.dtype(np.float32)
    assert is_row(np, (1, 1, 256), (256, 256), f32)
    assert not is_row(np, (2, 256), (256, 256), f32)
    assert not is_row(np, (1, 256), (256, 63), f32)
    assert not is_row(np, (1, 256), (256, 256), np.dtype(np.float64))
    assert not is_row(np, (1, 4096), (4096, 4097), f32), "a turned copy of more than 64 MiB is not kept"
