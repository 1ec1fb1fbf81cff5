"""Values on the wire: a parcel packed so that array bytes travel out of band and arrive as views, not as copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from hetero.errors import TransportError
from hetero.runtime.device_buffers import BufferRef
from hetero.runtime.state import Resident
from hetero.types import MapValue, SequenceValue

Wire = list[Any]
"""One entry per value: an array or None as it is; a tuple (tag, …) for what pickle would copy or could not carry."""

_NARROW, _OBJECTS, _SEQUENCE, _MAP, _RESIDENT, _BUFFER = (
    "narrow", "objects", "sequence", "map", "resident", "buffer"
)  # fmt: skip
_USER_DEFINED = 2  # of dtype.isbuiltin: bfloat16 and its like


def pack(values: Sequence[Any]) -> Wire:
    """A parcel's wire form. Shares memory with `values`, except for strided arrays: those are copied here, once.

    Raises: TransportError for what is no value (array, SequenceValue, MapValue, Resident, BufferRef, None).
    """
    return [_pack(value) for value in values]


def unpack(wire: Wire, *, own: bool = False) -> list[Any]:
    """The values of a parcel. Arrays share memory with the wire form (and are read-only where that is) unless `own`.

    Raises: TransportError for a wire form that `pack` does not make.
    """
    return [_unpack(entry, own) for entry in wire]


def _pack(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        return _pack_array(value)
    if isinstance(value, SequenceValue):
        return _SEQUENCE, _dtype_name(value.dtype), [_pack(v) for v in value]
    if isinstance(value, MapValue):
        return _MAP, _dtype_name(value.value_dtype), list(value), list(value.values())
    if isinstance(value, Resident):
        return _RESIDENT, value.shape
    if isinstance(value, BufferRef):
        return _BUFFER, value.id, value.shape
    if isinstance(value, np.generic):
        return _pack_array(np.asarray(value))
    raise TransportError(f"a {type(value).__name__} cannot cross between children")


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


def _unpack(entry: Any, own: bool) -> Any:
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
            return SequenceValue(
                [_unpack(item, own) for item in items], None if name is None else _dtype(name)
            )
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
