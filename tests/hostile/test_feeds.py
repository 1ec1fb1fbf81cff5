"""Feeds of every kind, layout and origin: taken where they mean the declared tensor, refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from hetero import HeterogeneousExecutor
from hetero.errors import InputError
from hetero.types import SequenceValue
from tests.hostile.harness import PROVIDERS, bounded, executor


@pytest.fixture(scope="module", params=PROVIDERS, ids=lambda p: p[0])
def negating(request: pytest.FixtureRequest) -> Iterator[HeterogeneousExecutor]:
    """y = -x for x of float32[n, 3]."""
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ["n", 3])],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with executor(model, request.param) as ex:
        yield ex


class Duck:
    """Something that only converts."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return np.asarray(self.value)


def layouts(x: Any) -> list[Any]:
    """The same values, laid out differently."""
    backwards = np.ascontiguousarray(x[::-1])[::-1]
    wide = np.repeat(x, 2, axis=1)[:, ::2]
    buffer = np.zeros(x.nbytes + 1, np.uint8)
    unaligned = buffer[1:].view(x.dtype).reshape(x.shape)
    unaligned[...] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    return [
        np.asfortranarray(x),
        backwards,
        wide,
        unaligned,
        frozen,
        np.broadcast_to(x[:1], x.shape) if (x == x[:1]).all() else x,
    ]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(rows=st.integers(0, 4), number=st.integers(0, 99), kind=st.integers(0, 5))
def test_any_layout_of_the_same_values_gives_the_same(
    negating: HeterogeneousExecutor, rows: int, number: int, kind: int
) -> None:
    x = np.random.default_rng(number).standard_normal((rows, 3)).astype(np.float32)
    fed = layouts(x)[kind]
    before = fed.tobytes()
    with bounded():
        y = negating.run({"x": fed})["y"]
    np.testing.assert_array_equal(y, -x)
    assert fed.tobytes() == before


GOOD = np.ones((2, 3), np.float32)
STRANGE: dict[str, Any] = {
    "float64": GOOD.astype(np.float64),
    "int64": GOOD.astype(np.int64),
    "complex": GOOD.astype(np.complex64),
    "byte-swapped": GOOD.astype(">f4"),
    "objects": GOOD.astype(object),
    "text": np.array([["a"] * 3]),
    "dates": np.zeros((2, 3), "M8[s]"),
    "records": np.zeros((2, 3), [("a", "f4")]),
    "rank 0": np.float32(1),
    "rank 1": GOOD[0],
    "rank 3": GOOD[None],
    "another extent": GOOD[:, :2],
    "a masked element": np.ma.masked_array(GOOD, mask=[[1, 0, 0], [0, 0, 0]]),
    "None": None,
    "a string": "x",
    "bytes": b"abcd",
    "a dict": {"a": 1},
    "a ragged list": [[1.0, 2.0, 3.0], [1.0]],
    "a list of text": [["a", "b", "c"]],
    "a list beyond float32": [[1e300, 0.0, 0.0]],
    "a huge integer": [[2**100, 0, 0]],
    "an object": object(),
    "a type": np.ndarray,
    "a sequence": SequenceValue([GOOD]),
    "a duck of another dtype": Duck(GOOD.astype(np.int8)),
    "a duck that fails": Duck(RuntimeError("not now")),
    "a generator": (v for v in [1.0]),
    "a set": {1.0},
    "NaN": float("nan"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_such_tensor_is_refused_and_the_next_step_runs(
    negating: HeterogeneousExecutor, name: str
) -> None:
    with bounded(), pytest.raises(InputError, match="'x' must be") as caught:
        negating.run({"x": STRANGE[name]})
    assert caught.value.operand == "x"
    np.testing.assert_array_equal(negating.run({"x": GOOD})["y"], -GOOD)


@pytest.mark.parametrize(
    "fed",
    [
        GOOD.view(np.matrix),
        np.ma.masked_array(GOOD),
        Duck(GOOD),
        [[1.0, 1.0, 1.0], [1, 1, 1]],
        ((1.0, 1.0, 1.0),) * 2,
    ],
    ids=["a matrix", "a mask of nothing", "a duck", "a list", "a tuple"],
)
def test_what_means_the_tensor_is_taken(negating: HeterogeneousExecutor, fed: Any) -> None:
    y = negating.run({"x": fed})["y"]
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, -GOOD)


@pytest.mark.parametrize("feeds", [None, [], [GOOD], "x", {}, {"x": GOOD, "z": GOOD}, {1: GOOD}, {"X": GOOD}])
def test_feeds_that_are_no_dict_of_the_inputs_are_refused(
    negating: HeterogeneousExecutor, feeds: Any
) -> None:
    with pytest.raises(InputError):
        negating.run(feeds)
