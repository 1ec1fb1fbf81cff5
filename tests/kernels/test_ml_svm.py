"""SVMClassifier and SVMRegressor against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import check_op, run_op

ML = {"domain": "ai.onnx.ml", "opset": 1}
RNG = np.random.default_rng(1)
X = RNG.normal(size=(17, 3)).astype(np.float32)
KERNELS = {
    "LINEAR": [0.0, 0.0, 0.0],
    "POLY": [0.5, 1.0, 3.0],
    "RBF": [0.7, 0.0, 0.0],
    "SIGMOID": [0.3, 0.2, 0.0],
}


def machine(per_class: list[int], kernel: str, proba: bool = False) -> dict[str, Any]:
    classes, vectors = len(per_class), sum(per_class)
    pairs = classes * (classes - 1) // 2
    found = {
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        "vectors_per_class": per_class,
        "support_vectors": RNG.normal(size=vectors * 3).tolist(),
        "coefficients": RNG.normal(size=(classes - 1) * vectors).tolist(),
        "rho": (0.1 * RNG.normal(size=pairs)).tolist(),
    }
    if proba:
        found |= {"prob_a": (-1 - RNG.random(pairs)).tolist(), "prob_b": RNG.normal(size=pairs).tolist()}
    return found


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("proba", [False, True])
@pytest.mark.parametrize("per_class", [[3, 4], [2, 3, 4, 1]], ids=["two", "four"])
def test_a_classifier_votes_and_scores(kernel: str, proba: bool, per_class: list[int]) -> None:
    labels = list(range(10, 10 + len(per_class)))
    check_op("SVMClassifier", [X], n_outputs=2, classlabels_ints=labels, rtol=1e-4, atol=1e-4,
             **machine(per_class, kernel, proba), **ML)  # fmt: skip


@pytest.mark.parametrize("transform", ["SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("proba", [False, True])
def test_scores_of_more_than_two_classes_are_transformed(transform: str, proba: bool) -> None:
    check_op("SVMClassifier", [X], n_outputs=2, classlabels_strings=["a", "b", "c"], post_transform=transform,
             rtol=1e-4, atol=1e-4, **machine([2, 2, 3], "RBF", proba), **ML)  # fmt: skip


def test_without_support_vectors_a_classifier_is_linear() -> None:
    check_op("SVMClassifier", [X], n_outputs=2, classlabels_ints=[4, 5, 6], kernel_type="LINEAR",
             kernel_params=[0.0, 0.0, 0.0], coefficients=RNG.normal(size=9).tolist(), rho=[0.25], **ML)  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_a_regressor_weighs_similarities(kernel: str, one_class: int) -> None:
    check_op("SVMRegressor", [X], n_supports=5, kernel_type=kernel, kernel_params=KERNELS[kernel],
             support_vectors=RNG.normal(size=15).tolist(), coefficients=RNG.normal(size=5).tolist(), rho=[0.3],
             one_class=one_class, rtol=1e-4, atol=1e-4, **ML)  # fmt: skip


def test_without_support_vectors_a_regressor_is_linear() -> None:
    check_op("SVMRegressor", [X], n_supports=0, kernel_params=[0.0, 0.0, 0.0], coefficients=[1.0, -2.0, 0.5],
             rho=[0.3], **ML)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64])
def test_other_numbers_are_classified_too(dtype: type) -> None:
    check_op("SVMClassifier", [(2 * X).astype(dtype)], n_outputs=2, classlabels_ints=[0, 1, 2], rtol=1e-4, atol=1e-4,
             **machine([2, 3, 1], "RBF"), **ML)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"support_vectors": [1.0] * 8}, "8 numbers for 5 vectors of 3 features"),
        ({"rho": []}, "0 numbers, where 1"),
        ({"coefficients": [1.0] * 4}, "4 numbers, where 5"),
        ({"vectors_per_class": [5]}, "for 2 classes"),
        ({"vectors_per_class": [7, -2]}, "for 2 classes"),
        ({"kernel_type": "COSINE"}, "'COSINE'"),
        ({"kernel_params": [1.0]}, "gamma, coef0, degree"),
        ({"prob_a": [1.0]}, "prob_b"),
    ],
)
def test_numbers_that_do_not_fit_are_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        run_op(
            "SVMClassifier",
            [X],
            n_outputs=2,
            classlabels_ints=[0, 1],
            **machine([2, 3], "RBF") | changes,
            **ML,
        )
