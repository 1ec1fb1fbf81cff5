"""What children and driver tell each other on channels: plain data, checked when it is read, never code."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgpack
import numpy as np

from actors.channels.wire import MAX_BYTES, MAX_ITEMS, Arrays, Bytes, Spec, arrays_in, arrays_of
from hetero.errors import TransportError
from hetero.planner.plan import CALLER

VERSION = 2
MAX_HEADER_BYTES = 64 << 20
MAX_FRAMES = 1 << 12
MAX_FRAME_BYTES = 4 << 30
MAX_NUMBER = 1 << 62
MAX_FORMS = 64
MAX_FORM_BYTES = 4 << 10
"""Descriptions that are kept, and the largest of them."""
_MAX_NAME = 255
DATA = 0xC1
"""Begins what carries parcels; msgpack never begins so."""
HEAD = "10sqqI"
"""What `opening` makes, step, attempt, bytes of the description."""
_HEAD = struct.Struct("<" + HEAD)
_OPENING = struct.Struct("<BBq")
NUMBERS = struct.Struct("<qq")
"""Step and attempt, which stand between `opening` and `described`."""
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Block:
    """Shared memory of the sender's process that a body lies in (`actors.channels.blocks`)."""

    descriptor: int
    name: str


@dataclass(slots=True, eq=False)
class Packed:
    """A parcel as it travels. `ticket`: what the receiver settles when it has let go of the body; 0: nothing.

    The body lies in `block`, or in `body`: bytes, which travel in the header, or an array, which is a frame of its own.
    """

    parcel: int
    specs: list[Spec]
    nbytes: int = 0
    ticket: int = 0
    block: Block | None = None
    body: Bytes | bytes | None = None


@dataclass(slots=True)
class Begin:
    """Driver to child: here begins an attempt at a step, with the parcels that the caller sends to this child."""

    step: int
    attempt: int
    graph_slot: str
    parcels: tuple[Packed, ...] = ()


@dataclass(slots=True)
class Sent:
    """Child to child or driver: what partition `partition` has made for you. It begins the attempt as well."""

    step: int
    attempt: int
    graph_slot: str
    partition: int
    parcels: tuple[Packed, ...] = ()


@dataclass(slots=True)
class Ended:
    """Child to driver: all of this child's partitions of the attempt have ended well."""

    step: int
    attempt: int


@dataclass(slots=True)
class Failed:
    """Child to driver: the attempt failed here. `error`: `actors.channels.faults`."""

    step: int
    attempt: int
    error: tuple[Any, ...]


@dataclass(slots=True)
class Abort:
    """Driver to child: forget this attempt."""

    step: int
    attempt: int


@dataclass(slots=True)
class Settled:
    """Receiver to sender: bodies that nobody reads any more, and bodies that somebody keeps beyond their step."""

    released: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


@dataclass(slots=True)
class Lost:
    """Child to driver: the connection to another child broke."""

    peer: int


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A parcel as it is described. `where` its body lies: True (after the description), the number of a frame, a
    block, or None (nowhere)."""

    parcel: int
    specs: list[Spec]
    nbytes: int
    ticket: int
    where: bool | int | Block | None


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A description that was checked. `inline_bytes`: of the bodies that follow it; `numbers`: of the parcels.

    `known`: whether all that it holds are small arrays that follow it; `arrays` is then what each parcel consists of,
    and where in all bodies together it begins.
    """

    graph_slot: str
    partition: int
    parts: tuple[Part, ...]
    inline_bytes: int
    numbers: tuple[int, ...]
    known: bool
    arrays: tuple[tuple[Arrays, int, int], ...]

    def contents(self, received: bytes | memoryview) -> list[list[Any]]:
        """By parcel the arrays in copies of these bodies, which nobody may write."""
        contents = []
        for arrays, start, stop in self.arrays:
            body = bytes(received[start:stop])  # of its own, so that its arrays are aligned
            contents.append(arrays_in(body, arrays))
        return contents


@dataclass(slots=True, eq=False)
class Known:
    """A Begin or Sent of nothing but small arrays, as it is read. `contents`: of each parcel, read-only."""

    step: int
    attempt: int
    form: Form
    contents: list[list[Any]]


Message = Begin | Sent | Ended | Failed | Abort | Settled | Lost
Received = Message | Known

_KINDS: dict[type, int] = {k: n for n, k in enumerate((Begin, Sent, Ended, Failed, Abort, Settled, Lost))}


Forms: TypeAlias = dict[bytes, Form]
"""Descriptions that were checked, by their bytes: what is equal to them need not be checked again. A receiver's own."""


