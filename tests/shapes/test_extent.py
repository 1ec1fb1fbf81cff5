"""Extents: equal expressions have one form, and every expression evaluates to what Python says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.shapes.expression import evaluate as evaluate_text
from hetero.shapes.expression import to_extent
from hetero.shapes.extent import (
    Extent,
    Known,
    add,
    call,
    constant,
    evaluate,
    floordiv,
    multiply,
    product,
    subtract,
    symbol,
)

N, M = symbol("n"), symbol("m")


def test_equal_expressions_have_one_form() -> None:
    assert add(N, M) == add(M, N)
    assert subtract(add(N, M), M) == N
    assert multiply(add(N, constant(1)), M) == add(M, multiply(N, M))
    assert floordiv(multiply(N, constant(6)), constant(3)) == multiply(constant(2), N)
    assert product(()) == constant(1)
    assert str(subtract(multiply(constant(2), N), constant(3))) == "2*n - 3"
    assert str(constant(0)) == "0"
    assert str(floordiv(N, M)) == "(n) // (m)"


def test_an_unknown_makes_everything_unknown() -> None:
    assert add(None, N) is multiply(N, None) is floordiv(None, None) is call("max", N, None) is None


def test_an_expression_that_grows_too_large_is_given_up() -> None:
    total: Known = constant(1)
    for k in range(8):
        total = multiply(total, add(symbol(f"a{k}"), symbol(f"b{k}")))
    assert total is None


@pytest.mark.parametrize(
    "text", ["n", "2*n + 1", "n*m - m", "n//2", "floor(n/2) + m", "Max(n, m)", "n*(m + 1)", "7"]
)
def test_declared_expressions_mean_the_same_as_extents(text: str) -> None:
    extent = to_extent(text)
    assert extent is not None
    for n in range(6):
        for m in range(4):
            env = {"n": n, "m": m}
            told = evaluate_text(text, env)
            found = evaluate(extent, env)
            assert (found if found is not None and found >= 0 else None) == told


def test_a_declared_fraction_is_no_extent() -> None:
    assert to_extent("n/2") is None


extents = st.recursive(
    st.one_of(
        st.sampled_from([(N, lambda n, m: n), (M, lambda n, m: m)]),
        st.integers(-3, 5).map(lambda k: (constant(k), lambda n, m: k)),
    ),
    lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner).map(lambda t: combined(*t)),
    max_leaves=8,
)


def combined(sign: str, a: tuple[Known, object], b: tuple[Known, object]) -> tuple[Known, object]:
    functions = {"+": add, "-": subtract, "*": multiply, "/": floordiv}

    def python(n: int, m: int) -> int | None:
        x, y = a[1](n, m), b[1](n, m)  # type: ignore[operator]
        if x is None or y is None or (sign == "/" and y == 0):
            return None
        return {"+": x + y, "-": x - y, "*": x * y, "/": x // (y or 1)}[sign]

    return functions[sign](a[0], b[0]), python


@given(extents, st.integers(0, 9), st.integers(0, 9))
def test_an_expression_evaluates_to_what_python_says(pair: tuple[Extent, object], n: int, m: int) -> None:
    extent, python = pair
    if extent is None:
        return
    wanted = python(n, m)  # type: ignore[operator]
    found = evaluate(extent, {"n": n, "m": m})
    # what cancels is no division by 0 any more
    assert found == wanted or wanted is None
