"""Feeds: what a user would expect is accepted; the rest is one error that names input, expectation and what came."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import GuardError, InputError
from hetero.feeds import Feeds
from hetero.program.program import NO_SLOT, Port
from hetero.types import DataType, OptionalType, SequenceType, SequenceValue, TensorType


def feeds(**types: Any) -> Feeds:
    return Feeds([Port(name, NO_SLOT, type_) for name, type_ in types.items()])


X = TensorType(DataType.FLOAT, ("n", 4))
BASE = np.arange(48, dtype=np.float32).reshape(6, 8)


@pytest.mark.parametrize(
    "x",
    [
        BASE[:, :4],
        BASE[::-2, 4:],
        BASE.T[:4].T,
        np.zeros((0, 4), np.float32),
        np.broadcast_to(BASE[0, :4], (9, 4)),
    ],
    ids=["strided", "reversed", "transposed", "zero-size", "broadcast"],
)
def test_arrays_of_any_strides_come_through_as_they_are(x: np.ndarray) -> None:
    assert feeds(x=X).check({"x": x})["x"] is x


def test_read_only_arrays_come_through() -> None:
    x = BASE[:, :4].copy()
    x.flags.writeable = False
    assert feeds(x=X).check({"x": x})["x"] is x


def test_scalars_are_zero_dimensional_arrays() -> None:
    f = feeds(k=TensorType(DataType.INT64, ()))
    for value in (3, np.int64(3), np.array(3)):
        got = f.check({"k": value})["k"]
        assert got.shape == ()
        assert got.dtype == np.int64
        assert got == 3


def test_nested_lists_convert_where_nothing_is_lost() -> None:
    f = feeds(x=X)
    assert f.check({"x": [[1, 2, 3, 4.5]]})["x"].dtype == np.float32
    with pytest.raises(InputError, match="without loss"):
        feeds(k=TensorType(DataType.INT64, (1,))).check({"k": [1.5]})
    with pytest.raises(InputError, match="'k'"):
        feeds(k=TensorType(DataType.INT8, (1,))).check({"k": [300]})
    half = feeds(h=TensorType(DataType.FLOAT16, ("n",)))
    for beyond in ([1e10], [70000]):
        with pytest.raises(InputError, match="'h'"):
            half.check({"h": beyond})
    assert np.array_equal(half.check({"h": [float("inf"), 0.1]})["h"], np.array([np.inf, 0.1], np.float16))
    with pytest.raises(InputError, match="'x'"):
        f.check({"x": [[1, 2], [3]]})


def test_strings_may_be_objects_or_text_arrays() -> None:
    f = feeds(s=TensorType(DataType.STRING, ("n",)))
    for value in (np.array(["a", "b"]), np.array(["a", "b"], object), ["a", "b"]):
        got = f.check({"s": value})["s"]
        assert got.dtype == object
        assert list(got) == ["a", "b"]


def test_narrow_floats_are_taken_as_ml_dtypes_arrays() -> None:
    x = np.ones((2,), ml_dtypes.bfloat16)
    assert feeds(x=TensorType(DataType.BFLOAT16, (2,))).check({"x": x})["x"] is x


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((2, 4)), r"'x'.*float\[n, 4\].*float64\[2, 4\]"),
        (np.zeros((2, 4), ">f4"), r"'x'.*byte-swapped"),
        (np.zeros((2, 4), object), r"'x'.*float\[n, 4\].*objects"),
        (np.zeros((2, 4), "M8[s]"), r"'x'.*datetime64"),
        (np.zeros(4, np.float32), r"'x'.*rank 2.*rank 1"),
        (np.zeros((2, 5), np.float32), r"'x'.*axis 1 must be 4, not 5"),
        (None, r"'x'.*None"),
        ("text", r"'x'.*text"),
        ({1: 2}, r"'x'.*dict"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        feeds(x=X).check({"x": value})
    assert caught.value.operand == "x"


def test_missing_and_unknown_inputs_are_named_together() -> None:
    with pytest.raises(InputError, match=r"missing 'y' \(float\[n, 4\]\); unknown 'z'"):
        feeds(x=X, y=X).check({"x": BASE[:, :4], "z": 1})
    with pytest.raises(InputError, match="dict"):
        feeds(x=X).check([1])  # type: ignore[arg-type]


def test_extents_that_share_a_symbol_must_agree() -> None:
    with pytest.raises(GuardError, match=r"n.*"):
        feeds(x=X, y=X).check({"x": BASE[:2, :4], "y": BASE[:3, :4]})


def test_sequences_are_lists_and_optionals_may_be_none() -> None:
    f = feeds(s=SequenceType(X), o=OptionalType(X))
    got = f.check({"s": [BASE[:, :4], BASE[:1, :4]], "o": None})
    assert isinstance(got["s"], SequenceValue)
    assert got["s"].dtype == np.float32
    assert got["o"] is None
    assert f.check({"s": [], "o": BASE[:, :4]})["s"].dtype == np.float32
    with pytest.raises(InputError, match=r"s\[1\]"):
        f.check({"s": [BASE[:, :4], BASE], "o": None})
    with pytest.raises(InputError, match="'s'"):
        f.check({"s": BASE[:, :4], "o": None})


def test_feeds_like_the_last_ones_are_taken_as_they_are_and_others_are_looked_at() -> None:
    f = feeds(x=X, y=X)
    x, y = np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32)
    for _ in range(3):
        got = f.check({"y": y, "x": x})
        assert got["x"] is x
        assert got["y"] is y
    for bad, error in (
        ({"x": x, "y": np.zeros((2, 4), np.float32)}, GuardError),
        ({"x": x, "y": y.astype(np.float64)}, InputError),
        ({"x": x, "y": np.zeros((3, 5), np.float32)}, InputError),
        ({"x": x, "z": y}, InputError),
        ({"x": x}, InputError),
        ({"x": x, "y": y, "z": y}, InputError),
        ({"x": x, "y": np.ma.masked_array(y, mask=True)}, InputError),
    ):
        with pytest.raises(error):
            f.check(bad)
        assert f.check({"x": x, "y": y})["y"] is y
    converted = f.check({"x": x, "y": y.tolist()})["y"]
    assert converted.dtype == np.float32
    given = {"x": x, "y": y}
    f.check(given)["x"] = y
    assert given["x"] is x
