"""Typed constants: arrays of every ONNX dtype to little-endian bytes and back, of exactly the right length."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.errors import ProgramError
from hetero.types import DataType, HostArray, numpy_dtype, onnx_dtype

_LENGTH = struct.Struct("<I")
_PACKED = {2: (4, 1), 4: (2, 1), 6: (4, 3)}
"""Bits of a narrow dtype -> (values, bytes) of one whole group; the first value sits in the lowest bits, as in
TensorProto.raw_data."""


def to_bytes(array: HostArray) -> bytes:
    """The elements in C order, little-endian; 2-, 4- and 6-bit dtypes packed as TensorProto.raw_data packs them.

    A string tensor becomes, per element, its UTF-8 length (uint32) and its UTF-8 bytes.

    Raises: ProgramError for dtypes ONNX has no name for, and for string elements that are not text.
    """
    try:
        dtype = onnx_dtype(array.dtype)
    except TypeError as e:
        raise ProgramError(f"a constant cannot be of dtype {array.dtype}") from e
    if dtype == DataType.STRING:
        return b"".join(_text_bytes(element) for element in array.ravel().tolist())
    native: HostArray = np.asarray(array, dtype=numpy_dtype(dtype), order="C")
    bits = dtype.bitwidth
    if bits in _PACKED:
        return _pack(native.reshape(-1).view(np.uint8), bits)
    return (native if sys.byteorder == "little" else native.byteswap()).tobytes()


def from_bytes(dtype: DataType, shape: Sequence[int], data: bytes) -> HostArray:
    """The read-only array that `to_bytes` wrote (strings as an object array of str).

    Where the layout allows, the array is a view of `data`; otherwise it owns its memory.

    Raises: ProgramError unless `data` holds exactly the elements of `shape`, or where no array of that dtype and
    shape can exist.
    """
    what = f"constant of {dtype.name.lower()}{list(shape)}"
    if dtype == DataType.UNDEFINED:
        raise ProgramError("a constant must have a dtype")
    if any(type(d) is not int or d < 0 for d in shape):
        raise ProgramError(f"{what}: every extent must be an integer of at least 0")
    if dtype == DataType.STRING:
        flat: HostArray = _texts(what, math.prod(shape), data)
    else:
        bits = dtype.bitwidth
        expected = (math.prod(shape) * bits + 7) // 8
        if len(data) != expected:
            raise ProgramError(f"{what} takes {expected} bytes, got {len(data)}")
        flat = _numbers(what, dtype, math.prod(shape), bytes(data))
    try:
        array = flat.reshape(tuple(shape))
    except ValueError as e:
        raise ProgramError(f"{what}: no array can have this shape") from e
    array.flags.writeable = False
    return array


def _numbers(what: str, dtype: DataType, size: int, data: bytes) -> HostArray:
    bits = dtype.bitwidth
    if bits in _PACKED:
        return _unpack(data, size, bits).view(numpy_dtype(dtype))
    if dtype == DataType.BOOL:
        raw = np.frombuffer(data, np.uint8)
        # NumPy trusts a bool's byte to be 0 or 1; another value makes comparisons and sums disagree.
        if raw.size and int(raw.max()) > 1:
            raise ProgramError(f"{what}: a bool's byte must be 0 or 1, got {int(raw.max())}")
        return raw.view(np.bool_)
    array: HostArray = np.frombuffer(data, numpy_dtype(dtype))
    return array if sys.byteorder == "little" else array.byteswap()


def _pack(values: npt.NDArray[np.uint8], bits: int) -> bytes:
    per_group, group_bytes = _PACKED[bits]
    groups = -(-values.size // per_group)
    word = _word(group_bytes)
    padded = np.zeros(groups * per_group, word)
    padded[: values.size] = values & ((1 << bits) - 1)
    columns = padded.reshape(groups, per_group)
    words = np.zeros(groups, word)
    for k in range(per_group):
        words |= columns[:, k] << (bits * k)
    out = np.empty((groups, group_bytes), np.uint8)
    for k in range(group_bytes):
        out[:, k] = (words >> (8 * k)) & 0xFF
    return out.tobytes()[: (values.size * bits + 7) // 8]


def _unpack(data: bytes, size: int, bits: int) -> npt.NDArray[np.uint8]:
    per_group, group_bytes = _PACKED[bits]
    groups = -(-size // per_group)
    word = _word(group_bytes)
    padded = np.zeros(groups * group_bytes, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    octets = padded.reshape(groups, group_bytes)
    words = np.zeros(groups, word)
    for k in range(group_bytes):
        words |= octets[:, k].astype(word) << (8 * k)
    out = np.empty((groups, per_group), np.uint8)
    for k in range(per_group):
        out[:, k] = (words >> (bits * k)) & ((1 << bits) - 1)
    return out.reshape(-1)[:size]


def _word(group_bytes: int) -> np.dtype[Any]:
    return np.dtype(np.uint8 if group_bytes == 1 else np.uint32)


def _text_bytes(element: Any) -> bytes:
    try:
        data = element.encode() if isinstance(element, str) else bytes(memoryview(element))
        data.decode()
    except (TypeError, ValueError) as e:
        raise ProgramError(f"an element of a string constant must be UTF-8 text, got {element!r:.60}") from e
    return _LENGTH.pack(len(data)) + data


def _texts(what: str, size: int, data: bytes) -> HostArray:
    if size * _LENGTH.size > len(data):
        raise ProgramError(f"{what} takes at least {size * _LENGTH.size} bytes, got {len(data)}")
    out = np.empty(size, object)
    at = 0
    for k in range(size):
        start = at + _LENGTH.size
        if start > len(data):
            raise ProgramError(f"{what}: the bytes end before element {k}")
        (length,) = _LENGTH.unpack_from(data, at)
        at = start + length
        if at > len(data):
            raise ProgramError(f"{what}: the bytes end inside element {k}")
        try:
            out[k] = str(data[start:at], "utf-8")
        except ValueError as e:
            raise ProgramError(f"{what}: element {k} is not UTF-8") from e
    if at != len(data):
        raise ProgramError(f"{what} takes {at} bytes, got {len(data)}")
    return out
