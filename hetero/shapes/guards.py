"""Shape guards: what declared shapes demand of concrete ones, and the symbols that this fixes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hetero.errors import GuardError
from hetero.program.program import ShapeGuard
from hetero.shapes.expression import evaluate, is_symbol, symbols


class GuardChecker:
    """Guards compiled for repeated use: a check is one comparison for each guarded extent."""

    __slots__ = ("_expressions", "_plain")

    def __init__(self, guards: Iterable[ShapeGuard]) -> None:
        plain: dict[str, list[tuple[int, int | str]]] = {}
        expressions: list[ShapeGuard] = []
        for guard in guards:
            if isinstance(guard.dim, int) or is_symbol(guard.dim):
                plain.setdefault(guard.input, []).append((guard.axis, guard.dim))
            else:
                expressions.append(guard)
        known: dict[tuple[tuple[int, int | str], ...], tuple[tuple[int, int | str], ...]] = {}
        self._plain = tuple(
            (name, known.setdefault(tuple(axes), tuple(axes))) for name, axes in plain.items()
        )
        self._expressions = tuple(expressions)

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Symbol -> extent, for all symbols that stand alone somewhere.

        `shapes`: input name -> extents. Guards of an input that is not there (an optional one) do not count.
        Expressions are compared where all their symbols are known; one whose symbols are not must still agree with
        itself wherever it stands.
        Raises: GuardError naming the symbol (or expression), both values, and the inputs and axes they came from.
        """
        env: dict[str, int] = {}
        good: dict[int, tuple[int, ...]] = {}
        for name, axes in self._plain:
            shape = shapes.get(name)
            if shape is None or good.get(id(axes)) == shape:  # a decoder's states are all alike
                continue
            good[id(axes)] = shape
            try:
                for axis, dim in axes:
                    extent = shape[axis]
                    if type(dim) is int:
                        if extent != dim:
                            raise GuardError(
                                f"input {name!r} has extent {extent} along axis {axis}, where {dim} is declared",
                                operand=name,
                            )
                    elif env.setdefault(dim, extent) != extent:  # type: ignore[arg-type]
                        self._contradiction(str(dim), name, axis, extent, shapes)
            except IndexError as error:
                raise _rank(name, len(shape), max(axis for axis, _ in axes)) from error
        if self._expressions:
            self._check_expressions(env, shapes)
        return env

    def _check_expressions(self, env: dict[str, int], shapes: Mapping[str, tuple[int, ...]]) -> None:
        opaque: dict[str, tuple[int, str, int]] = {}
        for guard in self._expressions:
            shape = shapes.get(guard.input)
            if shape is None:
                continue
            if guard.axis >= len(shape):
                raise _rank(guard.input, len(shape), guard.axis)
            extent = shape[guard.axis]
            where = f"input {guard.input!r} axis {guard.axis}"
            needed = symbols(guard.dim)
            if needed <= env.keys():
                value = evaluate(guard.dim, env)
                if value != extent:
                    given = ", ".join(f"{s} = {env[s]}" for s in sorted(needed))
                    raise GuardError(
                        f"{guard.dim!r} is {'no extent' if value is None else value} with {given or 'no symbols'}, "
                        f"but {where} has extent {extent}",
                        operand=guard.input,
                    )
                continue
            first = opaque.setdefault(str(guard.dim), (extent, guard.input, guard.axis))
            if first[0] != extent:
                raise GuardError(
                    f"{guard.dim!r} is {first[0]} by input {first[1]!r} axis {first[2]}, but {extent} by {where}",
                    operand=guard.input,
                )

    def _contradiction(
        self, symbol: str, name: str, axis: int, extent: int, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        """The error for a symbol's second value; the first is looked up again, so that good checks keep no record."""
        for first, axes in self._plain:
            for first_axis, dim in axes:
                if dim == symbol and first in shapes:
                    raise GuardError(
                        f"symbol {symbol!r} is {shapes[first][first_axis]} by input {first!r} axis {first_axis}, "
                        f"but {extent} by input {name!r} axis {axis}",
                        operand=name,
                    )


def _rank(name: str, rank: int, axis: int) -> GuardError:
    return GuardError(f"input {name!r} has {rank} axes, where at least {axis + 1} are declared", operand=name)
