"""Max pooling in one compiled pass against its twin, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.pool_max import max_planes
from tests.kernels.harness import run_op


@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans())
def test_compiled_pooling_and_its_twin_give_the_same_bits(data: st.DataObject, parallel: bool) -> None:
    axes = []
    for longest_step in (3, 2):
        kernel, dilation = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
        step, pad = data.draw(st.integers(1, longest_step)), data.draw(st.integers(0, 3))
        reach = (kernel - 1) * dilation + 1
        extent = data.draw(st.integers(max(1, reach - 2 * pad), reach + 40))
        outputs = (extent + 2 * pad - reach) // step + data.draw(
            st.integers(1, 2)
        )  # ceil_mode may have one more
        axes.append((extent, outputs, kernel, step, dilation, pad))
    (height, rows, *along), (width, columns, *across) = axes
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.standard_normal((3, height, width)).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = np.nan
    x[rng.random(x.shape) < 0.05] = -np.inf
    arguments = [number for pair in zip(along, across, strict=True) for number in pair]
    expected, y = (np.empty((3, rows, columns), np.float32) for _ in range(2))
    max_planes.twin(x, expected, *arguments)
    max_planes.variant(x, y, parallel=parallel)(x, y, *arguments)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 17), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
        ((1, 2, 9, 31), {"kernel_shape": [2, 5], "strides": [1, 3]}),
        ((1, 2, 5, 6, 7), {"kernel_shape": [2, 2, 2]}),
        ((1, 2, 9, 30), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ],
    ids=["one axis", "long steps", "three axes", "two axes"],
)
def test_a_pool_is_the_same_with_and_without_compiled_code(
    shape: tuple[int, ...], attributes: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    x[..., 3] = np.nan
    (compiled,) = run_op("MaxPool", [x], opset=12, **attributes)
    monkeypatch.setenv("HETERO_JIT", "0")
    (plain,) = run_op("MaxPool", [x], opset=12, **attributes)
    assert np.isnan(plain).any()
    np.testing.assert_array_equal(compiled, plain)