def write(message: Message, generation: int) -> list[Any]:
    """The message as frames: a header, then the bodies that travel in frames of their own.

    Raises: TransportError for a header larger than a receiver accepts.
    """
    frames: list[Any] = [b""]
    match message:
        case Begin(step, attempt, graph_slot, parcels):
            description = describe(graph_slot, CALLER, parcels, frames)
            header = _data(generation, step, attempt, description, parcels)
        case Sent(step, attempt, graph_slot, partition, parcels):
            description = describe(graph_slot, partition, parcels, frames)
            header = _data(generation, step, attempt, description, parcels)
        case Ended(step, attempt) | Abort(step, attempt):
            header = _packed(message, generation, step, attempt)
        case Failed(step, attempt, error):
            header = _packed(message, generation, step, attempt, list(error))
        case Settled(released, kept):
            header = _packed(message, generation, list(released), list(kept))
        case Lost(peer):
            header = _packed(message, generation, peer)
    if len(header) > MAX_HEADER_BYTES or len(frames) > MAX_FRAMES:
        raise TransportError(
            f"a message with a header of {len(header)} bytes and {len(frames)} frames is too large for a channel"
        )
    frames[0] = header
    return frames


def opening(generation: int) -> bytes:
    """How all messages of a generation begin that carry parcels."""
    return _OPENING.pack(DATA, VERSION, generation)


def as_of(frame: bytes, generation: int) -> bytes:
    """A message that carries parcels, in one frame, as if it were of another generation."""
    return opening(generation) + frame[_OPENING.size :]


def describe(
    graph_slot: str, partition: int, parcels: Sequence[Packed], frames: list[Any] | None = None
) -> bytes:
    """All of a message but its numbers and its small bodies. Bodies that travel as frames are added to `frames`.

    `partition`: of a Begin, CALLER.
    """
    parts = [_write_parcel(p, [b""] if frames is None else frames) for p in parcels]
    described: bytes = msgpack.packb([graph_slot, partition, parts], unicode_errors="surrogatepass")
    return described


def described(description: bytes) -> bytes:
    """What stands between the numbers and the small bodies."""
    return _LENGTH.pack(len(description)) + description


def _data(generation: int, step: int, attempt: int, description: bytes, parcels: Sequence[Packed]) -> bytes:
    bodies = [p.body for p in parcels if p.block is None and isinstance(p.body, bytes)]
    return b"".join((opening(generation), NUMBERS.pack(step, attempt), described(description), *bodies))


def _packed(message: Message, generation: int, *fields: Any) -> bytes:
    header: bytes = msgpack.packb(
        [VERSION, generation, _KINDS[type(message)], *fields], unicode_errors="surrogatepass"
    )
    return header


def read(frames: Sequence[Any], forms: Forms | None = None) -> tuple[int, Received]:
    """The generation and the message in these frames (bytes-like). `forms`: what this receiver has checked before.

    Raises: TransportError for anything that `write` does not make.
    """
    if not 1 <= len(frames) <= MAX_FRAMES or len(frames[0]) > MAX_HEADER_BYTES:
        raise _malformed("too large, or empty")
    header = frames[0]
    if len(header) < _HEAD.size or header[0] != DATA:
        return _read_control(header)
    opened, step, attempt, length = _HEAD.unpack_from(header)
    _, version, generation = _OPENING.unpack(opened)
    at = _HEAD.size + length
    description = header[_HEAD.size : at]
    if type(description) is not bytes:
        description = bytes(description)
    form = None if forms is None else forms.get(description)
    if form is None:
        form = _form(description, len(header) - at, {} if forms is None else forms)
    if version != VERSION or len(header) != at + form.inline_bytes:
        raise _malformed("of another version, or with more or less than it says")
    if not (-1 <= step <= MAX_NUMBER and -1 <= attempt <= MAX_NUMBER):
        raise _malformed("with a number out of bounds")
    if form.known:
        return generation, Known(step, attempt, form, form.contents(header[at:]))
    parcels = []
    for part in form.parts:
        where, block = part.where, None
        body: Bytes | bytes | None = None
        if where is True:
            body = header[at : at + part.nbytes]
            at += part.nbytes
            if type(body) is not bytes:
                body = bytes(body)
        elif type(where) is int:
            body = _frame(frames, where, part.nbytes)
        elif type(where) is Block:
            block = where
        parcels.append(Packed(part.parcel, part.specs, part.nbytes, part.ticket, block, body))
    if form.partition == CALLER:
        return generation, Begin(step, attempt, form.graph_slot, tuple(parcels))
    return generation, Sent(step, attempt, form.graph_slot, form.partition, tuple(parcels))


