"""Which initializers share an object, and who gets it; which are mapped from files instead."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from onnx import numpy_helper

from actors.arrivals import InFiles, NotHereError, arrived
from actors.weights import (
    GROUP_BYTES,
    LARGE_BYTES,
    SPOOL_BYTES,
    SharedWeights,
    group_weights,
)
from hetero.errors import ProgramError
from hetero.kernels.widen import is_constant
from hetero.mapped import FileRange, Stamp, range_of
from hetero.model import load_model
from hetero.model.weights import Weights
from hetero.types import HostArray, TensorSpec
from tests.model.build import external, info, model, node

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


class Store:
    """Objects by number."""

    def __init__(self) -> None:
        self.objects: list[Any] = []

    def put(self, wire: Any) -> int:
        self.objects.append(wire)
        return len(self.objects) - 1

    def got(self, shared: SharedWeights, child: int) -> dict[str, HostArray]:
        """What an actor makes of what it gets."""
        names, contents = shared.of(child)
        return arrived(names, [self.objects[c] if isinstance(c, int) else c for c in contents])


def loaded(weights: dict[str, HostArray]) -> Weights:
    """These weights, of a model in memory."""
    total = model([node("Sum", list(weights), ["y"])], inputs=[], outputs=[info("y", None)])
    total.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    return load_model(total).weights


BIG = np.arange(SPOOL_BYTES // 4, dtype=np.float32)


def test_without_files_weights_are_put_once_and_come_back_with_their_dtypes() -> None:
    store = Store()
    weights = {
        "big": np.ones(LARGE_BYTES // 4, np.float32),
        "half": np.ones(3, ml_dtypes.bfloat16),
        "four": np.ones(5, ml_dtypes.int4),
        "mine": np.zeros(2),
        "unused": np.zeros(9),
    }
    needed = {0: ["big", "half", "four"], 1: ["big", "half", "four", "mine"]}
    shared = SharedWeights(needed, weights, store.put)
    assert len(store.objects) == 3
    for child, wanted in ((0, 3), (1, 4)):
        got = store.got(shared, child)
        assert len(got) == wanted
        for name, array in got.items():
            assert array.dtype == weights[name].dtype
            assert np.shares_memory(array, weights[name])


def test_what_is_in_memory_moves_to_a_file_and_is_not_put() -> None:
    store, weights = Store(), loaded({"a": BIG, "b": BIG[:3] + 1})
    before = weakref.ref(weights["a"].base)
    shared = SharedWeights({0: ["a", "b"], 1: ["a"]}, weights, store.put)
    gc.collect()
    assert before() is None, "the driver still has the bytes in its own memory"
    assert not store.objects
    for child, names in ((0, "ab"), (1, "a")):
        got = store.got(shared, child)
        assert sorted(got) == list(names)
        for name, array in got.items():
            assert array.tobytes() == weights[name].tobytes() == {"a": BIG, "b": BIG[:3] + 1}[name].tobytes()
            assert is_constant(array)
    assert range_of(weights["a"]) is not None


def test_little_is_put_and_not_worth_a_file() -> None:
    store = Store()
    shared = SharedWeights({0: ["a"]}, loaded({"a": BIG[:100]}), store.put)
    assert len(store.objects) == 1
    assert store.got(shared, 0)["a"].tobytes() == BIG[:100].tobytes()


def test_external_data_are_mapped_where_they_lie(tmp_path: Path) -> None:
    store = Store()
    BIG.tofile(tmp_path / "w.bin")
    tensor = external("a", [len(BIG)], location="w.bin")
    proto = model([node("Neg", ["a"], ["y"])], inputs=[], outputs=[info("y", None)])
    proto.graph.initializer.append(tensor)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    shared = SharedWeights({0: ["a"]}, load_model(tmp_path / "m.onnx").weights, store.put)
    ((content,),) = [shared.of(0)[1]]
    assert isinstance(content, InFiles)
    assert content.ranges[0].path == str(tmp_path / "w.bin")
    assert store.got(shared, 0)["a"].tobytes() == BIG.tobytes()
    assert not store.objects


def test_text_is_put() -> None:
    store, words = Store(), np.array(["a", "b" * 1000], object)
    weights = loaded({"a": BIG, "words": words})
    shared = SharedWeights({0: ["a", "words"]}, weights, store.put)
    assert len(store.objects) == 1
    assert store.got(shared, 0)["words"].tolist() == words.tolist()


def test_a_child_that_cannot_reach_the_files_gets_objects_which_are_put_once_for_all_of_them() -> None:
    store, weights = Store(), loaded({"a": BIG, "b": BIG + 1})
    shared = SharedWeights({0: ["a"], 1: ["a", "b"], 2: ["a"]}, weights, store.put)
    assert not shared.cannot_map(1, ProgramError("it failed for another reason"))
    assert shared.cannot_map(1, NotHereError("no file"))
    assert not shared.cannot_map(1, NotHereError("no file")), "it has no files to reach any more"
    assert {n: a.tobytes() for n, a in store.got(shared, 1).items()} == {
        "a": BIG.tobytes(),
        "b": (BIG + 1).tobytes(),
    }
    assert len(store.objects) == 2
    assert not any(isinstance(c, int) for c in shared.of(0)[1]), "the others still map them"
    assert shared.cannot_map(2, NotHereError("no file"))
    store.got(shared, 2)
    assert len(store.objects) == 2


def test_files_that_are_not_here_are_one_error() -> None:
    place = FileRange("/nowhere/at/all", Stamp(1, 4, 0), 0, 4)
    with pytest.raises(NotHereError, match="/nowhere/at/all"):
        arrived([("a",)], [InFiles((place,), (TensorSpec(np.dtype(np.float32), (1,)),))])


def test_without_room_on_a_disk_weights_are_put(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(nbytes: int) -> Any:
        raise OSError("no room")

    monkeypatch.setattr("actors.weights.Spool", refused)
    store, weights = Store(), loaded({"a": BIG})
    shared = SharedWeights({0: ["a"]}, weights, store.put)
    assert len(store.objects) == 1
    assert store.got(shared, 0)["a"].tobytes() == BIG.tobytes()


def test_a_missing_initializer_is_named() -> None:
    with pytest.raises(ProgramError, match="'w'"):
        SharedWeights({0: ["w"]}, {}, lambda wire: wire)
