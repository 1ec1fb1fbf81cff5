"""Bounded msgpack gives plain lists back, and never more memory than the bytes are worth."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.errors import PlanError, ProgramError
from hetero.program.packing import MAX_NESTING, dumps, loads, pack_ints, unpack_ints

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")) | st.binary(),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=20,
)  # fmt: skip
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(PLAIN)
def test_plain_lists_survive(plain: Any) -> None:
    data = dumps(plain)
    assert loads(data) == plain
    assert dumps(loads(data)) == data


@given(PLAIN, st.data())
def test_every_truncation_is_refused(plain: Any, data: st.DataObject) -> None:
    whole = dumps(plain)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProgramError):
        loads(whole[:cut])


@given(st.binary(max_size=60))
def test_any_bytes_load_or_raise_the_one_error(data: bytes) -> None:
    try:
        loads(data)
    except ProgramError:
        return
    assert data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "end early"),
        (msgpack.packb([1]) + b"\x00", "1 bytes after the end"),
        (msgpack.packb({"a": 1}), "damaged bytes"),
        (msgpack.packb(msgpack.ExtType(4, b"x")), "damaged bytes"),
        (b"\xdd\xff\xff\xff\xff", "an array of 4294967295 items where 5 bytes remain"),
        (b"\xa2\xff\xff", "damaged bytes"),
        (b"\xc1", "damaged bytes"),
        (b"\xc6\xff\xff\xff\xff", "damaged bytes"),
        (b"\x91" * (MAX_NESTING + 1) + b"\x00", "nested deeper"),
    ],
)
def test_what_is_no_plain_list_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        loads(data)


def test_nested_headers_that_promise_much_cost_little() -> None:
    size = 5_000
    head = b"\xdd" + size.to_bytes(4, "big")
    data = head * 200 + b"\x00" * size
    tracemalloc.start()
    try:
        with pytest.raises(ProgramError):
            loads(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Allocated as promised, the 200 lists alone would take 200 * 8 * size bytes.
    assert peak < 200 * size


def test_nesting_up_to_the_limit_loads() -> None:
    plain: Any = 7
    for _ in range(MAX_NESTING):
        plain = [plain]
    assert loads(dumps(plain)) == plain


def test_what_msgpack_cannot_hold_is_refused_with_the_callers_error() -> None:
    for plain in (object(), 2**64, "\ud800", {1}):
        with pytest.raises(PlanError, match="cannot be written"):
            dumps(plain, error=PlanError)
    with pytest.raises(PlanError):
        loads(b"", error=PlanError)


@given(st.lists(st.integers(-200, 200)) | st.lists(INT64))
def test_columns_of_integers_survive(values: list[int]) -> None:
    assert unpack_ints(pack_ints(values), "column") == values


def test_columns_use_the_least_width() -> None:
    assert [len(pack_ints([v])) - 1 for v in (0, -128, 127, 128, -129, 2**15, 2**31, -(2**31))] == [
        1, 1, 1, 2, 2, 4, 8, 4,
    ]  # fmt: skip
    assert pack_ints([258, -1]) == b"\x02\x02\x01\xff\xff"


def test_damaged_columns_are_refused() -> None:
    for data in (b"\x03abc", b"\x02abc", b"\x00", "text", None):
        with pytest.raises(ProgramError, match="column"):
            unpack_ints(data, "column")
    with pytest.raises(ProgramError, match="cannot be written"):
        pack_ints([2**63])
