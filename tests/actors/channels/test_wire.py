"""Parcels on a channel: every value comes back as it was; what nobody encoded is refused and never touches memory."""

from __future__ import annotations

import random
import socket
from typing import Any

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings

from actors.channels.bodies import Incoming, Limits, Outgoing
from actors.channels.framing import ONE, Reader, joined
from actors.channels.messages import (
    _OPENING,
    DATA,
    MAX_FORM_BYTES,
    MAX_FORMS,
    MAX_NUMBER,
    NUMBERS,
    VERSION,
    Abort,
    Begin,
    Block,
    Ended,
    Failed,
    Forms,
    Known,
    Lost,
    Message,
    Packed,
    Received,
    Sent,
    Settled,
    described,
    opening,
    read,
    write,
)
from actors.channels.wire import MAX_DEPTH, decode, encode
from hetero.errors import TransportError
from hetero.runtime.state import Resident
from hetero.types import MapValue, SequenceValue
from tests.actors.test_parcels import DTYPES, array_of, assert_same, dtype_named


def crossed(values: list[Any], *, small: bool = False) -> list[Any]:
    """The values after a message, with the body in the header or in a frame."""
    encoded = encode(values)
    if small:
        body: Any = encoded.joined()
    else:
        body = np.zeros(encoded.nbytes, np.uint8)
        encoded.fill(body)
    frames = [
        bytes(f)
        for f in write(Sent(3, 4, "verify", 5, (Packed(6, encoded.specs, len(body), 0, None, body),)), 7)
    ]
    generation, message = read(frames)
    assert (generation, *seen(message)[:4]) == (7, 3, 4, "verify", 5)
    return values_of(message)


def a_bit_of_everything() -> list[Any]:
    return [
        None,
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.array(2.5, np.float32),
        np.zeros((0, 3), np.float64),
        np.array([["a", "ü\ud800"], ["", "b"]], dtype=object),
        SequenceValue([np.ones(2, np.float32), np.zeros((1, 2), np.float32)], np.float32),
        SequenceValue([], np.int8),
        SequenceValue([], None),
        MapValue({1: 0.5, 2: -1.0}, np.float32),
        MapValue({"x": 1, "y": 2**63}, np.uint64),
        SequenceValue([MapValue({"k": 1.0}, np.float32)]),
        Resident((2, 3)),
    ]


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("name", DTYPES)
def test_arrays_of_every_dtype_and_layout_come_back_to_the_bit(name: str, small: bool) -> None:
    base = array_of(dtype_named(name), (4, 6))
    layouts = [base, base.T, np.asfortranarray(base), base[::2, 1::2], base[:, ::-1], base[0], base[:0]]
    for got, want in zip(crossed(layouts, small=small), layouts, strict=True):
        assert_same(got, np.ascontiguousarray(want) if want.ndim == 1 else want)
        assert not got.flags.writeable
    assert crossed([base.T], small=small)[0].flags.f_contiguous


@pytest.mark.parametrize("small", [True, False])
def test_everything_else_comes_back_as_it_was(small: bool) -> None:
    values = a_bit_of_everything()
    got = crossed(values, small=small)
    assert_same(SequenceValue(got[:4]), SequenceValue(values[:4]))
    assert got[4].tolist() == values[4].tolist()
    for a, b in zip(got[5:-1], values[5:-1], strict=True):
        assert_same(a, b)
    assert got[-1] == values[-1]


def test_an_array_that_stands_twice_in_a_parcel_travels_once() -> None:
    x = np.ones(1000, np.float32)
    assert encode([x, SequenceValue([x, x])]).nbytes == x.nbytes


def test_numbers_in_another_byte_order_arrive_in_ours() -> None:
    (got,) = crossed([np.arange(3, dtype=">i4")])
    assert got.dtype == np.int32
    assert got.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {"a": 1},
        np.array(["2020-01-01"], "datetime64[D]"),
        np.array([{}], object),
        MapValue({1: 2**70}, np.int64),
        MapValue({1: [2]}, np.int64),
    ],
    ids=repr,
)
def test_what_is_no_value_is_refused_where_it_leaves(value: Any) -> None:
    with pytest.raises(TransportError):
        encode([value])


