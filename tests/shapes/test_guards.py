"""Guards: agreeing shapes give the symbols, contradicting ones an error that says who said what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.errors import GuardError
from hetero.program.guards import guards_for
from hetero.program.program import NO_SLOT, Port, ShapeGuard
from hetero.shapes.guards import GuardChecker
from hetero.types import DataType, Dim, SequenceType, TensorType


def port(name: str, *dims: Dim) -> Port:
    return Port(name, NO_SLOT, TensorType(DataType.FLOAT, dims))


def check(guards: Sequence[ShapeGuard], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    return GuardChecker(guards).check(shapes)


def test_each_declared_extent_is_one_guard() -> None:
    ports = [
        port("a", "batch", None, 64),
        Port("s", NO_SLOT, SequenceType(TensorType(DataType.FLOAT, ("k",)))),
        Port("u", NO_SLOT, None),
        Port("r", NO_SLOT, TensorType(DataType.FLOAT)),
        port("b", "2*batch + 1"),
    ]
    assert guards_for(ports) == (
        ShapeGuard("a", 0, "batch"),
        ShapeGuard("a", 2, 64),
        ShapeGuard("b", 0, "2*batch + 1"),
    )


def test_agreeing_shapes_give_the_symbols() -> None:
    guards = guards_for([port("b", "2*n + 1"), port("a", "n", "m"), port("c", "m", 4)])
    assert check(guards, {"a": (3, 5), "b": (7,), "c": (5, 4)}) == {"n": 3, "m": 5}


def test_an_input_that_is_not_fed_does_not_count() -> None:
    guards = guards_for([port("a", "n"), port("b", "n", "2*n")])
    assert check(guards, {"a": (3,)}) == {"n": 3}


def test_a_symbol_with_two_values_names_both_places() -> None:
    guards = guards_for([port("ids", "batch", "seq"), port("mask", "batch", "seq")])
    with pytest.raises(GuardError) as caught:
        check(guards, {"ids": (2, 7), "mask": (2, 9)})
    text = str(caught.value)
    assert "symbol 'seq' is 7 by input 'ids' axis 1, but 9 by input 'mask' axis 1" in text
    assert caught.value.operand == "mask"


def test_one_input_may_contradict_itself() -> None:
    with pytest.raises(GuardError, match="'n' is 2 by input 'a' axis 0, but 3 by input 'a' axis 1"):
        check(guards_for([port("a", "n", "n")]), {"a": (2, 3)})


def test_a_known_extent_must_be_met() -> None:
    with pytest.raises(GuardError, match="'a' has extent 5 along axis 1, where 4 is declared"):
        check(guards_for([port("a", "n", 4)]), {"a": (2, 5)})


def test_an_expression_names_itself_its_value_and_the_extent() -> None:
    guards = guards_for([port("past", "p"), port("ids", "s"), port("mask", "p + s")])
    with pytest.raises(
        GuardError, match=r"'p \+ s' is 7 with p = 4, s = 3, but input 'mask' axis 0 has extent 8"
    ):
        check(guards, {"past": (4,), "ids": (3,), "mask": (8,)})
    halves = guards_for([port("a", "n"), port("b", "n/2")])
    assert check(halves, {"a": (4,), "b": (2,)}) == {"n": 4}
    with pytest.raises(GuardError, match="'n/2' is no extent with n = 3"):
        check(halves, {"a": (3,), "b": (1,)})


def test_an_expression_over_unknown_symbols_must_agree_with_itself() -> None:
    guards = guards_for([port("a", "n + 1"), port("b", "n + 1")])
    assert check(guards, {"a": (4,), "b": (4,)}) == {}
    with pytest.raises(GuardError, match=r"'n \+ 1' is 4 by input 'a' axis 0, but 5 by input 'b' axis 0"):
        check(guards, {"a": (4,), "b": (5,)})


def test_too_few_axes_are_named() -> None:
    for dims in (("n", "m"), ("n", "n + 1")):
        with pytest.raises(GuardError, match="'a' has 1 axes, where at least 2 are declared"):
            check(guards_for([port("a", *dims)]), {"a": (2,)})


def test_a_zero_extent_is_an_extent() -> None:
    assert check(guards_for([port("a", "n"), port("b", "n")]), {"a": (0,), "b": (0,)}) == {"n": 0}


@given(st.lists(st.lists(st.sampled_from(["n", "m", "k"]), max_size=3), min_size=1, max_size=4), st.data())
def test_a_check_passes_exactly_when_every_symbol_has_one_value(
    dims: list[list[str]], data: st.DataObject
) -> None:
    ports = [port(f"i{k}", *d) for k, d in enumerate(dims)]
    shapes = {
        p.name: tuple(data.draw(st.integers(0, 2)) for _ in d) for p, d in zip(ports, dims, strict=True)
    }
    seen: dict[str, set[int]] = {}
    for p, d in zip(ports, dims, strict=True):
        for symbol, extent in zip(d, shapes[p.name], strict=True):
            seen.setdefault(symbol, set()).add(extent)
    checker = GuardChecker(guards_for(ports))
    if all(len(values) == 1 for values in seen.values()):
        assert checker.check(shapes) == {symbol: min(values) for symbol, values in seen.items()}
    else:
        with pytest.raises(GuardError):
            checker.check(shapes)
