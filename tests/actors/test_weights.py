"""Which initializers share an object, and who gets it."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from actors.parcels import unpack
from actors.weights import GROUP_BYTES, LARGE_BYTES, group_weights, share_weights
from hetero.errors import ProgramError

needs = st.dictionaries(st.integers(0, 3), st.lists(st.sampled_from("abcdefgh"), unique=True), max_size=4)
sizes = st.fixed_dictionaries({n: st.integers(0, 3 * LARGE_BYTES // 2) for n in "abcdefgh"})


@given(needs, sizes)
def test_every_child_gets_exactly_what_it_needs_and_nothing_is_stored_twice(
    needed: dict[int, list[str]], sizes: dict[str, int]
) -> None:
    objects = group_weights(needed, sizes)
    stored = [name for names, _ in objects for name in names]
    assert len(stored) == len(set(stored))
    for child, names in needed.items():
        assert sorted(n for group, who in objects if child in who for n in group) == sorted(names)
    for group, _ in objects:
        assert len(group) == 1 or all(sizes[n] < LARGE_BYTES for n in group)


@given(needs, sizes)
def test_small_ones_of_the_same_children_lie_together(
    needed: dict[int, list[str]], sizes: dict[str, int]
) -> None:
    objects = group_weights(needed, sizes)
    small = [who for names, who in objects if sizes[names[0]] < LARGE_BYTES]
    assert len(small) == len(set(small))


def test_a_group_of_small_ones_is_cut_where_it_grows_large() -> None:
    names = [f"w{k}" for k in range(200)]
    objects = group_weights({0: names}, dict.fromkeys(names, LARGE_BYTES - 1))
    assert [n for group, _ in objects for n in group] == names
    assert len(objects) == -(-200 * (LARGE_BYTES - 1) // GROUP_BYTES)


def test_shared_weights_are_put_once_and_come_back_with_their_dtypes() -> None:
    store: list[Any] = []

    def put(wire: Any) -> int:
        store.append(wire)
        return len(store) - 1

    weights = {
        "big": np.ones(LARGE_BYTES // 4, np.float32),
        "half": np.ones(3, ml_dtypes.bfloat16),
        "four": np.ones(5, ml_dtypes.int4),
        "mine": np.zeros(2),
        "unused": np.zeros(9),
    }
    shared = share_weights({0: ["big", "half", "four"], 1: ["big", "half", "four", "mine"]}, weights, put)
    assert len(store) == 3
    for child, wanted in ((0, 3), (1, 4)):
        names, refs = shared.of(child)
        got = {
            n: a
            for group, r in zip(names, refs, strict=True)
            for n, a in zip(group, unpack(store[r]), strict=True)
        }
        assert len(got) == wanted
        for name, array in got.items():
            assert array.dtype == weights[name].dtype
            assert np.shares_memory(array, weights[name])


def test_a_missing_initializer_is_named() -> None:
    with pytest.raises(ProgramError, match="'w'"):
        share_weights({0: ["w"]}, {}, lambda wire: wire)
