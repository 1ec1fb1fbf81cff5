"""The float32 polynomials against double precision, over the whole range and at its ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.kernels.jit import jit
from hetero.kernels.polynomials import exp32, sigmoid32, tanh32


def _nothing(x: Any, y: Any) -> None:
    raise AssertionError("these tests are about compiled code")


@jit("f4[1], f4[1]!", twin=_nothing)
def exps(x: Any, y: Any) -> None:
    for i in range(x.shape[0]):
        y[i] = exp32(x[i])


@jit("f4[1], f4[1]!", twin=_nothing)
def sigmoids(x: Any, y: Any) -> None:
    for i in range(x.shape[0]):
        y[i] = sigmoid32(x[i])


@jit("f4[1], f4[1]!", twin=_nothing)
def tanhs(x: Any, y: Any) -> None:
    for i in range(x.shape[0]):
        y[i] = tanh32(x[i])


X = np.concatenate([np.linspace(-80, 80, 20001), np.linspace(-1, 1, 2001), [-np.inf, np.inf]]).astype(
    np.float32
)


def computed(function: Any) -> Any:
    y = np.empty_like(X)
    function.variant(X, y)(X, y)
    return y


def test_exp_is_right_to_a_few_units_in_the_last_place() -> None:
    finite = np.isfinite(X)
    assert computed(exps)[finite] == pytest.approx(np.exp(X[finite].astype(np.float64)), rel=3e-7)


def test_exp_saturates_where_float32_ends() -> None:
    y = computed(exps)
    assert 0 <= y[-2] < 2e-38
    assert 1e38 < y[-1] < np.inf


@pytest.mark.parametrize(
    ("function", "exact"),
    [(sigmoids, lambda x: (1 + np.tanh(x / 2)) / 2), (tanhs, np.tanh)],
    ids=["sigmoid", "tanh"],
)
def test_sigmoid_and_tanh_are_right_everywhere(function: Any, exact: Any) -> None:
    assert np.abs(computed(function) - exact(X.astype(np.float64))).max() < 3e-7
