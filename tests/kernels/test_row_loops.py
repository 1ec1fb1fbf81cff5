"""Compiled loops over rows: against their twins, on threads as without, and in place."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels import row_loops
from hetero.kernels.jit import Jitted, enabled
from hetero.kernels.row_loops import address, bind_norm, bind_unary, mean_rows, takes_rows
from hetero.kernels.softmax_rows import softmax_rows

pytestmark = pytest.mark.skipif(not enabled(), reason="nothing is compiled")
SHAPES = ((1, 768), (3, 16), (5, 17), (2, 1), (130, 600))


def numbers(*shape: int, seed: int = 0, scale: float = 3.0) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def norm_operands(rows: int, width: int, everything: bool) -> dict[int, Any]:
    arrays: dict[int, Any] = {row_loops.X: numbers(rows, width), row_loops.OUT: np.empty((rows, width), "f4")}
    if everything:
        vectors = (row_loops.SCALE, row_loops.SHIFT, row_loops.BIAS)
        arrays |= {place: numbers(width, seed=place) for place in vectors}
        arrays |= {place: np.empty(rows, np.float32) for place in (row_loops.MEAN, row_loops.INVERSE)}
        arrays[row_loops.SKIP] = numbers(rows if rows % 2 else rows // 2, width, seed=5)
        arrays[row_loops.TOTAL] = np.empty((rows, width), np.float32)
    return arrays


def normed(arrays: dict[int, Any], function: Any, centred: bool) -> list[Any]:
    """What `function` writes: out, total, mean and inverse (those that are there)."""
    call = bind_norm(*arrays[row_loops.X].shape, centred, 1e-5, arrays)
    words, epsilon = call.arguments  # type: ignore[attr-defined]
    function(words, epsilon)
    places = (row_loops.OUT, row_loops.TOTAL, row_loops.INVERSE, *((row_loops.MEAN,) if centred else ()))
    return [arrays[place].copy() for place in places if place in arrays]


@pytest.mark.parametrize(
    ("shape", "everything", "centred"), list(product(SHAPES, (False, True), (False, True)))
)
def test_a_norm_is_its_twins_and_the_same_on_threads(
    shape: tuple[int, int], everything: bool, centred: bool
) -> None:
    arrays = norm_operands(*shape, everything)
    word, epsilon = np.zeros(1, np.int64), np.zeros(1, np.float32)
    serial, parallel = (
        normed(arrays, row_loops.norm.variant(word, epsilon, parallel=p), centred) for p in (False, True)
    )
    twin = normed(arrays, row_loops.norm.twin, centred)
    for one, other, expected in zip(serial, parallel, twin, strict=True):
        assert one.tobytes() == other.tobytes()
        np.testing.assert_allclose(one, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("function", "shape"), list(product((softmax_rows, mean_rows), SHAPES)))
def test_rows_are_their_twins_and_the_same_on_threads(function: Jitted, shape: tuple[int, int]) -> None:
    x = numbers(*shape)
    results = []
    for variant in (function.variant(np.zeros(1, np.int64)),
                    function.variant(np.zeros(1, np.int64), parallel=True), function.twin):  # fmt: skip
        out = np.full(shape if function is softmax_rows else shape[0], np.nan, np.float32)
        variant(np.array([*shape, address(x), address(out)], np.int64))
        results.append(out)
    assert results[0].tobytes() == results[1].tobytes()
    np.testing.assert_allclose(results[0], results[2], rtol=1e-5, atol=1e-6)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 3))
def test_a_softmax_in_place_is_the_one_apart(width: int, shift: int) -> None:
    memory = numbers(shift + 3 * width, seed=width)
    x = memory[shift:].reshape(3, width)
    out = np.empty_like(x)
    bind_unary(softmax_rows, 3, width, x.copy(), out)()
    bind_unary(softmax_rows, 3, width, x, x)()
    assert x.tobytes() == out.tobytes()


def test_a_softmax_knows_infinities_and_nan() -> None:
    x = np.array([[0, -np.inf, 1], [-np.inf] * 3, [0, np.nan, 1], [0, np.inf, 1]], np.float32)
    out = np.empty_like(x)
    bind_unary(softmax_rows, 4, 3, x, out)()
    np.testing.assert_allclose(out[0], np.array([1, 0, np.e]) / (1 + np.e), rtol=1e-6)
    assert out[0, 1] == 0
    assert np.isnan(out[1:3]).all()
    assert np.isnan(out[3, 1])


def test_operands_that_are_not_aligned_give_the_same_bits() -> None:
    raw = np.zeros(4 * 96 + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(2, 48)
    odd[...] = numbers(2, 48)
    found = []
    for x in (odd, odd.copy()):
        out, normal = np.empty((2, 48), np.float32), np.empty((2, 48), np.float32)
        bind_unary(softmax_rows, 2, 48, x, out)()
        bind_norm(2, 48, True, 1e-5, {row_loops.X: x, row_loops.OUT: normal})()
        found.append(out.tobytes() + normal.tobytes())
    assert found[0] == found[1]


def test_long_rows_other_dtypes_and_other_array_modules_are_left_to_others() -> None:
    single, double = np.dtype(np.float32), np.dtype(np.float64)
    assert takes_rows(np, 1, 768, single)
    assert not takes_rows(np, 1, row_loops.MOST_WIDTH + 1, single)
    assert not takes_rows(np, 1, 768, single, double)
    assert not takes_rows(object(), 1, 768, single)
    assert not takes_rows(np, 0, 768, single)
