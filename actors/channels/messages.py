"""What children and driver tell each other on channels: plain data, checked when it is read, never code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from actors.channels.wire import MAX_BYTES, MAX_ITEMS, Bytes, Spec
from hetero.errors import TransportError

VERSION = 1
MAX_HEADER_BYTES = 64 << 20
MAX_FRAMES = 1 << 12
MAX_FRAME_BYTES = 4 << 30
MAX_NUMBER = 1 << 62
_MAX_NAME = 255


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


Message = Begin | Sent | Ended | Failed | Abort | Settled | Lost

_KINDS: dict[type, int] = {k: n for n, k in enumerate((Begin, Sent, Ended, Failed, Abort, Settled, Lost))}


def write(message: Message, generation: int) -> list[Any]:
    """The message as frames: a msgpack header, then the bodies that travel in frames of their own.

    Raises: TransportError for a header larger than a receiver accepts.
    """
    frames: list[Any] = [b""]
    kind = _KINDS[type(message)]
    match message:
        case Begin(step, attempt, graph_slot, parcels):
            fields: list[Any] = [step, attempt, graph_slot, [_write_parcel(p, frames) for p in parcels]]
        case Sent(step, attempt, graph_slot, partition, parcels):
            fields = [step, attempt, graph_slot, partition, [_write_parcel(p, frames) for p in parcels]]
        case Ended(step, attempt) | Abort(step, attempt):
            fields = [step, attempt]
        case Failed(step, attempt, error):
            fields = [step, attempt, list(error)]
        case Settled(released, kept):
            fields = [list(released), list(kept)]
        case Lost(peer):
            fields = [peer]
    header: bytes = msgpack.packb([VERSION, generation, kind, *fields], unicode_errors="surrogatepass")
    if len(header) > MAX_HEADER_BYTES or len(frames) > MAX_FRAMES:
        raise TransportError(
            f"a message with a header of {len(header)} bytes and {len(frames)} frames is too large for a channel"
        )
    frames[0] = header
    return frames


def read(frames: Sequence[Any]) -> tuple[int, Message]:
    """The generation and the message in these frames (bytes-like).

    Raises: TransportError for anything that `write` does not make.
    """
    if not 1 <= len(frames) <= MAX_FRAMES or len(frames[0]) > MAX_HEADER_BYTES:
        raise _malformed("too large, or empty")
    try:
        entries = msgpack.unpackb(
            frames[0],
            unicode_errors="surrogatepass",
            max_array_len=MAX_ITEMS,
            max_map_len=0,
            max_ext_len=0,
        )
    except Exception as cause:  # msgpack raises some ten kinds
        raise TransportError(f"a malformed message: {cause}") from cause
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
    return generation, make(fields, frames)


def _read_begin(fields: list[Any], frames: Sequence[Any]) -> Message:
    step, attempt, graph_slot, parcels = fields
    return Begin(step, attempt, graph_slot, tuple([_read_parcel(p, frames) for p in parcels]))


def _read_sent(fields: list[Any], frames: Sequence[Any]) -> Message:
    step, attempt, graph_slot, partition, parcels = fields
    return Sent(step, attempt, graph_slot, partition, tuple([_read_parcel(p, frames) for p in parcels]))


def _read_settled(fields: list[Any], _: Sequence[Any]) -> Message:
    released, kept = fields
    if not all(type(t) is int and 0 < t <= MAX_NUMBER for t in (*released, *kept)):
        raise _malformed("with a ticket that is none")
    return Settled(tuple(released), tuple(kept))


_READERS: dict[int, tuple[tuple[type, ...], Callable[[list[Any], Sequence[Any]], Message]]] = {
    _KINDS[Begin]: ((int, int, str, list), _read_begin),
    _KINDS[Sent]: ((int, int, str, int, list), _read_sent),
    _KINDS[Ended]: ((int, int), lambda fields, _: Ended(*fields)),
    _KINDS[Failed]: ((int, int, list), lambda fields, _: Failed(fields[0], fields[1], tuple(fields[2]))),
    _KINDS[Abort]: ((int, int), lambda fields, _: Abort(*fields)),
    _KINDS[Settled]: ((list, list), _read_settled),
    _KINDS[Lost]: ((int,), lambda fields, _: Lost(*fields)),
}


def _write_parcel(packed: Packed, frames: list[Any]) -> list[Any]:
    where: Any = packed.body
    if packed.block is not None:
        where = [packed.block.descriptor, packed.block.name]
    elif where is not None and not isinstance(where, bytes):
        if packed.nbytes > MAX_FRAME_BYTES:
            raise TransportError(
                f"a parcel of {packed.nbytes} bytes is too large for a message to another machine"
            )
        frames.append(where)
        where = len(frames) - 1
    return [packed.parcel, packed.specs, packed.nbytes, packed.ticket, where]


def _read_parcel(entry: Any, frames: Sequence[Any]) -> Packed:
    """Where a body lies: bytes, the number of a frame, [descriptor, name] of a block, or nowhere."""
    if type(entry) is list and len(entry) == 5:
        parcel, specs, nbytes, ticket, where = entry
        if type(parcel) is type(nbytes) is type(ticket) is int and type(specs) is list:
            kind = type(where)
            if not (0 <= parcel <= MAX_NUMBER and 0 <= nbytes <= MAX_BYTES and 0 <= ticket <= MAX_NUMBER):
                raise _malformed("with a number out of bounds")
            if where is None and nbytes == 0:
                return Packed(parcel, specs, 0, ticket)
            if kind is bytes and len(where) == nbytes:
                return Packed(parcel, specs, nbytes, ticket, None, where)
            if kind is int and 0 < where < len(frames) and len(frames[where]) == nbytes:
                return Packed(parcel, specs, nbytes, ticket, None, np.frombuffer(frames[where], np.uint8))
            if kind is list and len(where) == 2:
                descriptor, name = where
                if type(descriptor) is int and type(name) is str and 0 <= descriptor <= MAX_NUMBER:
                    return Packed(parcel, specs, nbytes, ticket, Block(descriptor, name[:_MAX_NAME]))
    raise _malformed("with a parcel that is none")


def _malformed(what: str) -> TransportError:
    return TransportError(f"a malformed message: {what}")
