"""Types and attribute values have one plain form, and every other form is refused."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.errors import ProgramError
from hetero.program.constants import to_bytes
from hetero.program.packing import dumps, loads
from hetero.program.wire_values import (
    TableReader,
    TableWriter,
    decode_attribute,
    decode_type,
    encode_attribute,
    encode_type,
)
from hetero.types import DataType, MapType, OptionalType, SequenceType, TensorType, ValueType

DIMS = st.none() | st.integers(0, 2**63 - 1) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)
TENSORS = st.builds(
    TensorType,
    st.none() | st.sampled_from([t for t in DataType if t != DataType.UNDEFINED]),
    st.none() | st.lists(DIMS, max_size=4).map(tuple),
)
NESTED = TENSORS.map(lambda t: OptionalType(SequenceType(t)))
MAPS = st.builds(MapType, st.sampled_from([DataType.INT64, DataType.STRING]), TENSORS)
TYPES: st.SearchStrategy[ValueType] = (
    TENSORS | TENSORS.map(SequenceType) | TENSORS.map(OptionalType) | NESTED | MAPS | MAPS.map(SequenceType)
)


def through(value: Any) -> Any:
    """The value after encoding, msgpack, and decoding."""
    writer = TableWriter()
    tag, plain = encode_attribute(value, writer, "a")
    strings, types, back = loads(dumps([*writer.plain(), plain]))
    return decode_attribute(tag, back, TableReader(strings, types), "a")


@given(st.none() | TYPES)
def test_types_survive(declared: ValueType | None) -> None:
    assert decode_type(loads(dumps(encode_type(declared)))) == declared


@pytest.mark.parametrize(
    "plain",
    [
        3, [], [9], [0], [0, 1], [0, 1, None, None], [0, 0, None], [0, 999, None], [0, "f", None], [0, 1, 3],
        [0, 1, [-1]], [0, 1, [""]], [0, 1, [1.5]], [0, 1, [True]], [0, 1, [2**63]], [1, None], [1], [True, None],
        [1, [1, [1, [1, [1, [1, [1, [1, [0, 1, None]]]]]]]]], [3, 7], [3, 7, [1, [0, 1, None]]], [3, 999, [0, 1, None]],
    ],
    ids=str,
)  # fmt: skip
def test_plain_lists_that_are_no_type_are_refused(plain: Any) -> None:
    with pytest.raises(ProgramError):
        decode_type(plain)


VALUES = (
    st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(codec="utf-8"))
    | st.binary()
    | st.lists(st.integers(-(2**63), 2**63 - 1)).map(tuple)
    | st.lists(st.floats(allow_nan=False)).map(tuple)
    | st.lists(st.text(st.characters(codec="utf-8"))).map(tuple)
    | st.lists(st.binary()).map(tuple)
    | TYPES
    | st.lists(TYPES).map(tuple)
)


@given(VALUES)
def test_attribute_values_survive(value: Any) -> None:
    back = through(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("bits", [0x7FF8000000000001, 0xFFF0000000000001, 0x7FF0000000000000, 1 << 63, 1])
def test_floats_keep_every_bit(bits: int) -> None:
    data = struct.pack("<Q", bits)
    [value] = struct.unpack("<d", data)
    assert struct.pack("<d", through(value)) == data
    assert struct.pack("<d", through((value, 1.0))[0]) == data


def test_arrays_survive_read_only() -> None:
    for array in (
        np.array([[1, 2], [3, 4]], np.int16),
        np.array(1 + 2j, np.complex64),
        np.array([math.nan, -0.0], np.float16),
        np.zeros((0, 3), bool),
        np.array(["a", "é"], object),
    ):
        back = through(array)
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert to_bytes(back) == to_bytes(array)
        assert not back.flags.writeable
    pair = through((np.zeros(2), np.ones(3)))
    assert [a.shape for a in pair] == [(2,), (3,)]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        [1],
        (1, 1.0),
        (1, "a"),
        ("a", b"b"),
        (True,),
        ((1,),),
        {},
        np.float32(1),
        np.zeros(1, "M8[s]"),
        1j,
    ],
    ids=repr,
)
def test_values_that_are_no_attribute_are_refused(value: Any) -> None:
    with pytest.raises(ProgramError):
        encode_attribute(value, TableWriter(), "a")


@pytest.mark.parametrize(
    ("tag", "plain"),
    [
        (99, 1), (-1, 1), ("x", 1), (True, 1), (0, "a"), (0, 2**63), (0, True), (1, 1.0), (1, b"1234567"), (2, b""),
        (3, ""), (4, b"\x03"), (5, b"1234567"), (5, None), (6, []), (6, [0, [1]]), (6, [6, []]), (6, [2, 3]),
        (6, [[2], []]), (7, [1, [2], b"1234567"]), (7, [1, [2]]), (7, [0, [], b""]), (7, [1, [-1], b""]), (8, 0),
        (8, None),
    ],
    ids=str,
)  # fmt: skip
def test_plain_values_that_no_encoder_wrote_are_refused(tag: Any, plain: Any) -> None:
    with pytest.raises(ProgramError):
        decode_attribute(tag, plain, TableReader([], []), "a")


def test_tables_hold_each_string_and_type_once() -> None:
    writer = TableWriter()
    f = TensorType(DataType.FLOAT, ("n",))
    assert [writer.string(s) for s in ("a", "b", "a")] == [0, 1, 0]
    assert [writer.type(t) for t in (f, None, TensorType(DataType.FLOAT, ("n",)))] == [0, 1, 0]
    reader = TableReader(*writer.plain())
    assert (reader.string(1), reader.type(0), reader.type(1)) == ("b", f, None)
    for index in (-1, 2, "0", None):
        with pytest.raises(ProgramError):
            reader.string(index)
        with pytest.raises(ProgramError):
            reader.type(index)


def test_an_unknown_type_is_no_attribute_value() -> None:
    with pytest.raises(ProgramError, match="says nothing"):
        decode_attribute(8, 0, TableReader([], [None]), "a")
