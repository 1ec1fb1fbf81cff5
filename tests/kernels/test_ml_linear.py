"""LinearClassifier and LinearRegressor against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import check_op, run_op

ML = {"domain": "ai.onnx.ml", "opset": 1}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(11, 4)).astype(np.float32)
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def weights(targets: int, scale: float = 1.0) -> dict[str, Any]:
    return {
        "coefficients": (scale * RNG.normal(size=targets * 4)).tolist(),
        "intercepts": (scale * RNG.normal(size=targets)).tolist(),
    }


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    "labels", [{"classlabels_ints": [7, 5, 6]}, {"classlabels_strings": ["a", "b", "c"]}]
)
def test_a_classifier_of_three_has_the_label_of_the_greatest_score(
    transform: str, labels: dict[str, Any]
) -> None:
    check_op("LinearClassifier", [X], n_outputs=2, post_transform=transform, **weights(3), **labels, **ML)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX"])
@pytest.mark.parametrize("labels", [{"classlabels_ints": [7, 5]}, {"classlabels_strings": ["a", "b"]}])
def test_one_row_of_coefficients_for_two_labels_is_a_binary_model(
    transform: str, labels: dict[str, Any]
) -> None:
    check_op("LinearClassifier", [X], n_outputs=2, post_transform=transform, **weights(1), **labels, **ML)


def test_the_one_score_of_a_binary_model_becomes_two_probabilities() -> None:
    """onnxruntime forgets the post transform here: its columns are 1 - score and score."""
    given = weights(1)
    _, scores = run_op("LinearClassifier", [X], n_outputs=2, post_transform="LOGISTIC", classlabels_ints=[0, 1],
                       **given, **ML)  # fmt: skip
    margin = X @ np.asarray(given["coefficients"], np.float32) + given["intercepts"][0]
    np.testing.assert_allclose(scores[:, 1], 1 / (1 + np.exp(-margin)), rtol=1e-5)
    np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64])
def test_other_numbers_are_taken_as_single_floats(dtype: type) -> None:
    check_op(
        "LinearClassifier",
        [(3 * X).astype(dtype)],
        n_outputs=2,
        classlabels_ints=[0, 1, 2],
        **weights(3),
        **ML,
    )


@pytest.mark.parametrize(
    ("targets", "transform"), [(1, "NONE"), (1, "PROBIT"), *((3, transform) for transform in TRANSFORMS)]
)
def test_a_regressor_gives_its_targets(targets: int, transform: str) -> None:
    # The approximation of PROBIT takes differences of numbers that are close.
    rtol = 1e-3 if transform == "PROBIT" else 1e-5
    check_op("LinearRegressor", [X], targets=targets, post_transform=transform, rtol=rtol, atol=1e-5,
             **weights(targets, 0.1), **ML)  # fmt: skip


def test_a_regressor_may_have_no_intercepts() -> None:
    check_op("LinearRegressor", [X], targets=2, coefficients=[1.0, 2.0, 3.0, 4.0] * 2, **ML)


def test_coefficients_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(KernelError, match="7 for 4 features and 2 outputs"):
        run_op("LinearRegressor", [X], targets=2, coefficients=[1.0] * 7, **ML)
    with pytest.raises(KernelError, match="2 labels for 3 scores"):
        run_op("LinearClassifier", [X], n_outputs=2, classlabels_ints=[0, 1], **weights(3), **ML)
    with pytest.raises(KernelError, match="shape \\[1, 2, 4\\]"):
        run_op("LinearRegressor", [X[None, :2]], targets=1, coefficients=[1.0] * 4, **ML)
