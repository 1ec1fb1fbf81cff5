"""Softmax of rows: the compiled form against its twin, what is not finite, and rows that know nothing of each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.softmax_rows import softmax_rows
from tests.kernels.harness import run_op


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 300), st.integers(0, 99), st.booleans())
def test_compiled_rows_agree_with_the_twin_and_sum_to_one(
    rows: int, n: int, seed: int, parallel: bool
) -> None:
    x = (np.random.default_rng(seed).standard_normal((rows, n)) * 20).astype(np.float32)
    expected, y = np.empty_like(x), np.empty_like(x)
    softmax_rows.twin(x, expected)
    softmax_rows.variant(x, y, parallel=parallel)(x, y)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-37)
    np.testing.assert_allclose(y.sum(1, dtype=np.float64), 1, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(2, 30))
def test_the_bits_of_a_row_do_not_depend_on_the_rows_beside_it(n: int, rows: int) -> None:
    x = np.random.default_rng(n).standard_normal((rows, n)).astype(np.float32)
    together, alone, in_place = np.empty_like(x), np.empty_like(x), x.copy()
    softmax_rows.variant(x)(x, together)
    softmax_rows.variant(x)(in_place, in_place)
    for r in range(rows):
        softmax_rows.variant(x)(x[r : r + 1], alone[r : r + 1])
    assert together.tobytes() == alone.tobytes() == in_place.tobytes()


@pytest.mark.parametrize("n", [5, 16, 64, 200])
def test_masked_elements_are_zero_and_what_is_not_finite_spoils_its_row_alone(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(1).standard_normal((6, n)).astype(np.float32)
    x[0, 1::2] = -np.inf
    x[1, n - 1], x[2, 3], x[3] = np.nan, np.inf, -np.inf
    x[4, 2] = -200
    (y,) = run_op("Softmax", [x], opset=13)
    assert (y[0, 1::2] == 0).all()
    assert np.isnan(y).all(1).tolist() == [False, True, True, True, False, False]
    assert not np.isnan(y[[0, 4, 5]]).any()
    assert y[4, 2] == 0
    monkeypatch.setenv("HETERO_JIT", "0")
    np.testing.assert_allclose(run_op("Softmax", [x], opset=13)[0], y, rtol=2e-6, atol=1e-37)
