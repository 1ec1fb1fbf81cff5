"""Sequences grow out of one another without copies, stay what they were, and let go of what nobody reaches."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import threading
import weakref

import numpy as np
import pytest

from hetero.types import SequenceValue


def arrays(n: int) -> list[np.ndarray]:
    return [np.full(1, k, np.float32) for k in range(n)]


def test_ten_thousand_appends_copy_no_handle() -> None:
    value, element = SequenceValue((), np.float32), np.zeros(2, np.float32)
    for _ in range(10_000):
        value = value.inserted(len(value), element)
    assert len(value) == 10_000
    assert value.handles_copied == 0


def test_ten_thousand_pops_and_pushes_in_turn_copy_no_handle() -> None:
    value = SequenceValue(arrays(100))
    for element in arrays(10_000):
        value = value.erased(len(value) - 1)
        value = value.inserted(len(value), element)
    assert len(value) == 100
    assert value.handles_copied == 0


def test_appending_twice_to_one_value_gives_two_values() -> None:
    a, b, c = arrays(3)
    base = SequenceValue([a])
    first, second = base.inserted(1, b), base.inserted(1, c)
    third = first.inserted(2, c)
    assert [list(v) for v in (base, first, second, third)] == [[a], [a, b], [a, c], [a, b, c]]
    assert second.handles_copied == 2
    assert third.handles_copied == 0


def test_inserting_and_erasing_anywhere_agrees_with_lists_whatever_was_kept() -> None:
    rng = random.Random(7)
    pool = arrays(20)
    kept: list[tuple[SequenceValue, list[np.ndarray]]] = [(SequenceValue(), [])]
    for _ in range(2_000):
        value, model = rng.choice(kept)
        if model and rng.random() < 0.45:
            at = rng.choice([len(model) - 1, rng.randrange(len(model))])
            made = value.erased(at), model[:at] + model[at + 1 :]
        else:
            at, element = rng.choice([len(model), rng.randint(0, len(model))]), rng.choice(pool)
            made = value.inserted(at, element), [*model[:at], element, *model[at:]]
        kept.append(made)
        if len(kept) > 30:
            del kept[rng.randrange(len(kept))]
        for value, model in kept[-3:]:
            assert [id(e) for e in value] == [id(e) for e in model]
    for value, model in kept:
        assert [id(e) for e in value] == [id(e) for e in model]
        assert len(value._store.holders) == len(value._store.items) + 1


def test_a_popped_element_is_let_go_once_no_value_reaches_it() -> None:
    element = np.zeros(3)
    there = weakref.ref(element)
    short = SequenceValue(arrays(2))
    long = short.inserted(2, element)
    del element
    popped = long.erased(2)
    assert there() is not None
    del long
    assert there() is None
    assert len(popped) == len(short) == 2


def test_an_iterator_keeps_its_elements_though_the_value_is_gone() -> None:
    walk = iter(SequenceValue(arrays(3)))
    assert next(walk)[0] == 0
    gc.collect()
    assert [int(e[0]) for e in walk] == [1, 2]


def test_threads_that_append_to_one_value_get_values_of_their_own() -> None:
    base = SequenceValue(arrays(5))
    made: list[tuple[int, SequenceValue]] = []
    start = threading.Barrier(8)

    def grow(number: int) -> None:
        start.wait()
        value = base
        for _ in range(300):
            value = value.inserted(len(value), np.array(number))
        made.append((number, value))

    threads = [threading.Thread(target=grow, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    for number, value in made:
        assert len(value) == 305
        assert {int(e) for e in value.elements[5:]} == {number}
    assert len(base) == 5


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_a_copy_of_any_kind_has_the_elements_and_the_dtype(duplicate: object) -> None:
    long = SequenceValue(arrays(3)).inserted(3, np.full(1, 3, np.float32))
    for value in (SequenceValue((), np.int8), long.erased(3)):
        twin = duplicate(value)  # type: ignore[operator]
        assert twin.dtype == value.dtype
        assert [e.tolist() for e in twin] == [e.tolist() for e in value]


def test_it_reads_like_a_tuple() -> None:
    a, b, c = arrays(3)
    value = SequenceValue([a, b, c])
    assert value[-1] is c
    assert value[0] is a
    assert value.elements == (a, b, c)
    assert [id(e) for e in value[1:]] == [id(b), id(c)]
    assert value[3:].dtype == np.float32
    assert [id(e) for e in reversed(value)] == [id(c), id(b), id(a)]
    for index in (3, -4):
        with pytest.raises(IndexError, match="out of range for a sequence of 3"):
            value[index]
    assert repr(value) == "SequenceValue(3 × float32)"


def test_mapping_asks_once_per_element_and_keeps_a_sequence_that_stays_the_same() -> None:
    a, b = arrays(2)
    asked: list[int] = []

    def double(x: np.ndarray) -> np.ndarray:
        asked.append(int(x[0]))
        return x * 2

    value = SequenceValue([a, b, a])
    doubled = value.mapped(double)
    assert asked == [0, 1]
    assert doubled[0] is doubled[2]
    assert value.mapped(lambda x: x) is value
