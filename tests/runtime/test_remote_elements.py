"""Sequences whose elements lie elsewhere: handles move, and an element is brought when it is read, once."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from hetero.errors import InputError
from hetero.types import LazySequence, RemoteElement, SequenceValue
from tests.acceptance.harness import executor
from tests.runtime.test_sequences import PLACES, lists


class Afar(RemoteElement):
    """An element that counts how often it is asked for."""

    __slots__ = ("fetches", "value")

    def __init__(self, *values: float) -> None:
        self.value = np.array(values, np.float32)
        super().__init__(self.value.dtype, self.value.shape)
        self.fetches = 0

    def fetch(self) -> Any:
        self.fetches += 1
        return self.value


def afar(n: int = 4) -> list[Afar]:
    return [Afar(k, k + 0.5) for k in range(n)]


MOVES = """g (seq(float[2]) s, float[2] x, int64 at) => (seq(float[2]) out, int64 n)
<int64 last = {-1}> {
  longer = SequenceInsert(s, x, at)
  out = SequenceErase(longer, last)
  n = SequenceLength(out)
}"""


@PLACES
def test_inserting_erasing_and_counting_bring_nothing(providers: list[Any]) -> None:
    elements = afar()
    with executor(MOVES, providers) as ex:
        for _ in range(4):  # built, recorded, replayed
            feeds = {"s": LazySequence(elements), "x": np.array([7, 8], np.float32), "at": np.array(1)}
            out = ex.run(feeds)
            assert out["n"] == 4
            assert [e for e in out["out"].elements if isinstance(e, RemoteElement)] == elements[:3]
            assert out["out"].elements[1].tolist() == [7, 8]
    assert sum(e.fetches for e in elements) == 0


@PLACES
def test_picking_one_brings_that_one_and_joining_brings_all(providers: list[Any]) -> None:
    elements = afar()
    text = """g (seq(float[2]) s, int64 at) => (float[2] one, float[2] neg, float[m] all)
    { one = SequenceAt(s, at) neg = Neg(one) all = ConcatFromSequence <axis = 0> (s) }"""
    at = text.replace(", float[m] all", "").replace(" all = ConcatFromSequence <axis = 0> (s)", "")
    with executor(at, providers) as ex:
        out = ex.run({"s": SequenceValue(elements), "at": np.array(2)})
        assert out["one"].tolist() == [2, 2.5]
        assert out["neg"].tolist() == [-2, -2.5]
        assert [e.fetches for e in elements] == [0, 0, 1, 0]
    with executor(text, providers) as ex:
        out = ex.run({"s": SequenceValue(elements), "at": np.array(0)})
        assert out["all"].tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]


@PLACES
def test_loops_and_branches_move_handles_too(providers: list[Any]) -> None:
    elements = afar(3)
    text = """g (seq(float[2]) s, bool both, int64 m, float[2] x) => (seq(float[2]) out)
    <int64 zero = {0}> {
      grown = Loop (m, "", s) <body = body (int64 i, bool c, seq(float[2]) v) => (bool c2, seq(float[2]) w)
        { c2 = Identity(c) w = SequenceInsert(v, x) }>
      out = If (both) <then_branch = a () => (seq(float[2]) y) { y = Identity(grown) },
                       else_branch = b () => (seq(float[2]) z) { z = SequenceErase(grown, zero) }>
    }"""
    with executor(text, providers) as ex:
        for both in (True, False):
            feeds = {
                "s": LazySequence(elements),
                "both": np.array(both),
                "m": np.array(2),
                "x": np.array([9, 9], np.float32),
            }
            out = ex.run(feeds)["out"]
            assert [e for e in out.elements if isinstance(e, RemoteElement)] == elements[not both :]
    assert sum(e.fetches for e in elements) == 0


def test_a_lazy_sequence_is_a_python_sequence_whose_elements_come_when_they_are_looked_at() -> None:
    elements = afar()
    lazy = LazySequence(elements)
    assert len(lazy) == 4
    assert lazy.dtype == np.float32
    assert sum(e.fetches for e in elements) == 0
    assert lazy[-1].tolist() == [3, 3.5]
    assert [e.fetches for e in elements] == [0, 0, 0, 1]
    part = lazy[1:3]
    assert isinstance(part, LazySequence)
    assert sum(e.fetches for e in elements) == 1
    assert lists(part) == [[1, 1.5], [2, 2.5]]
    assert lists(reversed(lazy))[0] == [3, 3.5]  # type: ignore[arg-type]
    assert lists(pickle.loads(pickle.dumps(lazy))) == lists(lazy)
    with pytest.raises(IndexError):
        lazy[4]
    longer = lazy.inserted(4, np.array([5, 5], np.float32))
    assert isinstance(longer, LazySequence)
    assert longer[4].tolist() == [5, 5]
    assert [e.nbytes for e in elements] == [8] * 4


def test_elements_afar_are_checked_without_being_brought() -> None:
    elements = [Afar(1, 2), Afar(1, 2, 3)]
    with executor(MOVES, ["cpu"]) as ex, pytest.raises(InputError, match=r"s\[1\].*axis 0 must be 2"):
        ex.run({"s": SequenceValue(elements), "x": np.zeros(2, np.float32), "at": np.array(0)})
    assert sum(e.fetches for e in elements) == 0
