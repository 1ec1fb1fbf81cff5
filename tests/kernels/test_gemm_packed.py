"""Products with packed matrices: the routes of MatMul and Gemm that BLAS does not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.derived import Keeper
from hetero.kernels.gemm_packed import bind_packed, is_packed, packed, product
from hetero.kernels.jit_tiles import columns
from tests.kernels.harness import check_op, compile_op, run_op

RNG = np.random.default_rng(3)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def weights(*shape: int) -> Any:
    b = normal(*shape)
    b.flags.writeable = False
    return b


def exactly(a: Any, b: Any) -> Any:
    return a.astype(np.float64) @ b.astype(np.float64)


@settings(deadline=None)  # the first example may load compiled code
@given(
    st.integers(64, 700), st.integers(64, 400), st.sampled_from([(), (1,), (3,), (2, 5), (1, 1, 64), (131,)])
)
def test_rows_times_a_matrix(k: int, n: int, lead: tuple[int, ...]) -> None:
    a, b = normal(*lead, k), normal(k, n)
    (y,) = run_op("MatMul", [a, b], opset=13)
    assert y.shape == (*lead, n)
    np.testing.assert_allclose(y, exactly(a, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "twin"])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize(("rows", "alpha", "beta"), [(1, 1.0, 1.0), (1, 0.5, 1.0), (17, 2.0, 0.5)])
def test_gemm(
    trans_a: int,
    trans_b: int,
    rows: int,
    alpha: float,
    beta: float,
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setenv("HETERO_JIT", "0")
    a, b, c = normal(rows, 150), normal(150, 130), normal(130)
    inputs = [a.T.copy() if trans_a else a, b.T.copy() if trans_b else b, c]
    check_op(
        "Gemm", inputs, opset=13, transA=trans_a, transB=trans_b, alpha=alpha, beta=beta, rtol=1e-4, atol=1e-4
    )


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    a, b = normal(64, 1100), normal(1100, 200)
    whole = np.empty((64, 200), np.float32)
    bind_packed(Keeper(), a, b, whole)()
    for rows in (slice(0, 1), slice(13, 15), slice(5, 58)):
        part = np.empty_like(whole[rows])
        bind_packed(Keeper(), a[rows], b, part)()
        assert part.tobytes() == whole[rows].tobytes()


def test_one_thread_and_several_give_the_same_bits() -> None:
    a, b = normal(100, 300), weights(300, 500)
    results = []
    for parallel in (False, True):
        out = np.empty((100, 500), np.float32)
        call: Any = bind_packed(Keeper(), a, b, out)
        product.variant(call.arguments[0], parallel=parallel)(*call.arguments)
        results.append(out.tobytes())
    assert results[0] == results[1]


def test_constant_and_variable_matrices_give_the_same_bits_and_variable_ones_are_read_anew() -> None:
    a, b = normal(2, 200), normal(200, 150)
    _, compiled = compile_op("MatMul", [a, b], opset=13)
    fixed = b.copy()
    fixed.flags.writeable = False
    y, z = np.empty((2, 2, 150), np.float32)
    assert compiled.bind is not None
    varying = compiled.bind([a, b], [y], None)
    varying()
    compiled.bind([a, fixed], [z], None)()
    assert y.tobytes() == z.tobytes()
    b *= 2
    varying()
    np.testing.assert_allclose(y, 2 * z, rtol=1e-5)


def test_neighbours_in_memory_are_left_alone() -> None:
    a, b = normal(7, 90), normal(90, 77)
    around = np.full((9, 77), 5, np.float32)
    bind_packed(Keeper(), a, b, around[1:8])()
    np.testing.assert_allclose(around[1:8], exactly(a, b), rtol=1e-4, atol=1e-4)
    assert (around[0] == 5).all()
    assert (around[8] == 5).all()


def test_what_was_in_the_output_does_not_matter() -> None:
    a, b = normal(7, 1300), normal(1300, 77)
    out = np.full((7, 77), np.nan, np.float32)
    bind_packed(Keeper(), a, b, out)()
    np.testing.assert_allclose(out, exactly(a, b), rtol=1e-4, atol=1e-4)


def test_nan_and_infinity_reach_their_own_row_and_column_only() -> None:
    a, b = normal(8, 80), normal(80, 100)
    a[2, 3], b[4, 70] = np.nan, np.inf
    (y,) = run_op("MatMul", [a, b], opset=13)
    odd = ~np.isfinite(y)
    odd[2] = odd[:, 70] = False
    assert not odd.any()
    assert np.isnan(y[2]).all()
    assert not np.isfinite(y[:, 70]).any()


def test_panels_hold_the_columns_and_then_zeros() -> None:
    b = normal(70, 2 * columns() + 3)
    panels = packed(b)
    assert panels.shape == (3, 70, columns())
    assert panels.ctypes.data % 64 == 0
    assert np.array_equal(panels.transpose(1, 0, 2).reshape(70, -1)[:, : b.shape[1]], b)
    assert not panels[2, :, 3:].any()
    assert np.array_equal(packed(b.T.copy().T), panels)


def test_the_twin_is_close() -> None:
    a, b = normal(33, 500), weights(500, 300)
    results = []
    for function in (product.variant(np.zeros(1, np.int64)), product.twin):
        out = np.empty((33, 300), np.float32)
        call: Any = bind_packed(Keeper(), a, b, out)
        function(*call.arguments)
        results.append(out)
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)


def test_the_shapes_alone_decide() -> None:
    f32 = np.dtype(np.float32)
    assert is_packed(np, (1, 1, 256), (256, 256), f32)
    assert is_packed(np, (200, 256), (256, 256), f32)
    assert not is_packed(np, (0, 256), (256, 256), f32)
    assert not is_packed(np, (1, 256), (256, 63), f32)
    assert not is_packed(np, (1, 256), (256, 256), np.dtype(np.float64))
    assert not is_packed(np, (1, 4096), (4096, 4097), f32), "a packed copy of more than 64 MiB is not kept"
