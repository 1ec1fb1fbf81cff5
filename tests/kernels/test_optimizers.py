"""Adagrad, Adam and Momentum against onnx.reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import assert_close, reference, run_op

DOMAIN = {"domain": "ai.onnx.preview.training", "opset": 1}
RNG = np.random.default_rng(5)


def operands(states: int, tensors: int, count: int, dtype: Any = np.float32) -> list[Any]:
    """R, T, then tensors, gradients and states, which are not negative; the k-th tensor has k + 1 elements."""
    found: list[Any] = [np.array(0.1, np.float32), np.array(count, np.int64)]
    for part in range(2 + states):
        for k in range(tensors):
            values = RNG.normal(size=k + 1)
            found.append((np.abs(values) if part > 1 else values).astype(dtype))
    return found


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("tensors", [1, 3])
@pytest.mark.parametrize(
    ("op_type", "states", "attributes"),
    [
        ("Adagrad", 1, {"decay_factor": 0.1, "epsilon": 1e-3, "norm_coefficient": 0.01}),
        ("Adam", 2, {"alpha": 0.9, "beta": 0.99, "norm_coefficient": 0.01, "norm_coefficient_post": 0.2}),
        ("Momentum", 1, {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.01, "mode": "standard"}),
        ("Momentum", 1, {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.01, "mode": "nesterov"}),
    ],
)
def test_one_step_moves_every_tensor(
    op_type: str, states: int, attributes: dict[str, Any], tensors: int, count: int
) -> None:
    inputs = operands(states, tensors, count)
    given = {"n_outputs": (1 + states) * tensors, **attributes, **DOMAIN}
    expected = reference(op_type, inputs, use_ort=False, **given)
    # onnx.reference lets its float64 scalars widen what they touch.
    assert_close(run_op(op_type, inputs, **given), [e.astype(np.float32) for e in expected], rtol=1e-4)


def test_double_tensors_stay_double() -> None:
    found = run_op("Adam", operands(2, 1, 1, np.float64), n_outputs=3, **DOMAIN)
    assert {a.dtype for a in found} == {np.dtype(np.float64)}


def test_operands_that_do_not_fit_are_an_error() -> None:
    inputs = operands(1, 2, 0)
    with pytest.raises(KernelError, match="expected R, T and 3"):
        run_op("Adagrad", inputs[:-1], n_outputs=4, **DOMAIN)
    with pytest.raises(KernelError, match=r"operands .* differ"):
        run_op("Adagrad", [*inputs[:-1], np.zeros(3, np.float32)], n_outputs=4, **DOMAIN)
    with pytest.raises(KernelError, match="3 outputs, expected 4"):
        run_op("Adagrad", inputs, n_outputs=3, **DOMAIN)
    with pytest.raises(KernelError, match="'heavy'"):
        run_op("Momentum", inputs, n_outputs=4, mode="heavy", **DOMAIN)
