"""Products of a few rows with turned matrices: numpy's result, and the same bits for every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels import matmul_few
from hetero.kernels.jit import enabled
from hetero.kernels.matmul_few import bind_few_rows, is_few_rows, products
from tests.kernels.harness import compile_op, run_op
from tests.runtime.harness import rig

pytestmark = pytest.mark.skipif(not enabled(), reason="nothing is compiled")
SINGLE = np.dtype(np.float32)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(a: Any, b: Any) -> Any:
    out = np.full((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.nan, "f4")
    bind_few_rows(a, b, out)()
    return out


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(16, 70), st.integers(256, 300), st.booleans())
def test_every_layout_gives_the_same_bits_and_numpys_numbers(m: int, k: int, n: int, shared: bool) -> None:
    a = numbers(2, 1 if shared else 3, m, k)
    keys = numbers(2, 3, n + 5, k, seed=1)[:, :, :n]
    b = keys.swapaxes(-1, -2)
    found = product(a, b)
    np.testing.assert_allclose(found, a @ b, rtol=2e-5, atol=2e-5)
    assert product(a, np.ascontiguousarray(b)).tobytes() == found.tobytes()
    assert product(a, np.ascontiguousarray(keys).swapaxes(-1, -2)).tobytes() == found.tobytes()
    odd = np.zeros(a.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(a.shape)
    odd[...] = a
    assert product(odd, b).tobytes() == found.tobytes()


def test_threads_and_the_twin_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers(3, 2, 64), numbers(3, 300, 64, seed=1).swapaxes(-1, -2)
    serial = product(a, b)
    with monkeypatch.context() as patched:
        patched.setattr(matmul_few, "PARALLEL_ELEMENTS", 0)
        assert product(a, b).tobytes() == serial.tobytes()
    with monkeypatch.context() as patched:
        patched.setattr(type(products), "variant", lambda self, *_, **__: self.twin)
        np.testing.assert_allclose(product(a, b), serial, rtol=2e-5, atol=2e-5)


def test_shapes_alone_decide() -> None:
    assert is_few_rows(np, (1, 12, 1, 64), (1, 12, 64, 512), SINGLE)
    assert not is_few_rows(np, (1, 12, 5, 64), (1, 12, 64, 512), SINGLE)
    assert not is_few_rows(np, (1, 12, 1, 64), (1, 12, 64, 255), SINGLE)
    assert not is_few_rows(np, (1, 12, 1, 300), (1, 12, 300, 512), SINGLE)
    assert not is_few_rows(np, (1, 1, 64), (1, 64, 512), SINGLE)
    assert not is_few_rows(np, (1, 12, 1, 64), (1, 12, 64, 512), np.dtype(np.float64))
    assert not is_few_rows(object(), (1, 12, 1, 64), (1, 12, 64, 512), SINGLE)


def test_the_operator_takes_turned_keys_where_they_lie() -> None:
    q, k = numbers(1, 3, 1, 32), numbers(1, 3, 300, 32, seed=1)
    _, compiled = compile_op("MatMul", [q, k.swapaxes(-1, -2)], opset=13)
    assert (compiled.blocks, compiled.turned) == ({0, 1}, {1})
    (expected,) = run_op("MatMul", [q, np.ascontiguousarray(k.swapaxes(-1, -2))], opset=13)
    r = rig(
        '<ir_version: 9, opset_import: ["": 18]> g (float[1, 3, 1, 32] q, float[1, 3, 300, 32] k)'
        " => (float[1, 3, 1, 300] y) { n = Neg(k) p = Neg(n) t = Transpose<perm=[0, 1, 3, 2]>(p) y = MatMul(q, t) }"
    )
    assert r(q, k)[0].tobytes() == expected.tobytes()
    assert r.runner.statistics.contiguous_copies == 0
