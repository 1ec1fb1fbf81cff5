"""Values on the wire: a parcel packed so that array bytes travel out of band and arrive as views, not as copies. The
elements of large sequences lie in an object of their own, and travel as references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from actors.refs import ObjectElement, bank_of
from hetero.errors import TransportError
from hetero.runtime.device_buffers import BufferRef
from hetero.runtime.state import Resident
from hetero.types import LazySequence, MapValue, RemoteElement, SequenceValue

Wire = list[Any]
"""One entry per value: an array or None as it is; a tuple (tag, …) for what pickle would copy or could not carry."""

_NARROW, _OBJECTS, _SEQUENCE, _ELEMENT, _MAP, _RESIDENT, _BUFFER = (
    "narrow", "objects", "sequence", "element", "map", "resident", "buffer"
)  # fmt: skip
INLINE_BYTES = 64 << 10
"""A parcel of the caller's up to this size travels inside the call; an object of its own would cost 1 ms more."""
SEQUENCE_BYTES = 64 << 10
"""Of a sequence's elements: so many travel with it, since a reference costs more."""
_USER_DEFINED = 2  # of dtype.isbuiltin: bfloat16 and its like


class NewBank:
    """The elements that a parcel's sequences put into an object of their own, each once."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray[Any, Any]] = []
        self._places: dict[int, int] = {}
        self._kept: list[Any] = []

    def add(self, array: np.ndarray[Any, Any]) -> int:
        """Where the element is."""
        place = self._places.get(id(array))
        if place is None:
            place = self._places[id(array)] = len(self.arrays)
            packed = _pack_array(array)
            self.arrays.append(packed[2] if isinstance(packed, tuple) else packed)
            self._kept.append(array)  # so that no other gets its id
        return place


def pack(values: Sequence[Any], bank: NewBank | None = None) -> Wire:
    """A parcel's wire form. Shares memory with `values`, except for strided arrays: those are copied here, once.

    With a `bank`, elements of large sequences are put there, and whoever unpacks the parcel needs a reference to it.
    Raises: TransportError for what is no value (array, SequenceValue, MapValue, Resident, BufferRef, None).
    """
    return [_pack(value, bank) for value in values]


def unpack(wire: Wire, *, own: bool = False, bank: Any = None) -> list[Any]:
    """The values of a parcel. Arrays share memory with the wire form (and are read-only where that is) unless `own`;
    elements of large sequences come when they are read. `bank`: the reference to those that the parcel put aside.

    Raises: TransportError for a wire form that `pack` does not make.
    """
    return [_unpack(entry, own, bank) for entry in wire]


def copied(wire: Wire) -> Wire:
    """The wire form in memory of its own; what it refers to stays where it is."""
    return [_copied(entry) for entry in wire]


def _copied(entry: Any) -> Any:
    if isinstance(entry, np.ndarray):
        return entry.copy(order="K")
    if isinstance(entry, tuple | list):
        return type(entry)(map(_copied, entry))
    return entry


def _pack(value: Any, bank: NewBank | None = None) -> Any:
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        return _pack_array(value)
    if isinstance(value, SequenceValue):
        return _SEQUENCE, _dtype_name(value.dtype), _pack_elements(value, bank)
    if isinstance(value, MapValue):
        return _MAP, _dtype_name(value.value_dtype), list(value), list(value.values())
    if isinstance(value, Resident):
        return _RESIDENT, value.shape
    if isinstance(value, BufferRef):
        return _BUFFER, value.id, value.shape
    if isinstance(value, np.generic):
        return _pack_array(np.asarray(value))
    raise TransportError(f"a {type(value).__name__} cannot cross between children")


def _pack_elements(sequence: SequenceValue, bank: NewBank | None) -> list[Any]:
    elements = sequence.elements
    here = {id(e): e.nbytes for e in elements if isinstance(e, np.ndarray) and e.dtype.kind != "O"}
    aside = bank if sum(here.values()) > SEQUENCE_BYTES else None
    packed = []
    for element in elements:
        if isinstance(element, ObjectElement) and element.bank is not None:
            place: Any = element.bank.ref, element.index
        elif aside is not None and id(element) in here:
            place = None, aside.add(element)
        else:
            packed.append(_pack(element.fetch() if isinstance(element, RemoteElement) else element))
            continue
        packed.append((_ELEMENT, *place, _dtype_name(element.dtype), element.shape))
    return packed


def _pack_array(array: np.ndarray[Any, Any]) -> Any:
    dtype = array.dtype
    if dtype.kind == "O":
        return _OBJECTS, array.shape, array.ravel().tolist()
    if type(array) is not np.ndarray:
        array = np.asarray(array)  # a memory-mapped file, for one, would be pickled by value
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = array.copy(order="C")  # else pickle copies it into its own stream, and once more from there
    if dtype.isbuiltin == _USER_DEFINED:
        return _NARROW, dtype.name, array.view(f"u{dtype.itemsize}")
    return array


def _unpack(entry: Any, own: bool, bank: Any = None) -> Any:
    if entry is None:
        return None
    if isinstance(entry, np.ndarray):
        return entry.copy(order="K") if own else entry
    match entry:
        case (str(tag), str(name), np.ndarray() as bits) if tag == _NARROW:
            return (bits.copy(order="K") if own else bits).view(_dtype(name))
        case (str(tag), tuple(shape), list(items)) if tag == _OBJECTS:
            flat = np.empty(len(items), object)
            flat[:] = items
            return flat.reshape(shape)
        case (str(tag), tuple(shape)) if tag == _RESIDENT:
            return Resident(shape)
        case (str(tag), int(id_), tuple(shape)) if tag == _BUFFER:
            return BufferRef(id_, shape)
        case (str(tag), name, list(items)) if tag == _SEQUENCE:
            elements = [_unpack(item, own, bank) for item in items]
            lazy = own and any(isinstance(e, ObjectElement) for e in elements)
            kind = LazySequence if lazy else SequenceValue
            return kind(elements, None if name is None else _dtype(name))
        case (str(tag), ref, int(index), str(name), tuple(shape)) if tag == _ELEMENT:
            home = bank if ref is None else ref
            if home is not None:
                return ObjectElement(bank_of(home), index, _dtype(name), shape, own=own)
        case (str(tag), str(name), list(keys), list(items)) if tag == _MAP and len(keys) == len(items):
            if all(isinstance(key, int | str) for key in keys):
                return MapValue(zip(keys, items, strict=True), _dtype(name))
    raise TransportError(f"a parcel holds a {type(entry).__name__} that is no value's wire form")


def _dtype_name(dtype: np.dtype[Any] | None) -> str | None:
    if dtype is None:
        return None
    return dtype.name if dtype.isbuiltin == _USER_DEFINED else dtype.str


def _dtype(name: str) -> np.dtype[Any]:
    scalar = getattr(ml_dtypes, name, None)
    try:
        return np.dtype(name if scalar is None else scalar)
    except TypeError as cause:
        raise TransportError(f"a parcel names the dtype {name!r}, which does not exist here") from cause
