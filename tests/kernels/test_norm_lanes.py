"""Normalising rows in lanes: the compiled form against its twin, and rows that know nothing of each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.norm_lanes import normalise_lanes
from tests.kernels.harness import run_op


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 300), st.booleans(), st.booleans())
def test_compiled_rows_agree_with_the_twin(rows: int, n: int, centred: bool, parallel: bool) -> None:
    rng = np.random.default_rng(n)
    x, scale, bias = (rng.standard_normal(s).astype(np.float32) for s in ((rows, n), n, n))
    expected, y = np.empty_like(x), np.empty_like(x)
    normalise_lanes.twin(x, scale, bias, expected, 1e-3, int(centred))
    normalise_lanes.variant(x, parallel=parallel)(x, scale, bias, y, 1e-3, int(centred))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(2, 30))
def test_the_bits_of_a_row_do_not_depend_on_the_rows_beside_it(n: int, rows: int) -> None:
    rng = np.random.default_rng(n)
    x, scale, bias = (rng.standard_normal(s).astype(np.float32) for s in ((rows, n), n, n))
    together, alone, in_place = np.empty_like(x), np.empty_like(x), x.copy()
    function = normalise_lanes.variant(x)
    function(x, scale, bias, together, 1e-5, 1)
    function(in_place, scale, bias, in_place, 1e-5, 1)
    for r in range(rows):
        function(x[r : r + 1], scale, bias, alone[r : r + 1], 1e-5, 1)
    assert together.tobytes() == alone.tobytes() == in_place.tobytes()


@pytest.mark.parametrize("with_bias", [True, False])
def test_a_layer_norm_is_the_same_with_and_without_compiled_code(
    with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in ((3, 5, 70), (70,), (70,))[: 2 + with_bias]]
    inputs[0][1, 2, 3] = np.nan
    (compiled,) = run_op("LayerNormalization", inputs, opset=17)
    monkeypatch.setenv("HETERO_JIT", "0")
    (plain,) = run_op("LayerNormalization", inputs, opset=17)
    assert np.isnan(compiled).sum() == 70
    np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=1e-5)
