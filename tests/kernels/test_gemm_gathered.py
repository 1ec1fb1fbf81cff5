"""Products whose right factor is laid out on the way: of any strides, no byte read beyond it, and where BLAS stays."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.gemm import bind_matmul
from hetero.kernels.gemm_gathered import Offsets, bind_gathered_product, is_gathered
from hetero.kernels.jit import enabled
from hetero.kernels.jit_tiles import columns

RNG = np.random.default_rng(11)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def product(a: Any, b: Any) -> Any:
    out = np.full((len(a), b.shape[1]), np.nan, np.float32)
    bind_gathered_product(a, b, out)()
    return out


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(
        product(a, b), a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-3
    )


@settings(deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 200),
    st.sampled_from([1, 3, 7, 8, 64, 511, 512, 513, 1025]),
    st.sampled_from(["rows", "columns", "every other", "turned back", "broadcast"]),
)
def test_any_strides(m: int, n: int, k: int, lies: str) -> None:
    a = normal(m, k)
    b = {
        "rows": lambda: normal(k, n),
        "columns": lambda: normal(n, k).T,
        "every other": lambda: normal(k, 2 * n)[:, ::2],
        "turned back": lambda: normal(k, n)[::-1],
        "broadcast": lambda: np.broadcast_to(normal(k, 1), (k, n)),
    }[lies]()
    close(a, b)
    close(normal(k, m).T, b)


@pytest.mark.skipif(not enabled(), reason="the twin's products are BLAS's")
def test_the_bits_do_not_hang_on_how_the_operands_lie() -> None:
    a, b = normal(40, 130), normal(130, 90)
    want = product(a, b).tobytes()
    for left in (a, np.asfortranarray(a)):
        for right in (b, np.asfortranarray(b), np.repeat(b, 2, 1)[:, ::2]):
            assert product(left, right).tobytes() == want
    assert product(a[7:9], b).tobytes() == product(a, b)[7:9].tobytes()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("k", "n"), [(5, 16), (64, 48), (33, 17), (513, 3)])
def test_nothing_is_read_behind_the_operands(k: int, n: int, turned: bool) -> None:
    """The right factor ends where memory ends: reading on would end the process."""
    page = mmap.PAGESIZE
    size = -(-4 * k * n // page) * page
    memory = mmap.mmap(-1, size + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert protect(start + size, page, 0) == 0
    b = np.frombuffer(memory, np.float32, k * n, size - 4 * k * n)
    b[:] = normal(k * n)
    a = normal(20, k)
    matrix = b.reshape(n, k).T if turned else b.reshape(k, n)
    got, want = product(a, matrix), product(a, matrix.copy())
    assert protect(start + size, page, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    assert got.tobytes() == want.tobytes()


def test_runs_end_with_vectors_panels_and_gaps() -> None:
    places = 4 * np.array([0, 1, 2, 10, 11, 12, 13], np.int64)
    assert Offsets.of(np.zeros(1, np.int64), places, 4).runs.tolist() == [3, 2, 1, 4, 3, 2, 1]
    wide = np.arange(columns() + 5, dtype=np.int64) * 8
    runs = Offsets.of(np.zeros(1, np.int64), wide, 8).runs
    assert runs[0] == 16
    assert runs[columns() - 1] == 1
    assert runs[columns()] == 5


def test_small_products_and_other_dtypes_stay_with_blas() -> None:
    single, double = np.dtype(np.float32), np.dtype(np.float64)
    assert is_gathered(np, (96, 96), (96, 96), single) == enabled()
    assert not is_gathered(np, (96, 96), (96, 96), double)
    assert not is_gathered(np, (96, 96), (96, 85), single)
    assert not is_gathered(np, (4, 1024), (1024, 1024), single)
    assert not is_gathered(np, (64, 0), (0, 64), single)


def test_a_batch_of_rows_is_one_product() -> None:
    a, b = normal(3, 80, 96), normal(96, 60)
    out = np.empty((3, 80, 60), np.float32)
    bind_matmul(np, a, b, out)()
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)
    if enabled():
        assert out.tobytes() == product(a.reshape(240, 96), b).tobytes()
