"""Messages on a stream of bytes: how many frames, how long each is, then the frames; checked before room is made."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from actors.channels.messages import (
    HEAD,
    MAX_FRAME_BYTES,
    MAX_FRAMES,
    MAX_HEADER_BYTES,
    MAX_NUMBER,
    Forms,
    Known,
)
from actors.channels.wire import ALIGNMENT
from hetero.errors import TransportError

BUFFER_BYTES = 1 << 16
"""Larger than what comes before any message's frames."""
ONE = struct.Struct("<IQ")
"""What comes before the one frame that most messages are."""
_COUNT = struct.Struct("<I")
_USUAL = struct.Struct("<IQ" + HEAD)
"""`ONE` and the head of a message of parcels."""


def joined(frames: Sequence[Any]) -> list[Any]:
    """The pieces that the message is on the stream; the usual one, of one frame, is one piece."""
    if len(frames) == 1:
        return [ONE.pack(1, len(frames[0])) + frames[0]]
    lengths = [len(f) for f in frames]
    return [struct.pack(f"<I{len(frames)}Q", len(frames), *lengths) + frames[0], *frames[1:]]


class Reader:
    """Takes the stream apart: `receive` what is there, or into `room`; then ask for the messages that are there now."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0
        self._frames: list[memoryview] | None = None
        """Of a message that does not fit the buffer: memory of its own, being filled."""
        self._at = (0, 0)
        """The frame, and the place in it, where its next byte goes."""

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._frames is not None:
            frame, offset = self._at
            return self._frames[frame][offset:]
        return self._buffer[self._filled :]

    def receive(self, receiver: socket.socket, forms: Forms, opening: bytes) -> Known | int:
        """Receive what is there. If that is one whole message, like one before and with this opening, it is returned;
        else how many bytes came, for `take`. Raises: OSError."""
        if self._filled or self._frames is not None:
            return receiver.recv_into(self.room())
        buffer = self._buffer
        received = receiver.recv_into(buffer)
        if received < _USUAL.size:
            return received
        count, nbytes, opened, step, attempt, length = _USUAL.unpack_from(buffer)
        if count != 1 or nbytes != received - ONE.size or opened != opening:
            return received
        at = _USUAL.size + length
        form = forms.get(bytes(buffer[_USUAL.size : at]))
        if form is None or not form.known or received != at + form.inline_bytes:
            return received
        if not (-1 <= step <= MAX_NUMBER and -1 <= attempt <= MAX_NUMBER):
            return received
        return Known(step, attempt, form, form.contents(buffer[at:]))

    @property
    def partial(self) -> bool:
        """Whether a message has begun and is not whole."""
        return self._frames is not None or self._filled > 0

    def take(self, received: int) -> Iterator[list[Any]]:
        """So many bytes were received: the messages that are whole now, as frames. A message's first frame holds until
        the next is asked for, the others are memory of their own, aligned as bodies are.

        Raises: TransportError for what is no message; the stream is of no use then.
        """
        if self._frames is not None:
            yield from self._filled_up(received)
            return
        buffer, start, end = self._buffer, 0, self._filled + received
        while end - start >= ONE.size:
            count, first = ONE.unpack_from(buffer, start)
            if not (1 <= count <= MAX_FRAMES and first <= MAX_HEADER_BYTES):
                raise TransportError("a malformed message: too large, or empty")
            begin = start + _COUNT.size + 8 * count
            if begin > end:
                break
            if count == 1:
                stop = begin + first
                if stop <= end:
                    yield [buffer[begin:stop]]
                    start = stop
                    continue
                lengths: tuple[int, ...] = (first,)
            else:
                lengths = struct.unpack_from(f"<{count}Q", buffer, start + _COUNT.size)
                if max(lengths) > MAX_FRAME_BYTES:
                    raise TransportError("a malformed message: a frame that is too large")
            if count == 1 and stop - start <= len(buffer):
                break  # it will fit
            there = buffer[begin:end]
            frames = [_aligned(n) for n in lengths]
            used = self._begin(frames, there)
            start = begin + used
            if self._frames is not None:
                start = end
                break
            yield list(frames)
        self._filled = end - start
        if start and self._filled:
            buffer[: self._filled] = bytes(buffer[start:end])

    def _begin(self, frames: list[memoryview], there: memoryview) -> int:
        """Fill these frames with what is there; returns how much that was. Where it is not enough, they are next."""
        used = 0
        for k, frame in enumerate(frames):
            n = min(len(frame), len(there) - used)
            frame[:n] = there[used : used + n]
            used += n
            if n < len(frame):
                self._frames, self._at = frames, (k, n)
                break
        return used

    def _filled_up(self, received: int) -> Iterator[list[Any]]:
        frames = self._frames
        assert frames is not None, "only while a large message comes in"
        k, offset = self._at
        offset += received
        while offset == len(frames[k]):
            k, offset = k + 1, 0
            if k == len(frames):
                self._frames = None
                yield list(frames)
                return
        self._at = (k, offset)


def _aligned(nbytes: int) -> memoryview:
    base = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -base.ctypes.data % ALIGNMENT
    return base[start : start + nbytes].data