def test_sequences_that_are_nested_without_end_are_refused_at_both_ends() -> None:
    value: Any = np.ones(1, np.float32)
    specs: Any = None
    for _ in range(MAX_DEPTH + 1):
        value, specs = SequenceValue([value]), [2, None, [specs]]
    with pytest.raises(TransportError, match="nested"):
        encode([value])
    with pytest.raises(TransportError, match="malformed"):
        decode([specs], None)


@pytest.mark.parametrize(
    "spec",
    [
        [0, "float32", [4], 0, 0],  # 16 bytes of 8
        [0, "float32", [1], 64, 0],
        [0, "float32", [1], -64, 0],
        [0, "float32", [1], 4, 0],  # not aligned
        [0, "float32", [1], 0.0, 0],
        [0, "float32", [-1], 0, 0],
        [0, "float32", [True], 0, 0],
        [0, "float32", [0, 2**60, 2**60], 0, 0],
        [0, "float32", [1] * 99, 0, 0],
        [0, "object", [1], 0, 0],
        [0, "no_such", [1], 0, 0],
        [0, ["float32"], [1], 0, 0],
        [1, [2], ["a"]],
        [1, [1], [None]],
        [1, [1], [["a"]]],
        [2, "no_such", []],
        [2, None, [[9]]],
        [3, "float32", [1], []],
        [3, "float32", [None], [1.0]],
        [3, "float32", [1], [None]],
        [4, [-1]],
        [9, []],
        {"a": 1},
        "text",
        7,
    ],
    ids=repr,
)
def test_a_description_that_does_not_fit_its_body_is_refused(spec: Any) -> None:
    with pytest.raises(TransportError, match="malformed"):
        decode([spec], np.zeros(8, np.uint8))


MESSAGES: list[Message] = [
    Begin(1, 2, "primary", (Packed(0, [None]), Packed(1, [[4, [2]]], 9, 3, Block(5, "hetero-x")))),
    Sent(1, 2, "primary", 3, (Packed(1, [[0, "uint8", [2], 0, 0]], 2, 0, None, b"ab"),)),
    Sent(1, 2, "primary", 3, (Packed(1, [[0, "uint8", [2], 0, 0]], 2, 8, None, np.zeros(2, np.uint8)),)),
    Ended(1, 2),
    Failed(1, 2, ("KernelError", "no", None, "Op", None, None, "cpu", "run", "Traceback")),
    Abort(1, 2),
    Settled((1, 2), (3,)),
    Lost(-1),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_every_message_comes_back_with_its_generation(message: Message) -> None:
    generation, got = read(write(message, 5))
    assert generation == 5
    assert seen(got) == seen(message)
    if not isinstance(got, Known):
        assert write(got, 5)[0] == write(message, 5)[0]


def data(
    description: Any, bodies: bytes = b"", version: int = VERSION, step: int = 3, attempt: int = 4
) -> bytes:
    """A header as that of a Begin or Sent, whatever is in it."""
    packed = msgpack.packb(description)
    return _OPENING.pack(DATA, version, 1) + NUMBERS.pack(step, attempt) + described(packed) + bodies


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xc1"],
        [msgpack.packb({"a": 1})],
        [msgpack.packb([VERSION, 1])],
        [msgpack.packb([VERSION + 1, 1, 2, 3, 4])],
        [msgpack.packb([VERSION, 1, 99, 3, 4])],
        [msgpack.packb([VERSION, 1, 0, 3, 4])],  # a Begin has another form
        [msgpack.packb([VERSION, 1, 2, 3, -5])],
        [msgpack.packb([VERSION, 1, 2, 3, True])],
        [msgpack.packb([VERSION, "1", 2, 3, 4])],
        [msgpack.packb([VERSION, 1, [], 3, 4])],
        [msgpack.packb([VERSION, 1, 5, [0], []])],  # a ticket that is none
        [data(["", 5, [[0, [], 2, 0, 1]]])],  # a frame that is not there
        [data(["", 5, [[0, [], 2, 0, 1]]]), b"abc"],
        [data(["", 5, [[0, [], 2, 0, None]]])],
        [data(["", 5, [[0, [], 2, 0, ["fd", "name"]]]])],
        [data(["", 5, [[0, [], -1, 0, None]]])],
        [data(["", 5, [[0, [], 2, 0, True]]], b"a")],
        [data(["", 5, [[0, [], 2, 0, True]]], b"abc")],
        [data(["", 5, [[0, [], 2, 7, True]]], b"ab")],  # a ticket for what needs none
        [data(["", 5, [[0, [], -2, 0, True], [1, [], 2, 0, True]]])],
        [data(["", 5, [7]])],
        [data(["", -2, []])],
        [data([5, "", []])],
        [data(["", 5, []], version=VERSION + 1)],
        [data(["", 5, []], step=-2)],
        [data(["", 5, []], attempt=MAX_NUMBER + 1)],
        [data(["", 5, []])[:-1]],
        [data(["", 5, []])[:20]],
        [msgpack.packb(msgpack.ExtType(1, b"x"))],
        [b"\xdd\xff\xff\xff\xff"],  # an array of 4 billion
        [b"\x91" * 100_000],
        [b"x"] * 5000,
    ],
    ids=lambda f: repr(f)[:40],
)
def test_a_malformed_message_is_one_typed_error(frames: list[bytes]) -> None:
    with pytest.raises(TransportError, match="malformed"):
        read(frames)


