"""Messages on a stream: whatever pieces it comes in, the same frames come out; what is no message is refused."""

from __future__ import annotations

import os
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.channels.framing import BUFFER_BYTES, Reader, joined
from actors.channels.messages import MAX_FRAME_BYTES, MAX_FRAMES, MAX_HEADER_BYTES
from actors.channels.wire import ALIGNMENT
from hetero.errors import TransportError

LENGTHS = st.sampled_from(
    [0, 1, 11, 1000, BUFFER_BYTES - 13, BUFFER_BYTES - 12, BUFFER_BYTES, 3 * BUFFER_BYTES]
)


def received(reader: Reader, stream: bytes, sizes: list[int]) -> list[list[bytes]]:
    """What comes of a stream that arrives in pieces of at most these sizes, in turn."""
    messages, at, turn = [], 0, 0
    while at < len(stream):
        room = reader.room()
        assert len(room) > 0
        n = min(len(room), sizes[turn % len(sizes)], len(stream) - at)
        room[:n] = stream[at : at + n]
        messages += [[bytes(f) for f in frames] for frames in reader.take(n)]
        at, turn = at + n, turn + 1
    return messages


@given(
    st.lists(st.lists(LENGTHS, min_size=1, max_size=4), max_size=5),
    st.lists(st.sampled_from([1, 3, 12, 4097, 1 << 20]), min_size=1, max_size=4),
)
def test_the_frames_are_the_same_whatever_pieces_they_come_in(
    lengths: list[list[int]], sizes: list[int]
) -> None:
    sent = [[os.urandom(n) for n in each] for each in lengths]
    stream = b"".join(bytes(piece) for frames in sent for piece in joined(frames))
    if min(sizes) < 12 and len(stream) > 50_000:
        sizes = [max(n, 997) for n in sizes]
    reader = Reader()
    assert received(reader, stream, sizes) == sent
    assert not reader.partial


def test_bodies_are_memory_of_their_own_and_aligned() -> None:
    reader, frames = Reader(), [b"header", b"x" * 1000, b"y" * 100_000]
    stream = b"".join(map(bytes, joined(frames)))
    kept = []
    for at in range(0, len(stream), 5000):
        piece = stream[at : at + 5000]
        while piece:
            room = reader.room()
            n = min(len(room), len(piece))
            room[:n], piece = piece[:n], piece[n:]
            kept += [frames[1:] for frames in reader.take(n)]
    (bodies,) = kept
    assert [bytes(b) for b in bodies] == frames[1:]
    received(reader, stream, [len(stream)])  # the next message overwrites the buffer
    assert [bytes(b) for b in bodies] == frames[1:]
    assert all(np.frombuffer(b, np.uint8).ctypes.data % ALIGNMENT == 0 for b in bodies)


@pytest.mark.parametrize(
    "start",
    [
        struct.pack("<IQ", 0, 0),
        struct.pack("<IQ", MAX_FRAMES + 1, 0),
        struct.pack("<IQ", 1, MAX_HEADER_BYTES + 1),
        struct.pack("<IQQ", 2, 1, MAX_FRAME_BYTES + 1),
        b"\xff" * 64,
    ],
    ids=["no frames", "too many", "large header", "large frame", "noise"],
)
def test_what_is_no_message_is_refused_before_room_is_made(start: bytes) -> None:
    with pytest.raises(TransportError, match="malformed"):
        received(Reader(), start, [len(start)])


@given(st.binary(max_size=200), st.sampled_from([1, 7, 200]))
def test_noise_is_refused_or_waited_out_and_nothing_else(noise: bytes, size: int) -> None:
    reader = Reader()
    with suppress(TransportError):
        for frames in received(reader, noise, [size]):
            assert sum(map(len, frames)) <= len(noise)
