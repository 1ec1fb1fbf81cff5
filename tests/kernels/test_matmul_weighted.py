"""Products of a few rows with matrices whose rows are dense: numpy's result, and the same bits for every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels import matmul_few
from hetero.kernels.jit import enabled
from hetero.kernels.matmul_weighted import bind_weighted, is_weighted, weighted_products
from tests.kernels.harness import compile_op, run_op

pytestmark = pytest.mark.skipif(not enabled(), reason="nothing is compiled")
SINGLE = np.dtype(np.float32)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(a: Any, b: Any) -> Any:
    out = np.full((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.nan, "f4")
    bind_weighted(a, b, out)()
    return out


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(256, 400), st.integers(16, 70), st.booleans())
def test_every_layout_gives_the_same_bits_and_numpys_numbers(m: int, k: int, n: int, shared: bool) -> None:
    a = numbers(2, 1 if shared else 3, m, k)
    b = numbers(2, 3, k + 5, n, seed=1)[:, :, :k]
    found = product(a, b)
    np.testing.assert_allclose(found, a @ b, rtol=2e-5, atol=5e-5)
    assert product(a, np.ascontiguousarray(b)).tobytes() == found.tobytes()
    turned = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    assert product(a, turned).tobytes() == found.tobytes()
    odd = np.zeros(a.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(a.shape)
    odd[...] = a
    assert product(odd, b).tobytes() == found.tobytes()


def test_threads_and_the_twin_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers(3, 2, 300), numbers(3, 300, 64, seed=1)
    serial = product(a, b)
    with monkeypatch.context() as patched:
        patched.setattr(matmul_few, "PARALLEL_ELEMENTS", 0)
        assert product(a, b).tobytes() == serial.tobytes()
    with monkeypatch.context() as patched:
        patched.setattr(type(weighted_products), "variant", lambda self, *_, **__: self.twin)
        np.testing.assert_allclose(product(a, b), serial, rtol=2e-5, atol=2e-5)


def test_shapes_alone_decide() -> None:
    assert is_weighted(np, (1, 12, 1, 512), (1, 12, 512, 64), SINGLE)
    assert not is_weighted(np, (1, 12, 5, 512), (1, 12, 512, 64), SINGLE)
    assert not is_weighted(np, (1, 12, 1, 255), (1, 12, 255, 64), SINGLE)
    assert not is_weighted(np, (1, 12, 1, 512), (1, 12, 512, 300), SINGLE)
    assert not is_weighted(np, (1, 1, 512), (1, 512, 64), SINGLE)
    assert not is_weighted(np, (1, 12, 1, 512), (1, 12, 512, 64), np.dtype(np.float64))
    assert not is_weighted(object(), (1, 12, 1, 512), (1, 12, 512, 64), SINGLE)


def test_infinities_and_nans_are_not_lost() -> None:
    a, b = numbers(2, 1, 300), numbers(2, 300, 16, seed=1)
    b[0, 7, 3], b[1, 299, 0] = np.inf, np.nan
    (found,) = run_op("MatMul", [a, b], opset=13)
    assert np.isinf(found[0, 0, 3])
    assert np.isnan(found[1, 0, 0])
    assert np.isfinite(np.delete(found.ravel(), [3, 16])).all()


def test_the_operator_takes_a_part_of_a_larger_buffer_where_it_lies() -> None:
    a, b = numbers(1, 3, 1, 300), numbers(1, 3, 400, 32, seed=1)[:, :, :300]
    _, compiled = compile_op("MatMul", [a, b], opset=13)
    assert 1 in compiled.blocks
    (found,) = run_op("MatMul", [a, b], opset=13)
    (expected,) = run_op("MatMul", [a, np.ascontiguousarray(b)], opset=13)
    assert found.tobytes() == expected.tobytes()
