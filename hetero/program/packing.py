"""Bounded msgpack: plain nested lists to bytes and back, where the bytes may come from anyone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

from hetero.errors import HeteroError, ProgramError

MAX_NESTING = 224
"""Arrays within arrays: six for each level of bodies, and some above. msgpack itself stops at 511 when packing, and
reading takes two Python frames for each."""
_WIDTHS = (1, 2, 4, 8)


def dumps(plain: object, *, error: type[HeteroError] = ProgramError) -> bytes:
    """msgpack bytes of None, ints, floats, str, bytes and nested lists of them; the same bytes on every machine.

    Raises: `error` for anything msgpack cannot hold (integers beyond 64 bits, text that is not UTF-8…).
    """
    try:
        packed: bytes = msgpack.packb(plain, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as e:
        raise error(f"cannot be written: {e}") from e
    return packed


def loads(data: bytes, *, error: type[HeteroError] = ProgramError) -> Any:
    """What `dumps` wrote, lists as lists. Memory stays within a constant factor of len(data).

    msgpack allocates an array when it reads the array's header, so nested headers that promise more than they hold
    could ask for (bytes)² of memory. Here headers are read one at a time and held against the bytes that remain.

    Raises: `error` for bytes that are truncated, oversized, too deeply nested, or hold maps or extension types.
    """
    unpacker = msgpack.Unpacker(
        raw=False,
        max_buffer_size=max(len(data), 1),
        max_array_len=0,
        max_map_len=0,
        max_ext_len=0,
        max_str_len=len(data),
        max_bin_len=len(data),
    )
    try:
        unpacker.feed(data)
        plain = _next(unpacker, data, MAX_NESTING, error)
    except (ValueError, msgpack.UnpackException, msgpack.exceptions.BufferFull) as e:
        raise error(f"damaged bytes: {e or type(e).__name__}") from e
    if unpacker.tell() != len(data):
        raise error(f"{len(data) - unpacker.tell()} bytes after the end")
    return plain


def _next(unpacker: Any, data: bytes, depth: int, error: type[HeteroError]) -> Any:
    at = unpacker.tell()
    if at >= len(data):
        raise error("damaged bytes: they end early")
    head = data[at]
    if not (0x90 <= head <= 0x9F or head in (0xDC, 0xDD)):
        return unpacker.unpack()
    if depth == 0:
        raise error(f"damaged bytes: nested deeper than {MAX_NESTING}")
    size = unpacker.read_array_header()
    if size > len(data) - at:
        raise error(f"damaged bytes: an array of {size} items where {len(data) - at} bytes remain")
    return [_next(unpacker, data, depth - 1, error) for _ in range(size)]


def pack_ints(values: Sequence[int]) -> bytes:
    """A column of integers: their width in bytes, then each little-endian, signed, at the least width that fits.

    Raises: ProgramError beyond 64 bits.
    """
    if not values:
        return b""
    try:
        column = np.array(values, np.int64)
    except (OverflowError, TypeError, ValueError) as e:
        raise ProgramError(f"cannot be written: {e}") from e
    low, high = int(column.min()), int(column.max())
    for width in _WIDTHS:
        half = 1 << (8 * width - 1)
        if -half <= low and high < half:
            break
    return bytes([width]) + column.astype(f"<i{width}").tobytes()


def unpack_ints(data: Any, what: str) -> list[int]:
    """What `pack_ints` wrote. Raises: ProgramError."""
    if type(data) is not bytes:
        raise ProgramError(f"{what}: expected bytes, got {type(data).__name__}")
    if not data:
        return []
    width = data[0]
    if width not in _WIDTHS or (len(data) - 1) % width:
        raise ProgramError(f"{what}: {len(data) - 1} bytes do not hold integers of {width} bytes")
    column: list[int] = np.frombuffer(data, f"<i{width}", offset=1).tolist()
    return column
