"""Scaler, Normalizer, Binarizer, Imputer, ArrayFeatureExtractor, FeatureVectorizer, OneHotEncoder, against
onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import check_op, run_op

ML = {"domain": "ai.onnx.ml", "opset": 1}
RNG = np.random.default_rng(2)
X = RNG.normal(size=(6, 4)).astype(np.float32) * 3
NAN = float("nan")
TEXTS = np.array([["b", "x"], ["a", "b"]], object)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("n", [1, 4])
def test_a_scaler_moves_then_stretches(dtype: type, n: int) -> None:
    check_op(
        "Scaler", [X.astype(dtype)], offset=[0.5, 1.0, -1.0, 2.0][:n], scale=[2.0, 0.1, 3.0, 1.0][:n], **ML
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_a_normalizer_divides_rows_and_leaves_rows_of_zeros(dtype: type, norm: str) -> None:
    x = np.concatenate([np.abs(X), np.zeros((1, 4))]).astype(dtype)
    check_op("Normalizer", [x], norm=norm, **ML)
    if norm != "MAX":
        check_op("Normalizer", [X.astype(dtype)], norm=norm, **ML)


def test_a_binarizer_compares_with_its_threshold() -> None:
    check_op("Binarizer", [np.array([[-1.0, 0.5, 0.5001, np.nan]], np.float32)], threshold=0.5, **ML)
    check_op("Binarizer", [np.array([[0, 1, 2]], np.int64)], threshold=0.5, use_ort=False, **ML)


@pytest.mark.parametrize(
    ("x", "attributes"),
    [
        ([[1.0, NAN], [NAN, 2.0]], {"replaced_value_float": NAN, "imputed_value_floats": [7.0, 8.0]}),
        ([[1.0, NAN], [1.0, 2.0]], {"replaced_value_float": 1.0, "imputed_value_floats": [7.0]}),
        (np.array([[1, 2], [3, 1]]), {"replaced_value_int64": 1, "imputed_value_int64s": [5, 6]}),
    ],
)
def test_an_imputer_replaces_one_value(x: Any, attributes: dict[str, Any]) -> None:
    x = x if isinstance(x, np.ndarray) else np.asarray(x, np.float32)
    check_op("Imputer", [x], **attributes, **ML)


@pytest.mark.parametrize(
    "x", [X, X[0], X.astype(np.int64), TEXTS.reshape(1, 4)], ids=["rows", "row", "ints", "texts"]
)
def test_an_extractor_takes_features_by_index(x: Any) -> None:
    check_op("ArrayFeatureExtractor", [x, np.array([3, 0, 3], np.int64)], **ML)


def test_an_index_out_of_range_is_an_error() -> None:
    for index in (-1, 4):
        with pytest.raises(KernelError, match=f"feature {index} is out of range for 4"):
            run_op("ArrayFeatureExtractor", [X, np.array([0, index], np.int64)], **ML)


def test_a_vectorizer_joins_features_and_fills_what_is_missing() -> None:
    parts = [X, X[:, :2], np.abs(X[:, :1])]
    check_op("FeatureVectorizer", parts, inputdimensions=[4, 2, 1], **ML)
    (found,) = run_op("FeatureVectorizer", [parts[0].astype(np.int64), X[:, :2].astype(np.float64)],
                      inputdimensions=[2, 3], **ML)  # fmt: skip
    expected = np.concatenate([X.astype(np.int64)[:, :2], X[:, :2], np.zeros((6, 1))], 1).astype(np.float32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("zeros", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_categories_that_are_integers_get_columns(dtype: type, zeros: int) -> None:
    x = np.array([[2, 9], [5, 2]] if not zeros else [[2, 9], [7, 2]], dtype)
    check_op("OneHotEncoder", [x], cats_int64s=[9, 2, 5], zeros=zeros, **ML)


def test_categories_that_are_texts_get_columns() -> None:
    check_op("OneHotEncoder", [TEXTS], cats_strings=["a", "b", "c"], **ML)


@pytest.mark.parametrize(("x", "cats"), [(TEXTS, {"cats_strings": ["a", "b"]}), (X, {"cats_int64s": [100]})])
def test_an_unknown_category_is_an_error_where_zeros_are_not_allowed(x: Any, cats: dict[str, Any]) -> None:
    with pytest.raises(KernelError, match="none of the categories"):
        run_op("OneHotEncoder", [x], zeros=0, **cats, **ML)


@pytest.mark.parametrize(
    ("op_type", "attributes", "message"),
    [
        ("Scaler", {"offset": [1.0, 2.0]}, "2 values for 4 features"),
        ("Normalizer", {"norm": "L3"}, "'L3'"),
        ("Imputer", {"imputed_value_floats": [1.0] * 3}, "3 values for 4 features"),
        ("Imputer", {"imputed_value_int64s": [1]}, "missing for float32"),
        ("OneHotEncoder", {"cats_strings": ["a"]}, "missing for float32"),
        ("FeatureVectorizer", {"inputdimensions": [1, 2]}, "for 1 inputs"),
    ],
)
def test_attributes_that_do_not_fit_are_an_error(
    op_type: str, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(KernelError, match=message):
        run_op(op_type, [X], **attributes, **ML)
