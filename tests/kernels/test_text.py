"""StringConcat, StringSplit, StringNormalizer, RegexFullMatch against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import check_op, run_op


def texts(*listed: Any) -> Any:
    return np.array(listed, object)


def test_texts_are_joined_and_broadcast() -> None:
    check_op("StringConcat", [texts(["a", "b"], ["c", ""]), texts("x", "é")], opset=20)
    check_op("StringConcat", [np.array("a", object), texts("x")], opset=20)
    check_op("StringConcat", [np.empty((0, 2), object), texts("x", "y")], opset=20)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"delimiter": "-"},
        {"delimiter": "--"},
        {"maxsplit": 1},
        {"delimiter": "-", "maxsplit": 1},
        {"maxsplit": 0},
    ],
)
@pytest.mark.parametrize(
    "x", [texts("a b  c", "", "  ", "x"), texts(["a--b-c", ""], ["-", "--a-"])], ids=["1d", "2d"]
)
def test_texts_are_split(x: Any, attributes: dict[str, Any]) -> None:
    check_op("StringSplit", [x], opset=20, n_outputs=2, **attributes)


def test_no_texts_have_no_parts() -> None:
    parts, counts = run_op("StringSplit", [np.empty((0, 3), object)], opset=20, n_outputs=2)
    assert parts.shape == (0, 3, 0)
    assert counts.shape == (0, 3)


@pytest.mark.parametrize(
    "attributes",
    [
        {"stopwords": ["MON"], "case_change_action": "UPPER"},
        {"stopwords": ["Mon"], "is_case_sensitive": 1},
        {"stopwords": ["mon", "tue"], "case_change_action": "LOWER"},
        {"case_change_action": "LOWER"},
        {},
    ],
)
@pytest.mark.parametrize("x", [texts("mon", "Mon", "Tue", "WEÉ"), texts(["mon", "tue"])], ids=["1d", "2d"])
def test_texts_lose_stop_words_and_change_case(x: Any, attributes: dict[str, Any]) -> None:
    check_op("StringNormalizer", [x], opset=10, locale="C.UTF-8", **attributes)


def test_rows_of_texts_are_no_text_to_normalise() -> None:
    with pytest.raises(KernelError, match=r"shape \[2, 1\]"):
        run_op("StringNormalizer", [texts(["a"], ["b"])], opset=10)
    with pytest.raises(KernelError, match="'TITLE'"):
        run_op("StringNormalizer", [texts("a")], opset=10, case_change_action="TITLE")


@pytest.mark.parametrize(
    "pattern",
    [
        r"www\.[\w.-]+\.\bcom\b",
        r"\d+",
        r"[[:alpha:]]+",
        r"[[:upper:][:digit:]_]+",
        r"(?i)abc",
        "",
        r"a.c",
        r"(a|b)*",
        r"[^\s]+$",
    ],
)
def test_a_pattern_matches_whole_texts(pattern: str) -> None:
    x = texts(["www.google.com", "abc", "ABC_1"], ["١٢", "12", "a\nc"], ["", "abba", "é"])
    check_op("RegexFullMatch", [x], opset=20, pattern=pattern)


@pytest.mark.parametrize("pattern", ["(", r"\pL", "a{2,1}", "[[:alpha]]", "[a--b]", r"\z"])
def test_a_pattern_that_python_does_not_read_as_re2_does_is_an_error(pattern: str) -> None:
    with pytest.raises(KernelError, match="does not compile"):
        run_op("RegexFullMatch", [texts("a")], opset=20, pattern=pattern)
