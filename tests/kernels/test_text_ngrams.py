"""TfIdfVectorizer against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import check_op, run_op

POOL = {
    "ngram_counts": [0, 3, 9],
    "ngram_indexes": [0, 1, 2, 3, 4, 5, 6],
    "pool_int64s": [2, 3, 5, 5, 4, 5, 6, 7, 8, 6, 7, 8],
}
ROWS = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], np.int32)
WORDS = {k: [str(v) for v in POOL["pool_int64s"]] if k == "pool_int64s" else v for k, v in POOL.items()}
WORDS["pool_strings"] = WORDS.pop("pool_int64s")
LENGTHS = [(1, 1), (1, 2), (2, 2), (2, 3), (1, 3), (3, 3)]


def lengths(low: int, high: int, skips: int) -> dict[str, int]:
    return {"min_gram_length": low, "max_gram_length": high, "max_skip_count": skips}


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 1, 5])
@pytest.mark.parametrize(("low", "high"), LENGTHS)
def test_n_grams_are_counted_and_weighed(mode: str, skips: int, low: int, high: int) -> None:
    weights = {"weights": [0.5 + k for k in range(7)]}
    given = lengths(low, high, skips) | weights
    check_op("TfIdfVectorizer", [ROWS], opset=9, mode=mode, **given, **POOL)
    check_op("TfIdfVectorizer", [ROWS[0].astype(np.int64)], opset=9, mode=mode, **given, **POOL)
    check_op("TfIdfVectorizer", [ROWS.astype(str).astype(object)], opset=9, mode=mode, **given, **WORDS)


def test_weights_are_one_where_none_are_given() -> None:
    for mode in ("IDF", "TFIDF"):
        check_op("TfIdfVectorizer", [ROWS], opset=9, mode=mode, **lengths(1, 2, 2), **POOL)


def test_columns_are_those_that_the_pool_names() -> None:
    """The text gives an n-gram its own weight, whatever its column; onnxruntime gives it that of the column."""
    pool = POOL | {"ngram_indexes": [6, 5, 4, 3, 2, 1, 8]}
    check_op("TfIdfVectorizer", [ROWS], opset=9, mode="TF", **lengths(1, 2, 1), **pool)
    (found,) = run_op("TfIdfVectorizer", [ROWS], opset=9, mode="TFIDF", weights=[1.0, 10.0, 100.0, 1.0, 1.0, 1.0, 1.0],
                      **lengths(1, 1, 0), **pool)  # fmt: skip
    np.testing.assert_array_equal(found, [[0, 0, 0, 0, 0, 30, 0, 0, 0], [0, 0, 0, 0, 100, 0, 0, 0, 0]])


def test_short_and_empty_rows_hold_no_n_grams() -> None:
    for x in (ROWS[:, :1], ROWS[:, :0], ROWS[0, :0]):
        (found,) = run_op("TfIdfVectorizer", [x], opset=9, mode="TF", **lengths(2, 3, 3), **POOL)
        assert found.shape == (*x.shape[:-1], 7)
        assert not found.any()


def test_skips_beyond_the_row_cost_nothing() -> None:
    given = lengths(1, 3, 1 << 60)
    (found,) = run_op("TfIdfVectorizer", [ROWS], opset=9, mode="TF", **given, **POOL)
    (same,) = run_op("TfIdfVectorizer", [ROWS], opset=9, mode="TF", **given | {"max_skip_count": 5}, **POOL)
    np.testing.assert_array_equal(found, same)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "BM25"}, "'BM25'"),
        ({"ngram_counts": [0, 3, 8]}, "no whole"),
        ({"ngram_counts": [0, 30, 9]}, "no whole"),
        ({"ngram_indexes": [0, 1, 2]}, "more n-grams"),
        ({"ngram_indexes": [0, 1, -2, 3, 4, 5, 6]}, "from 0 on"),
        ({"weights": [1.0]}, "1 weights for 7"),
        ({"max_gram_length": 4}, "the pool has 1 to 3"),
        ({"min_gram_length": 0}, "the pool has 1 to 3"),
        ({"max_skip_count": -1}, "negative"),
        ({"pool_int64s": [2, 3, 2, 5, 4, 5, 6, 7, 8, 6, 7, 8]}, "1-gram is there twice"),
        ({"pool_strings": ["a"]}, "no whole"),
    ],
)
def test_a_pool_that_does_not_fit_is_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        run_op("TfIdfVectorizer", [ROWS], opset=9, **{"mode": "TFIDF"} | lengths(1, 3, 0) | POOL | changes)
