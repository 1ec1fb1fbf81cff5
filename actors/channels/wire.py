"""Parcels on a channel: a checked, bounded description of values, and one body that holds the bytes of their arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hetero.errors import TransportError
from hetero.runtime.state import Resident
from hetero.types import STRING, DataType, MapValue, SequenceValue, numpy_dtype

Bytes = npt.NDArray[np.uint8]
Spec = Any
"""What msgpack carries for one value: None, or a list whose first entry is one of the tags below."""
Arrays = tuple[tuple[tuple[int, ...], np.dtype[Any], int, Literal["C", "F"]], ...]
"""Of a parcel of nothing but arrays, checked: each one's shape, dtype, place in the body and order."""

ALIGNMENT = 64
MAX_AXES = 32
MAX_DEPTH = 8
"""Sequences in sequences."""
MAX_ITEMS = 1 << 20
"""Values of one parcel, elements of its sequences, maps and texts included."""
MAX_BYTES = 1 << 40
_KNOWN_BYTES = 1 << 16
"""The largest body whose description is worth to be remembered."""

_ARRAY, _TEXTS, _SEQUENCE, _MAP, _RESIDENT = range(5)
_DTYPES = {d.name: d for d in (numpy_dtype(t) for t in DataType if t != DataType.UNDEFINED) if d != STRING}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_DTYPE_NAMES = frozenset((*_DTYPES, STRING.name))


@dataclass(slots=True, eq=False)
class Encoded:
    """A parcel as it travels: `specs`, one per value, and `nbytes` of body, yet to be written by `fill`."""

    specs: list[Spec] = field(default_factory=list)
    nbytes: int = 0
    _arrays: list[tuple[int, np.ndarray[Any, Any]]] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)
    _items: int = 0

    def joined(self) -> bytes:
        """The body, as small ones travel; once, instead of `fill`."""
        if len(self._arrays) == 1:
            body = _row_bytes(self._arrays[0][1])
        else:
            padded = bytearray(self.nbytes)
            for offset, array in self._arrays:
                padded[offset : offset + array.nbytes] = _row_bytes(array)
            body = bytes(padded)
        self._arrays.clear()
        self._known.clear()
        return body

    def fill(self, body: Bytes) -> None:
        """Write every array into `body`, of at least `nbytes`; once."""
        for offset, array in self._arrays:
            flat = array.T if _by_columns(array) else array
            place = body[offset : offset + array.nbytes].view(array.dtype).reshape(flat.shape)
            np.copyto(place, flat)
        self._arrays.clear()
        self._known.clear()

    def place(self, array: np.ndarray[Any, Any]) -> int:
        """Room for `array` in the body; the same for an array that is in this parcel already."""
        offset = self._known.get(id(array))
        if offset is None:
            offset = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
            self._known[id(array)] = offset
            self._arrays.append((offset, array))
            self.nbytes = offset + array.nbytes
        return offset

    def count(self, items: int) -> None:
        """Raises: TransportError where the parcel would hold more items than a receiver accepts."""
        self._items += items
        if self._items > MAX_ITEMS:
            raise TransportError(f"a parcel of more than {MAX_ITEMS} items cannot cross between children")


def encode(values: Sequence[Any]) -> Encoded:
    """Describe a parcel; its arrays are kept, not copied, until `fill`.

    Raises: TransportError for what is no value (array, SequenceValue, MapValue, Resident, None).
    """
    encoded = Encoded()
    encoded.count(len(values))
    for value in values:
        encoded.specs.append(_encode(value, encoded, 0))
    return encoded


def decode(specs: Any, body: Bytes | bytes | None) -> list[Any]:
    """The values of a parcel; arrays are read-only views of `body`.

    Raises: TransportError for a description that `encode` does not make for a body of this size.
    """
    if not isinstance(specs, list):
        raise _malformed("no list of values")
    try:
        return _Decoder(body).values(specs, 0)
    except TransportError:
        raise
    except (TypeError, ValueError, OverflowError, KeyError) as cause:
        raise _malformed(str(cause)) from cause


def arrays_of(specs: Any, nbytes: int) -> Arrays | None:
    """What `decode` makes of this description and any body of so many bytes; None where it holds other things than
    arrays, is large, or malformed: `decode` looks at it then."""
    if nbytes > _KNOWN_BYTES:
        return None
    try:
        found = decode(specs, bytes(nbytes))
    except TransportError:
        return None
    if not all(type(spec) is list and spec[0] == _ARRAY for spec in specs):
        return None
    return tuple(
        (array.shape, array.dtype, spec[3], "F" if spec[4] else "C")
        for array, spec in zip(found, specs, strict=True)
    )


def arrays_in(body: Any, arrays: Arrays) -> list[Any]:
    """What `decode` makes of a body whose description is known."""
    if len(arrays) == 1:
        shape, dtype, at, order = arrays[0]
        return [np.ndarray(shape, dtype, body, at, None, order)]
    return [np.ndarray(shape, dtype, body, at, None, order) for shape, dtype, at, order in arrays]


# -- there ---------------------------------------------------------------------------------------------------------
def _encode(value: Any, encoded: Encoded, depth: int) -> Spec:
    if value is None:
        return None
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        return _encode_texts(value, encoded) if value.dtype.kind == "O" else _encode_array(value, encoded)
    if isinstance(value, Resident):
        return [_RESIDENT, list(value.shape)]
    if isinstance(value, SequenceValue):
        if depth >= MAX_DEPTH:
            raise TransportError(f"sequences nested deeper than {MAX_DEPTH} cannot cross between children")
        encoded.count(len(value))
        name = None if value.dtype is None else _name(value.dtype)
        return [_SEQUENCE, name, [_encode(v, encoded, depth + 1) for v in value]]
    if isinstance(value, MapValue):
        encoded.count(2 * len(value))
        return [_MAP, _name(value.value_dtype), _scalars(value), _scalars(value.values())]
    raise TransportError(f"a {type(value).__name__} cannot cross between children")


