"""LpNormalization, MeanVarianceNormalization and LRN."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import assert_close, check_op, run_op

RNG = np.random.default_rng(12)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lp_norm(p: int, axis: int, dtype: Any) -> None:
    check_op("LpNormalization", [RNG.standard_normal((3, 4, 5)).astype(dtype)], opset=22, p=p, axis=axis)


def test_lp_norm_of_zeros_is_zeros_and_of_half_precision_does_not_overflow() -> None:
    assert_close(
        run_op("LpNormalization", [np.zeros((2, 3), np.float32)], opset=22), [np.zeros((2, 3), np.float32)]
    )
    (y,) = run_op("LpNormalization", [np.full(4, 60000, np.float16)], opset=22)
    assert y.tolist() == [0.5] * 4


def test_lp_norm_knows_two_norms() -> None:
    with pytest.raises(KernelError, match="3 is neither"):
        run_op("LpNormalization", [np.zeros(2, np.float32)], opset=22, p=3)


@pytest.mark.parametrize("axes", [None, [0], [1, 2, 3], [-1]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_mean_variance_norm(axes: Any, dtype: Any) -> None:
    x = RNG.standard_normal((3, 4, 5, 6)).astype(dtype)
    over = tuple(axes or (0, 2, 3))
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(over, keepdims=True)) / (wide.std(over, keepdims=True) + 1e-9)
    keywords: dict[str, Any] = {} if axes is None else {"axes": axes}
    step = {2: 1e-2}.get(x.dtype.itemsize, 1e-5)
    actual = run_op("MeanVarianceNormalization", [x], opset=13, **keywords)
    assert_close(actual, [expected.astype(dtype)], rtol=step, atol=step)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("shape", [(2, 5, 3, 3), (1, 1, 2, 2)])
def test_lrn(size: int, shape: tuple[int, ...]) -> None:
    # onnxruntime takes odd sizes only, and onnx.reference visits as many channels as there are samples.
    x = RNG.standard_normal(shape).astype(np.float32)
    around = np.zeros_like(x)
    for c in range(shape[1]):
        first, last = max(0, c - (size - 1) // 2), min(shape[1] - 1, c + size // 2)
        around[:, c] = (x[:, first : last + 1] ** 2).sum(1)
    expected = x / (1.5 + 0.5 / size * around) ** 0.6
    keywords: dict[str, Any] = {"opset": 13, "size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5}
    assert_close(run_op("LRN", [x], **keywords), [expected.astype(np.float32)])
    if size % 2:
        check_op("LRN", [x], **keywords)


def test_lrn_wants_a_size() -> None:
    with pytest.raises(KernelError, match="None for an input"):
        run_op("LRN", [np.zeros((1, 2, 3), np.float32)], opset=13)
