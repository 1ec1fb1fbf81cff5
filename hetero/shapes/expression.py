"""Dimension expressions: the text of a symbolic extent, parsed once and evaluated over symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache, partial, reduce
from math import isqrt
from typing import Any, TypeAlias

from hetero.shapes.extent import Extent, add, call, constant, floordiv, product, subtract, symbol
from hetero.types import Dim

MAX_LENGTH = 256
MAX_NESTING = 16
"""Longer or deeper text is one plain symbol: no exporter writes such extents, and parsing must stay bounded."""
MAX_DIGITS = 18

_Number: TypeAlias = int | Fraction
_Evaluate: TypeAlias = Callable[[Mapping[str, int]], _Number]
_OPERATORS = frozenset("+-*/%(),")


@lru_cache(maxsize=65536)
def _parse(text: str) -> tuple[frozenset[str], _Evaluate | None, Any]:
    """Symbols, evaluator and sympy expression of `text`; (itself, None, None) where it is one plain symbol or cannot
    be read."""
    plain = (frozenset((text,)), None, None)
    if text.isidentifier() or not _is_readable(text):
        return plain
    import onnx_ir as ir

    try:
        # onnx-ir's parser: recursive descent, no eval; unknown functions and characters are errors.
        dim = ir.SymbolicDim(text)
        names = dim.free_symbols()
        expression = dim._expr  # there is no public way from a SymbolicDim to its expression
        return names, _compile(expression), expression
    except Exception:  # arbitrary exporter text ("batch size", "past.1 + ?"): a symbol like any other
        return plain


def _is_readable(text: str) -> bool:
    """Whether parsing is bounded: short, shallow, no powers (9**9**9 is evaluated while parsing), no huge numbers."""
    if len(text) > MAX_LENGTH or "**" in text or not text.isascii():
        return False
    depth = digits = 0
    signs = 0
    for character in text:
        digits = digits + 1 if character.isdigit() else 0
        signs = signs + 1 if character == "-" else signs if character.isspace() else 0
        depth += (character == "(") - (character == ")")
        if depth > MAX_NESTING or digits > MAX_DIGITS or signs > MAX_NESTING:
            return False
    return not _OPERATORS.isdisjoint(text) or text.strip().isdecimal()


def _compile(expression: Any) -> _Evaluate:
    """A sympy expression as nested calls over plain numbers; sympy's own substitution is a thousand times slower."""
    import sympy

    if expression.is_Symbol:
        name = str(expression)
        return lambda env: env[name]
    if expression.is_Integer:
        number = int(expression)
        return lambda env: number
    if expression.is_Rational:
        fraction = Fraction(int(expression.p), int(expression.q))
        return lambda env: fraction
    parts = [_compile(a) for a in expression.args]
    if expression.is_Add:
        return lambda env: sum((p(env) for p in parts), start=0)
    if expression.is_Mul:
        return lambda env: _product(p(env) for p in parts)
    if expression.is_Pow:
        base, exponent = parts
        return lambda env: _power(base(env), exponent(env))
    if isinstance(expression, sympy.floor):
        return lambda env: parts[0](env).__floor__()
    if isinstance(expression, sympy.ceiling):
        return lambda env: parts[0](env).__ceil__()
    if isinstance(expression, sympy.Mod):
        return lambda env: parts[0](env) % parts[1](env)
    if isinstance(expression, sympy.Max):
        return lambda env: max(p(env) for p in parts)
    if isinstance(expression, sympy.Min):
        return lambda env: min(p(env) for p in parts)
    raise TypeError(f"no evaluator for {type(expression).__name__}")


def _product(factors: Any) -> _Number:
    result: _Number = 1
    for factor in factors:
        result = result * factor
    return result


def _power(base: _Number, exponent: _Number) -> _Number:
    if exponent == Fraction(1, 2):
        root = Fraction(base)
        found = Fraction(isqrt(root.numerator), isqrt(root.denominator))
        if found * found != root:
            # Irrational; a floor around it still needs a number just below or at the root.
            scale = 10**9
            return Fraction(
                isqrt(root.numerator * root.denominator * scale * scale), root.denominator * scale
            )
        return found
    if exponent.denominator != 1 or not -8 <= exponent <= 8:
        raise ValueError(f"exponent {exponent}")
    return Fraction(base) ** int(exponent)


def evaluate(dim: Dim, env: Mapping[str, int]) -> int | None:
    """The extent that `dim` stands for, or None: unknown dim, a symbol that `env` lacks, a division by zero, a
    result that is negative or no whole number.

    Text that is no expression ("batch size", "unk__3") is looked up whole.
    """
    if dim is None or isinstance(dim, int):
        return dim
    known = env.get(dim)
    if known is not None:
        return known
    _, function, _ = _parse(dim)
    if function is None:
        return None
    try:
        result = function(env)
    except (KeyError, ZeroDivisionError, ValueError, OverflowError):
        return None
    if result.denominator != 1 or result < 0:
        return None
    return int(result)


def symbols(dim: Dim) -> frozenset[str]:
    """The symbols that `dim` depends on; empty for a known or unknown extent."""
    if isinstance(dim, str):
        return _parse(dim)[0]
    return frozenset()


def to_extent(dim: int | str) -> Extent | None:
    """A declared extent as a polynomial with calls, or None where it is none of these ("n/2")."""
    if isinstance(dim, int):
        return constant(dim)
    _, function, expression = _parse(dim)
    return symbol(dim) if function is None else _extent(expression)


def _extent(expression: Any) -> Extent | None:
    import sympy

    if expression.is_Symbol:
        return symbol(str(expression))
    if expression.is_Integer:
        return constant(int(expression))
    if isinstance(expression, sympy.floor | sympy.ceiling):
        above, below = map(_extent, sympy.fraction(sympy.together(expression.args[0])))
        if isinstance(expression, sympy.floor):
            return floordiv(above, below)
        return subtract(constant(0), floordiv(subtract(constant(0), above), below))
    parts = [_extent(a) for a in expression.args]
    if expression.is_Mul:
        return product(tuple(parts))
    if expression.is_Add:
        return reduce(add, parts)
    if isinstance(expression, sympy.Max | sympy.Min):
        return reduce(partial(call, "max" if isinstance(expression, sympy.Max) else "min"), parts)
    if expression.is_Pow and expression.args[1].is_Integer and 0 < int(expression.args[1]) <= 4:
        return product((parts[0],) * int(expression.args[1]))
    return None


def is_symbol(dim: Dim) -> bool:
    """Whether `dim` is one plain symbol, as opposed to an expression over symbols."""
    return isinstance(dim, str) and _parse(dim)[1] is None
