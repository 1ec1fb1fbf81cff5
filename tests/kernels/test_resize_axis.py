"""Tables of one axis: weights add up to one, and single taps are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.kernels.resize_axis import AxisTable, Sampling, axis_table

MODES = st.sampled_from(["nearest", "linear", "cubic"])


def table(how: Sampling, extent: int, count: int) -> AxisTable:
    return axis_table(how, 1, extent, count, count / extent, float(count), (0.0, 1.0))


@given(MODES, st.booleans(), st.booleans(), st.integers(1, 40), st.integers(1, 40))
def test_weights_add_up_to_one_and_indices_are_legal(
    mode: str, exclude: bool, antialias: bool, extent: int, count: int
) -> None:
    how = Sampling(mode, "half_pixel", "floor", exclude_outside=exclude, antialias=antialias)
    t = table(how, extent, count)
    assert t.index.shape == t.weight.shape
    assert len(t.index) == count
    assert t.index.min() >= 0
    assert t.index.max() < extent
    assert t.weight.sum(1) == pytest.approx(1, abs=1e-9)


@given(MODES, st.integers(1, 30))
def test_an_axis_that_keeps_its_extent_is_left_alone(mode: str, extent: int) -> None:
    for coordinates in ("half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"):
        assert table(Sampling(mode, coordinates), extent, extent).identity(extent)


def test_linear_between_two_elements_weighs_them_by_distance() -> None:
    t = table(Sampling("linear", "asymmetric"), 2, 8)
    assert (t.weight[1] @ np.array([0.0, 1.0])[t.index[1]]).item() == 0.25


def test_antialias_takes_more_taps_the_more_it_shrinks() -> None:
    def taps(count: int) -> Any:
        return table(Sampling("linear", "half_pixel", antialias=True), 32, count).index.shape[1]

    assert taps(32) <= 2 < taps(16) < taps(4)