def _encode_array(array: np.ndarray[Any, Any], encoded: Encoded) -> Spec:
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    name = _NAMES.get(array.dtype) or _name(array.dtype)
    return [_ARRAY, name, list(array.shape), encoded.place(array), int(_by_columns(array))]


def _encode_texts(array: np.ndarray[Any, Any], encoded: Encoded) -> Spec:
    encoded.count(array.size)
    return [_TEXTS, list(array.shape), _scalars(array.ravel().tolist())]


def _by_columns(array: np.ndarray[Any, Any]) -> bool:
    """Whether it lies in Fortran's order only; what lies in neither arrives in C's."""
    flags = array.flags
    return not flags.c_contiguous and flags.f_contiguous


def _row_bytes(array: np.ndarray[Any, Any]) -> bytes:
    return array.T.tobytes() if _by_columns(array) else array.tobytes()


def _name(dtype: np.dtype[Any]) -> str:
    if dtype.name not in _DTYPE_NAMES:
        raise TransportError(f"values of dtype {dtype} cannot cross between children")
    return dtype.name


def _scalars(items: Any) -> list[Any]:
    out = []
    for item in items:
        if isinstance(item, np.generic):
            item = item.item()
        if not isinstance(item, str | bytes | float | int):
            raise TransportError(f"a {type(item).__name__} in a map or text cannot cross between children")
        if isinstance(item, int) and not -(1 << 63) <= item < 1 << 64:
            raise TransportError(f"the integer {item} has more than 64 bits")
        out.append(item)
    return out


# -- and back ------------------------------------------------------------------------------------------------------
class _Decoder:
    """Checks a description against its body while it makes the values."""

    def __init__(self, body: Bytes | bytes | None) -> None:
        self._body = body
        self._nbytes = 0 if body is None else len(body)
        self._items = 0

    def values(self, specs: list[Spec], depth: int) -> list[Any]:
        self._count(len(specs))
        return [None if spec is None else self._value(spec, depth) for spec in specs]

    def _value(self, spec: Spec, depth: int) -> Any:
        if type(spec) is list and len(spec) == 5 and spec[0] == _ARRAY:
            return self._array(*spec[1:])
        match spec:
            case [int(tag), list(shape), list(items)] if tag == _TEXTS:
                return self._texts(shape, items)
            case [int(tag), (None | str()) as name, list(specs)] if tag == _SEQUENCE and depth < MAX_DEPTH:
                return SequenceValue(self.values(specs, depth + 1), None if name is None else _dtype(name))
            case [int(tag), str(name), list(keys), list(items)] if tag == _MAP and len(keys) == len(items):
                return self._map(name, keys, items)
            case [int(tag), list(shape)] if tag == _RESIDENT:
                return Resident(_shape(shape))
        raise _malformed("no value's description")

    def _array(self, name: Any, extents: Any, offset: Any, by_columns: Any) -> np.ndarray[Any, Any]:
        if type(offset) is not int or type(extents) is not list:
            raise _malformed("no array's description")
        dtype, shape = _DTYPES[name], _shape(extents)
        nbytes = math.prod(shape) * dtype.itemsize
        if offset < 0 or offset % ALIGNMENT or offset + nbytes > self._nbytes:
            raise _malformed(f"{nbytes} bytes at {offset} of {self._nbytes}")
        if self._body is None:
            return np.empty(shape, dtype)  # nothing in it
        if by_columns:
            return np.ndarray(shape, dtype, self._body, offset, order="F")
        return np.ndarray(shape, dtype, self._body, offset)

    def _texts(self, extents: list[Any], items: list[Any]) -> np.ndarray[Any, Any]:
        self._count(len(items))
        shape = _shape(extents)
        if math.prod(shape) != len(items) or not all(isinstance(i, str | bytes | float | int) for i in items):
            raise _malformed("texts that do not fill their shape")
        flat = np.empty(len(items), object)
        flat[:] = items
        return flat.reshape(shape)

    def _map(self, name: str, keys: list[Any], items: list[Any]) -> MapValue:
        self._count(2 * len(keys))
        if not all(isinstance(key, int | str) for key in keys):
            raise _malformed("a map's key that is neither a number nor a text")
        if not all(isinstance(item, str | bytes | float | int) for item in items):
            raise _malformed("a map's value that is neither a number nor a text")
        return MapValue(zip(keys, items, strict=True), _dtype(name))

    def _count(self, items: int) -> None:
        self._items += items
        if self._items > MAX_ITEMS:
            raise _malformed(f"more than {MAX_ITEMS} items")


def _shape(extents: list[Any]) -> tuple[int, ...]:
    size = 1
    for n in extents:
        if type(n) is not int or n < 0:
            raise _malformed(f"shape {extents[:MAX_AXES]}")
        size *= n or 1  # NumPy refuses too large an array even where another extent is 0
    if len(extents) > MAX_AXES or size > MAX_BYTES:
        raise _malformed(f"shape {extents[:MAX_AXES]}")
    return tuple(extents)


def _dtype(name: str) -> np.dtype[Any]:
    return STRING if name == STRING.name else _DTYPES[name]


def _malformed(what: str) -> TransportError:
    return TransportError(f"a malformed parcel: {what}")
