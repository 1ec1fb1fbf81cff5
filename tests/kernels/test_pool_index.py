"""MaxPool's Indices and MaxUnpool: positions are exact, ties go to the first, and going there and back is faithful."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError
from tests.kernels.harness import check_op, compile_op, run_op

RNG = np.random.default_rng(19)


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [2, 3], "dilations": [2, 2], "ceil_mode": 1, "strides": [2, 2]},
        {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER"},
    ],
)
def test_indices_agree_with_onnxruntime(attributes: dict[str, Any], storage_order: int) -> None:
    x = RNG.standard_normal((2, 3, 7, 6)).astype(np.float32)
    for opset in (8, 12, 22):
        if opset == 8 and {"dilations", "ceil_mode"} & attributes.keys():
            continue
        check_op("MaxPool", [x], opset=opset, n_outputs=2, storage_order=storage_order, **attributes)


@pytest.mark.parametrize("shape", [(1, 2, 9), (2, 1, 4, 5, 3)])
def test_indices_have_any_rank(shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    check_op("MaxPool", [x], opset=12, n_outputs=2, kernel_shape=[2] * (len(shape) - 2))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=12, max_size=12))
def test_the_first_of_equals_is_taken(values: list[int]) -> None:
    x = np.array(values, np.uint8).reshape(1, 1, 3, 4)
    y, index = run_op("MaxPool", [x], opset=12, n_outputs=2, kernel_shape=[2, 2])
    for i, j in np.ndindex(2, 3):
        window = x[0, 0, i : i + 2, j : j + 2]
        r, c = np.unravel_index(window.argmax(), (2, 2))
        assert y[0, 0, i, j] == window.max()
        assert index[0, 0, i, j] == (i + r) * 4 + j + c


def test_indices_without_values_and_of_nothing() -> None:
    x = RNG.standard_normal((1, 2, 4, 4)).astype(np.float16)
    none, index = run_op("MaxPool", [x], opset=12, n_outputs=2, omit=(0,), kernel_shape=[2, 2])
    assert none is None
    assert (
        x.reshape(-1)[index] == np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3)).max((4, 5))
    ).all()
    y, index = run_op("MaxPool", [x[:0]], opset=12, n_outputs=2, kernel_shape=[2, 2])
    assert y.shape == index.shape == (0, 2, 3, 3)


def test_unpooling_puts_each_maximum_back() -> None:
    x = RNG.standard_normal((2, 3, 6, 4)).astype(np.float32)
    attributes: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    y, index = run_op("MaxPool", [x], opset=12, n_outputs=2, **attributes)
    for opset in (9, 11, 22):
        (back,) = run_op("MaxUnpool", [y, index], opset=opset, **attributes)
        assert back.shape == x.shape
        assert (back.reshape(-1)[index] == y).all()
        assert np.count_nonzero(back) == y.size
    (larger,) = run_op("MaxUnpool", [y, index, np.array([2, 3, 7, 5])], opset=11, **attributes)
    assert larger.shape == (2, 3, 7, 5)
    assert (larger[:, :, :6, :4] == back).all()
    assert np.count_nonzero(larger) == y.size


def test_unpooling_refuses_what_contradicts_itself() -> None:
    y, index = np.ones((1, 1, 2, 2), np.float32), np.zeros((1, 1, 2, 2), np.int64)
    with pytest.raises(KernelError, match="outside 9 elements"):
        run_op("MaxUnpool", [y, index + 9], opset=11, kernel_shape=[2, 2])
    with pytest.raises(KernelError, match="indices of shape"):
        compile_op("MaxUnpool", [y, index[:, :, :1]], opset=11, kernel_shape=[2, 2])
    with pytest.raises(KernelError, match="does not hold"):
        compile_op("MaxUnpool", [y, index, np.array([1, 1, 2, 2])], opset=11, kernel_shape=[2, 2])
    with pytest.raises(KernelError, match="spatial axes"):
        compile_op("MaxUnpool", [y, index], opset=11, kernel_shape=[2])