def _read_control(header: Any) -> tuple[int, Message]:
    entries = _unpacked(header)
    if type(entries) is not list or len(entries) < 3 or entries[0] != VERSION:
        raise _malformed("of another version, or none")
    _, generation, kind, *fields = entries
    reader = _READERS.get(kind) if type(kind) is int else None
    if reader is None or type(generation) is not int:
        raise _malformed("of no known kind")
    types, make = reader
    if tuple(map(type, fields)) != types:
        raise _malformed("with other fields than its kind has")
    for field in fields:
        if type(field) is int and not -1 <= field <= MAX_NUMBER:
            raise _malformed(f"with the number {field}")
    return generation, make(fields)


def _unpacked(packed: Any) -> Any:
    try:
        return msgpack.unpackb(
            packed,
            unicode_errors="surrogatepass",
            max_array_len=MAX_ITEMS,
            max_map_len=0,
            max_ext_len=0,
        )
    except Exception as cause:  # msgpack raises some ten kinds
        raise TransportError(f"a malformed message: {cause}") from cause


def _frame(frames: Sequence[Any], index: int, nbytes: int) -> Bytes:
    if not 0 < index < len(frames) or len(frames[index]) != nbytes:
        raise _malformed("with a parcel in a frame that it has not")
    return np.frombuffer(frames[index], np.uint8)


def _form(description: bytes, inline_bytes: int, forms: Forms) -> Form:
    """Check a description, which so many bytes follow; keep it where it may come again: tickets are never the same."""
    entries = _unpacked(description)
    if type(entries) is not list or tuple(map(type, entries)) != (str, int, list):
        raise _malformed("without a description")
    graph_slot, partition, described = entries
    if not -1 <= partition <= MAX_NUMBER:
        raise _malformed(f"with the number {partition}")
    parts = tuple(map(_read_parcel, described))
    if sum(p.nbytes for p in parts if p.where is True) != inline_bytes:
        raise _malformed("with more or less than it says")
    arrays, at = [], 0
    for part in parts:
        known = arrays_of(part.specs, part.nbytes) if part.where is True else None
        if known is not None:
            arrays.append((known, at, at + part.nbytes))
            at += part.nbytes
    numbers = tuple(p.parcel for p in parts)
    form = Form(graph_slot, partition, parts, inline_bytes, numbers, len(arrays) == len(parts), tuple(arrays))
    if len(description) <= MAX_FORM_BYTES and not any(p.ticket for p in parts):
        if len(forms) >= MAX_FORMS:
            forms.clear()
        forms[description] = form
    return form


def _read_settled(fields: list[Any]) -> Message:
    released, kept = fields
    if not all(type(t) is int and 0 < t <= MAX_NUMBER for t in (*released, *kept)):
        raise _malformed("with a ticket that is none")
    return Settled(tuple(released), tuple(kept))


_READERS: dict[int, tuple[tuple[type, ...], Callable[[list[Any]], Message]]] = {
    _KINDS[Ended]: ((int, int), lambda fields: Ended(*fields)),
    _KINDS[Failed]: ((int, int, list), lambda fields: Failed(fields[0], fields[1], tuple(fields[2]))),
    _KINDS[Abort]: ((int, int), lambda fields: Abort(*fields)),
    _KINDS[Settled]: ((list, list), _read_settled),
    _KINDS[Lost]: ((int,), lambda fields: Lost(*fields)),
}


def _write_parcel(packed: Packed, frames: list[Any]) -> list[Any]:
    where: Any = packed.body
    if packed.block is not None:
        where = [packed.block.descriptor, packed.block.name]
    elif isinstance(where, bytes):
        where = True
    elif where is not None:
        if packed.nbytes > MAX_FRAME_BYTES:
            raise TransportError(
                f"a parcel of {packed.nbytes} bytes is too large for a message to another machine"
            )
        frames.append(where)
        where = len(frames) - 1
    return [packed.parcel, packed.specs, packed.nbytes, packed.ticket, where]


def _read_parcel(entry: Any) -> Part:
    if type(entry) is list and len(entry) == 5:
        parcel, specs, nbytes, ticket, where = entry
        if type(parcel) is type(nbytes) is type(ticket) is int and type(specs) is list:
            if not (0 <= parcel <= MAX_NUMBER and 0 <= nbytes <= MAX_BYTES and 0 <= ticket <= MAX_NUMBER):
                raise _malformed("with a number out of bounds")
            if type(where) is list and len(where) == 2:
                descriptor, name = where
                if type(descriptor) is int and type(name) is str and 0 <= descriptor <= MAX_NUMBER:
                    return Part(parcel, specs, nbytes, ticket, Block(descriptor, name[:_MAX_NAME]))
            elif where is True and not ticket and nbytes <= MAX_HEADER_BYTES:
                return Part(parcel, specs, nbytes, 0, True)
            elif type(where) is int or (where is None and nbytes == 0):
                return Part(parcel, specs, nbytes, ticket, where)
    raise _malformed("with a parcel that is none")


def _malformed(what: str) -> TransportError:
    return TransportError(f"a malformed message: {what}")