def sent(x: np.ndarray[Any, Any], slot: str = "primary") -> Sent:
    encoded = encode([x])
    return Sent(1, 2, slot, 3, (Packed(6, encoded.specs, encoded.nbytes, 0, None, encoded.joined()),))


def values_of(message: Received) -> list[Any]:
    found = []
    if isinstance(message, Known):
        for part, values in zip(message.form.parts, message.contents, strict=True):
            body = values[0].base if values else None
            for a, b in zip(values, decode(part.specs, body), strict=True):
                assert_same(a, b)  # made without a look at the description
            found += values
    elif isinstance(message, Sent | Begin):
        for parcel in message.parcels:
            found += Incoming().open(0, 0, 1, parcel)
    return found


def seen(message: Received) -> Any:
    """What a receiver has of a message, but for the values."""
    if isinstance(message, Known):
        form = message.form
        return message.step, message.attempt, form.graph_slot, form.partition, form.numbers
    if isinstance(message, Sent):
        numbers = tuple(p.parcel for p in message.parcels)
        return message.step, message.attempt, message.graph_slot, message.partition, numbers
    return write(message, 0)


def test_what_is_described_as_before_is_read_as_what_it_is() -> None:
    forms: Forms = {}
    x, y = array_of(np.dtype(np.float32), (3, 5)), np.full((3, 5), 7, np.float32)
    first = sent(x)
    read(write(first, 5), forms)
    assert len(forms) == 1
    generation, got = read(write(Sent(8, 9, "primary", 3, sent(y).parcels), 6), forms)
    assert isinstance(got, Known)
    assert (generation, *seen(got)) == (6, 8, 9, "primary", 3, (6,))
    assert_same(values_of(got)[0], y)
    assert not values_of(got)[0].flags.writeable
    assert len(forms) == 1


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_what_was_checked_before_lets_nothing_else_in(seed: int) -> None:
    """With what it remembers a receiver reads, and refuses, what one without does."""
    rng = random.Random(seed)
    forms: Forms = {}
    (header,) = write(sent(array_of(np.dtype(np.float32), (2, 2))), 5)
    read([header], forms)
    damaged = bytearray(header)
    for _ in range(rng.randint(1, 3)):
        match rng.randrange(3):
            case 0:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            case 1:
                at = rng.randrange(len(damaged))
                del damaged[at : at + 4]
            case 2:
                damaged += rng.randbytes(rng.randint(1, 8))

    def outcome(known: Forms | None) -> Any:
        try:
            generation, message = read([bytes(damaged)], known)
            return generation, seen(message), [v.tobytes() for v in values_of(message)]
        except TransportError:
            return "refused"

    assert outcome(forms) == outcome(None)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_read_at_once_is_what_a_closer_look_reads(seed: int) -> None:
    """From the stream, damaged or not: the same message of this generation, or nothing."""
    rng = random.Random(seed)
    forms: Forms = {}
    several = [encode([array_of(np.dtype(np.float32), (k, 3))]) for k in range(1, rng.randint(2, 4))]
    parcels = [Packed(k, e.specs, e.nbytes, 0, None, e.joined()) for k, e in enumerate(several)]
    (header,) = write(Sent(1, 2, "primary", 3, tuple(parcels)), 5)
    read([header], forms)
    (piece,) = joined([header])
    stream = bytearray(piece)
    for _ in range(rng.randint(0, 2)):
        at = rng.randrange(len(stream))
        match rng.randrange(3):
            case 0:
                stream[at] = rng.randrange(256)
            case 1:
                del stream[at : at + 4]
            case 2:
                stream += rng.randbytes(rng.randint(1, 30))
    here, there = socket.socketpair()
    with here, there:
        there.sendall(stream)
        got, before = Reader().receive(here, forms, opening(5)), list(forms.values())
    framed = ONE.unpack_from(stream) == (1, len(stream) - ONE.size)
    try:
        generation, whole = read([bytes(stream[ONE.size :])], forms)
    except TransportError:
        assert got == len(stream)
        return
    if not isinstance(got, Known):
        assert got == len(stream)
        assert not framed or generation != 5 or not isinstance(whole, Known) or whole.form not in before
    else:
        assert framed
        assert generation == 5
        assert seen(got) == seen(whole)
        assert [v.tobytes() for v in values_of(got)] == [v.tobytes() for v in values_of(whole)]


