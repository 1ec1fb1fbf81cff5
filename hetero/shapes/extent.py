"""Extents as expressions over input extents: polynomials in one normal form, so that equal ones are recognised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

MAX_TERMS = 24
MAX_SIZE = 64
"""An expression of more terms, or of more atoms altogether, is given up as unknown: every step stays cheap."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function of extents that no polynomial expresses (see FUNCTIONS)."""

    name: str
    arguments: tuple[Extent, ...]

    def __str__(self) -> str:
        inner = [str(a) for a in self.arguments]
        if self.name == "floordiv":
            return f"({inner[0]}) // ({inner[1]})"
        return f"{self.name}({', '.join(inner)})"


Atom: TypeAlias = "str | Call"
Monomial: TypeAlias = tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """A sum of products of atoms (input extents by name, calls) with integer coefficients, in normal form."""

    terms: tuple[tuple[Monomial, int], ...]

    @property
    def constant(self) -> int | None:
        """Its value where it has no atoms."""
        if not self.terms:
            return 0
        ((monomial, factor), *rest) = self.terms
        return factor if not monomial and not rest else None

    def symbols(self) -> frozenset[str]:
        """The input extents it depends on."""
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                if isinstance(atom, str):
                    found.add(atom)
                else:
                    found.update(*(a.symbols() for a in atom.arguments))
        return frozenset(found)

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        text = ""
        for monomial, factor in self.terms:
            product = "*".join(map(str, monomial))
            size = (
                str(abs(factor))
                if not product
                else product
                if abs(factor) == 1
                else f"{abs(factor)}*{product}"
            )
            text += (" - " if factor < 0 else " + ") + size if text else ("-" if factor < 0 else "") + size
        return text


Known: TypeAlias = "Extent | None"
"""None: unknown."""


def constant(value: int) -> Extent:
    """The extent that is `value` always."""
    return Extent((((), value),)) if value else Extent(())


def symbol(name: str) -> Extent:
    """The extent that an input brings, under this name."""
    return Extent((((name,), 1),))


ONE = constant(1)


def add(a: Known, b: Known) -> Known:
    """a + b."""
    return _normal([*a.terms, *b.terms]) if a is not None and b is not None else None


def subtract(a: Known, b: Known) -> Known:
    """a - b."""
    return None if b is None else add(a, Extent(tuple((m, -f) for m, f in b.terms)))


def multiply(a: Known, b: Known) -> Known:
    """a · b."""
    if a is None or b is None or len(a.terms) * len(b.terms) > 4 * MAX_TERMS:
        return None
    return _normal([(tuple(sorted((*m, *n), key=str)), f * g) for m, f in a.terms for n, g in b.terms])


def product(extents: tuple[Known, ...]) -> Known:
    """The product of all; 1 for none."""
    total: Known = ONE
    for extent in extents:
        total = multiply(total, extent)
    return total


def floordiv(a: Known, b: Known) -> Known:
    """a // b, rounded down; unknown where b turns out to be 0."""
    if a is None or b is None:
        return None
    divisor = b.constant
    if divisor == 1:
        return a
    if divisor and all(f % divisor == 0 for _, f in a.terms):
        return Extent(tuple((m, f // divisor) for m, f in a.terms))
    return call("floordiv", a, b)


def call(name: str, *arguments: Known) -> Known:
    """A function of FUNCTIONS, evaluated now where all arguments are constants."""
    known = tuple(a for a in arguments if a is not None)
    if len(known) != len(arguments):
        return None
    values = [a.constant for a in known]
    numbers = [v for v in values if v is not None]
    if len(numbers) == len(values):
        found = FUNCTIONS[name](*numbers)
        return None if found is None else constant(found)
    if name in _IDEMPOTENT and known[0] == known[1]:
        return known[0]
    return _normal([((Call(name, known),), 1)])


def evaluate(extent: Extent, env: Mapping[str, int]) -> int | None:
    """Its value, or None where a function has none for these extents. Raises: KeyError for a symbol `env` lacks."""
    total = 0
    for monomial, factor in extent.terms:
        for atom in monomial:
            value = env[atom] if isinstance(atom, str) else _call(atom, env)
            if value is None:
                return None
            factor *= value
        total += factor
    return total


def _call(atom: Call, env: Mapping[str, int]) -> int | None:
    arguments = [evaluate(a, env) for a in atom.arguments]
    known = [a for a in arguments if a is not None]
    return FUNCTIONS[atom.name](*known) if len(known) == len(arguments) else None


def _normal(terms: list[tuple[Monomial, int]]) -> Known:
    sums: dict[Monomial, int] = {}
    for monomial, factor in terms:
        sums[monomial] = sums.get(monomial, 0) + factor
    kept = [(m, f) for m, f in sums.items() if f]
    if len(kept) > MAX_TERMS or sum(map(_size, (a for m, _ in kept for a in m))) > MAX_SIZE:
        return None
    return Extent(tuple(sorted(kept, key=lambda t: (-len(t[0]), str(t[0])))))


def _size(atom: Atom) -> int:
    if isinstance(atom, str):
        return 1
    return 1 + sum(_size(a) for argument in atom.arguments for m, _ in argument.terms for a in m)


def _sliced(extent: int, start: int, end: int, step: int) -> int | None:
    return len(range(extent)[start:end:step]) if step and extent >= 0 else None


def _window(extent: int, padding: int, reach: int, stride: int) -> int | None:
    room = extent + padding - reach
    if room < 0:
        return 0 if extent == 0 else None
    return room // stride + 1


_IDEMPOTENT = frozenset({"max", "min", "broadcast", "copied"})
FUNCTIONS: dict[str, Callable[..., int | None]] = {
    "floordiv": lambda a, b: a // b if b else None,
    "max": max,
    "min": min,
    # two extents that broadcast
    "broadcast": lambda a, b: b if a == 1 else a,
    # a target extent of Reshape, where 0 stands for the input's own
    "copied": lambda wanted, own: wanted or own,
    "sliced": _sliced,
    "window": _window,
}
