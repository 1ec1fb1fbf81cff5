"""Products of many matrices in tiles: exact enough, and the same bits however they lie and on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.gemm_batched import batched, bind_batched, is_batched
from hetero.kernels.jit import enabled
from tests.kernels.harness import compile_op, run_op

RNG = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def exactly(a: Any, b: Any) -> Any:
    return a.astype(np.float64) @ b.astype(np.float64)


def bound(a: Any, b: Any) -> Any:
    out = np.full(
        (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.nan, np.float32
    )
    bind_batched(a, b, out)()
    return out


@settings(deadline=None, max_examples=40)  # the first example may load compiled code
@given(
    m=st.integers(5, 40),
    k=st.sampled_from([1, 7, 8, 33, 64, 600]),
    n=st.sampled_from([1, 15, 16, 17, 70, 129]),
    batch=st.sampled_from([((3,), (3,)), ((2, 1), (5,)), ((), (4,)), ((1, 3), (2, 3)), ((2, 3), (1, 1, 3))]),
    turned=st.booleans(),
)
def test_any_shapes_that_broadcast(m: int, k: int, n: int, batch: Any, turned: bool) -> None:
    a = normal(*batch[0], m, k)
    b = normal(*batch[1], n, k).swapaxes(-1, -2) if turned else normal(*batch[1], k, n)
    got = bound(a, b)
    np.testing.assert_allclose(got, exactly(a, b), rtol=1e-4, atol=1e-4)
    (y,) = run_op("MatMul", [a, b], opset=13)
    if is_batched(np, a.shape, b.shape, a.dtype):
        assert y.tobytes() == got.tobytes()


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "twin"])
def test_the_bits_are_the_same_however_the_matrices_lie(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setenv("HETERO_JIT", "0")
    a, b = normal(6, 20, 48), normal(6, 48, 35)
    want = bound(a, b)
    np.testing.assert_allclose(want, exactly(a, b), rtol=1e-4, atol=1e-4)
    columns = np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)
    apart = np.zeros((6, 60, 48), np.float32)
    apart[:, :20] = a
    heads = np.ascontiguousarray(a.swapaxes(0, 1)).swapaxes(0, 1)
    odd = np.frombuffer(b"\0" + b.tobytes(), np.uint8)[1:].view(np.float32).reshape(b.shape)
    every_other = np.repeat(b, 2, 2)[:, :, ::2]
    assert not odd.flags.aligned
    for left in (a, apart[:, :20], heads):
        for right in (b, columns, odd, every_other):
            got = bound(left, right)
            if compiled:
                assert got.tobytes() == want.tobytes()
            else:
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not enabled(), reason="threads are numba's")
def test_threads_change_no_bit() -> None:
    import numba

    a, b = normal(24, 64, 96), normal(24, 96, 80)
    before = numba.get_num_threads()
    found = set()
    try:
        for threads in (1, before):
            numba.set_num_threads(threads)
            found.add(bound(a, b).tobytes())
    finally:
        numba.set_num_threads(before)
    serial = np.empty((24, 64, 80), np.float32)
    for k in range(24):  # too small for threads
        bind_batched(a[k : k + 1], b[k : k + 1], serial[k : k + 1])()
    assert found == {serial.tobytes()}


def test_a_matrix_has_the_same_bits_alone_and_among_others() -> None:
    a, b = normal(9, 32, 700), normal(9, 700, 40)
    whole = bound(a, b)
    for k in (0, 4, 8):
        assert bound(a[k : k + 1], b[k : k + 1]).tobytes() == whole[k : k + 1].tobytes()


def test_nothing_of_a_panel_is_left_for_the_next_matrix() -> None:
    a, b = normal(3, 8, 16), normal(3, 16, 17)
    b[0] = np.nan
    got = bound(a, b)
    assert np.isnan(got[0]).all()
    assert np.isfinite(got[1:]).all()


def test_a_transposed_factor_is_read_where_it_lies() -> None:
    _, compiled = compile_op("MatMul", [normal(4, 16, 32), normal(4, 32, 16)], opset=13)
    assert compiled.turned == {1}
    assert compiled.as_they_lie == {0, 1}


def test_few_rows_and_single_matrices_go_other_ways() -> None:
    dtype = np.dtype(np.float32)
    assert not is_batched(np, (3, 4, 64), (3, 64, 64), dtype)
    assert not is_batched(np, (64, 64), (1, 64, 64), dtype)
    assert not is_batched(np, (3, 5, 0), (3, 0, 64), dtype)
    assert not is_batched(np, (3, 5, 4), (3, 4, 8), dtype)
    assert not is_batched(np, (3, 64, 64), (3, 64, 64), np.dtype(np.float64))
    assert is_batched(np, (3, 64, 64), (3, 64, 64), dtype) == enabled()
    assert batched.exact