def test_no_more_descriptions_are_remembered_than_there_is_room_for() -> None:
    forms: Forms = {}
    x = np.ones(2, np.float32)
    for k in range(3 * MAX_FORMS):
        read(write(sent(x, str(k)), 1), forms)
        assert len(forms) <= MAX_FORMS
    forms.clear()
    read(write(sent(x, "x" * MAX_FORM_BYTES), 1), forms)
    block = Packed(1, [[4, [2]]], 9, 3, Block(5, "hetero-x"))
    read(write(Sent(1, 2, "", 3, (block,)), 1), forms)  # its ticket is never the same again
    assert not forms


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_damaged_messages_are_refused_or_read_within_their_own_bytes(seed: int) -> None:
    rng = random.Random(seed)
    outgoing = Outgoing(Limits())
    packed = outgoing.pack(1, encode(a_bit_of_everything()[:-1]), 1, [1], [])[0]
    frames = [bytearray(f) for f in write(Sent(1, 1, "primary", 1, (packed,)), 1)]
    for _ in range(rng.randint(1, 4)):
        frame = rng.choice(frames)
        at = rng.randrange(len(frame))
        match rng.randrange(3):
            case 0:
                frame[at] = rng.randrange(256)
            case 1:
                del frame[at : at + rng.randint(1, 8)]
            case 2:
                frame[at:at] = rng.randbytes(rng.randint(1, 8))
        if not frame:
            frame.append(0)
    try:
        _, message = read([bytes(f) for f in frames])
        if not isinstance(message, Sent) or all(p.block is None for p in message.parcels):
            for value in values_of(message):
                if isinstance(value, np.ndarray):
                    value.copy()
    except TransportError:
        pass


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(TransportError):
        read([noise])
