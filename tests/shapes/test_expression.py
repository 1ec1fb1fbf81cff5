"""Dimension text: expressions are evaluated, everything else is one symbol, nothing raises."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.shapes.expression import evaluate, is_symbol, symbols


@pytest.mark.parametrize(
    ("text", "env", "want"),
    [
        ("n", {"n": 3}, 3),
        ("2*n + 1", {"n": 3}, 7),
        ("floor(w/2)", {"w": 5}, 2),
        ("floor(floor(h/2 + 1/2)/2 + 1/2)", {"h": 7}, 2),
        ("n//4", {"n": 7}, 1),
        ("n % 4", {"n": 7}, 3),
        ("max(n, 3) - min(m, 2)", {"n": 1, "m": 9}, 1),
        ("floor(sqrt(n))", {"n": 17}, 4),
        ("sqrt(n)", {"n": 16}, 4),
        ("past + seq", {"past": 4, "seq": 1}, 5),
        ("-n + 10", {"n": 3}, 7),
        ("past.1 * 2", {"past.1": 3}, 6),
        ("n*n*n", {"n": 3}, 27),
        ("12", {}, 12),
        ("n - 9", {"n": 3}, None),  # negative
        ("n / 2", {"n": 3}, None),  # no whole number
        ("n / m", {"n": 3, "m": 0}, None),
        ("n + m", {"n": 3}, None),
        ("n", {}, None),
    ],
)
def test_expressions_evaluate(text: str, env: dict[str, int], want: int | None) -> None:
    assert evaluate(text, env) == want


@pytest.mark.parametrize(
    "text",
    [
        "batch",
        "unk__3",
        "batch size",
        "past.1",
        "a+",
        "(((",
        "?",
        "",
        "foo(n)",
        "größe",
        "2n",
        "n²",
        "9**9**9**9",
        "x[0]",
        "(" * 300 + "n" + ")" * 300,
        "n+" * 200 + "n",
        "-" * 200 + "n",
        "1/0",
        "9" * 200 + "*n",
        "__import__('os')",
    ],
)
def test_text_that_is_no_expression_is_one_symbol(text: str) -> None:
    assert symbols(text) == {text}
    assert is_symbol(text)
    assert evaluate(text, {}) is None
    assert evaluate(text, {text: 5}) == 5


def test_known_and_unknown_extents_have_no_symbols() -> None:
    assert evaluate(7, {}) == 7
    assert evaluate(None, {"n": 1}) is None
    assert symbols(7) == symbols(None) == frozenset()
    assert symbols("a*b + floor(c/2) - a") == {"a", "b", "c"}
    assert not is_symbol("a + 1")
    assert not is_symbol(3)


@settings(max_examples=300, deadline=1000, database=None)
@given(st.text(alphabet="nm12 +-*/%(),.floorsqtmax_?", max_size=60))
def test_no_text_raises(text: str) -> None:
    found = symbols(text)
    result = evaluate(text, dict.fromkeys(found, 3))
    assert result is None or result >= 0


trees = st.recursive(
    st.one_of(st.sampled_from(["n", "m"]), st.integers(0, 9).map(str)),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "*", "-", "//", "%"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        inner.map(lambda t: f"floor({t}/2)"),
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=2000, database=None)
@given(trees, st.integers(1, 50), st.integers(1, 50))
def test_evaluation_agrees_with_python(text: str, n: int, m: int) -> None:
    try:
        want = eval(text, {"floor": math.floor, "n": n, "m": m})
    except ZeroDivisionError:
        return
    got = evaluate(text, {"n": n, "m": m})
    if not is_symbol(text) or text in ("n", "m"):
        assert got == (want if want >= 0 else None)


def test_text_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "floor((kept_symbol + 3)/7) * 2"
    assert evaluate(text, {"kept_symbol": 4}) == 2

    def no_more(text: str) -> None:
        raise AssertionError(f"{text} is parsed again")

    monkeypatch.setattr("onnx_ir.SymbolicDim", no_more)
    assert evaluate(text, {"kept_symbol": 11}) == 4
    assert symbols(text) == {"kept_symbol"}


def test_a_plain_symbol_is_never_handed_to_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_ir.SymbolicDim", None)
    assert evaluate("some_fresh_symbol", {"some_fresh_symbol": 4}) == 4
    assert symbols("another_fresh_symbol") == {"another_fresh_symbol"}
