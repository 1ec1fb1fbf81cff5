"""Wire form of what programs mention: types, attribute values, and the tables that hold each string and type once."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from hetero.errors import ProgramError
from hetero.program.constants import from_bytes, to_bytes
from hetero.program.limits import MAX_TYPE_DEPTH
from hetero.program.packing import pack_ints, unpack_ints
from hetero.types import (
    DataType,
    Dim,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    ValueType,
    onnx_dtype,
)

_TENSOR, _SEQUENCE, _OPTIONAL, _MAP = range(4)
(_INT, _FLOAT, _STR, _BYTES, _INTS, _FLOATS, _TUPLE, _ARRAY, _TYPE) = range(9)
_ONES = (_STR, _BYTES, _ARRAY, _TYPE)
_DOUBLE = struct.Struct("<d")
_EXTENT = 2**63 - 1


# -- checked access ------------------------------------------------------------------------------------------------
def as_list(plain: object, what: str, size: int | None = None) -> list[Any]:
    """`plain`, if it is a list (or tuple) of `size` items. Raises: ProgramError."""
    if not isinstance(plain, list | tuple):
        raise ProgramError(f"{what}: expected a list, got {type(plain).__name__}")
    if size is not None and len(plain) != size:
        raise ProgramError(f"{what}: expected {size} items, got {len(plain)}")
    return list(plain)


def as_int(plain: object, what: str, low: int = 0, high: int = _EXTENT) -> int:
    """`plain`, if it is an integer from `low` to `high`. Raises: ProgramError."""
    if type(plain) is not int:
        raise ProgramError(f"{what}: expected an integer, got {type(plain).__name__}")
    if not low <= plain <= high:
        raise ProgramError(f"{what}: {plain} is not from {low} to {high}")
    return plain


def as_str(plain: object, what: str) -> str:
    """`plain`, if it is text. Raises: ProgramError."""
    if type(plain) is not str:
        raise ProgramError(f"{what}: expected text, got {type(plain).__name__}")
    return plain


def as_bytes(plain: object, what: str) -> bytes:
    """`plain`, if it is bytes. Raises: ProgramError."""
    if type(plain) is not bytes:
        raise ProgramError(f"{what}: expected bytes, got {type(plain).__name__}")
    return plain


# -- types ---------------------------------------------------------------------------------------------------------
def encode_type(declared: ValueType | None) -> list[Any] | None:
    """A value type as plain lists. Raises: ProgramError for anything else."""
    if declared is None:
        return None
    if isinstance(declared, TensorType):
        dtype = None if declared.dtype is None else int(declared.dtype)
        return [_TENSOR, dtype, None if declared.shape is None else list(declared.shape)]
    if isinstance(declared, SequenceType | OptionalType):
        kind = _SEQUENCE if isinstance(declared, SequenceType) else _OPTIONAL
        return [kind, encode_type(declared.element)]
    if isinstance(declared, MapType):
        return [_MAP, int(declared.key), encode_type(declared.value)]
    raise ProgramError(f"{declared!r} is no value type")


def decode_type(plain: object) -> ValueType | None:
    """The value type that `encode_type` wrote. Raises: ProgramError."""
    return None if plain is None else _decode_type(plain, MAX_TYPE_DEPTH)


def _decode_type(plain: object, depth: int) -> ValueType:
    if depth == 0:
        raise ProgramError(f"a type nests deeper than {MAX_TYPE_DEPTH}")
    items = as_list(plain, "type")
    kind = items[0] if items else None
    if type(kind) is int and kind == _TENSOR:
        _, dtype, shape = as_list(items, "tensor type", 3)
        return TensorType(
            None if dtype is None else _dtype(dtype),
            None if shape is None else tuple([_dim(d) for d in as_list(shape, "shape")]),
        )
    if type(kind) is int and kind in (_SEQUENCE, _OPTIONAL):
        element = _decode_type(as_list(items, "type", 2)[1], depth - 1)
        return SequenceType(element) if kind == _SEQUENCE else OptionalType(element)
    if type(kind) is int and kind == _MAP:
        _, key, value = as_list(items, "map type", 3)
        scalar = _decode_type(value, depth - 1)
        if not isinstance(scalar, TensorType):
            raise ProgramError(f"a map of {scalar}")
        return MapType(_dtype(key), scalar)
    raise ProgramError(f"unknown kind of type {kind!r}")


def _dtype(code: object) -> DataType:
    number = as_int(code, "dtype", 1)
    try:
        return DataType(number)
    except ValueError as e:
        raise ProgramError(f"unknown dtype {number}") from e


def _dim(plain: object) -> Dim:
    if plain is None:
        return None
    if isinstance(plain, str):
        if not plain:
            raise ProgramError("a symbolic extent must have a name")
        return plain
    return as_int(plain, "extent")


# -- tables --------------------------------------------------------------------------------------------------------
class TableWriter:
    """Collects the strings and types a program mentions, each once, in order of first mention."""

    __slots__ = ("_strings", "_types")

    def __init__(self) -> None:
        self._strings: dict[str, int] = {}
        self._types: dict[ValueType | None, int] = {}

    def plain(self) -> tuple[list[str], list[Any]]:
        """Both tables as plain lists."""
        return list(self._strings), [encode_type(t) for t in self._types]

    def string(self, text: str) -> int:
        """The index of `text`."""
        return self._strings.setdefault(text, len(self._strings))

    def type(self, declared: ValueType | None) -> int:
        """The index of `declared`."""
        return self._types.setdefault(declared, len(self._types))


class TableReader:
    """The tables that `TableWriter.plain` wrote. Raises: ProgramError for tables and indices that cannot be."""

    __slots__ = ("_strings", "_types")

    def __init__(self, strings: object, types: object) -> None:
        self._strings = [as_str(s, "string table") for s in as_list(strings, "string table")]
        self._types = [decode_type(t) for t in as_list(types, "type table")]

    def string(self, index: object) -> str:
        """The string at `index`."""
        return self._strings[as_int(index, "string", 0, len(self._strings) - 1)]

    def type(self, index: object) -> ValueType | None:
        """The type at `index`."""
        return self._types[as_int(index, "type", 0, len(self._types) - 1)]


# -- attributes ----------------------------------------------------------------------------------------------------
def encode_attribute(value: object, tables: TableWriter, name: str) -> tuple[int, Any]:
    """(tag, plain value) of an attribute that holds no body.

    Floats travel as their eight bytes, so that NaN payloads and signed zeros survive every msgpack in between.

    Raises: ProgramError for values that are no attribute value, or lists of mixed kinds.
    """
    kind = type(value)
    if type(value) is int:
        return _INT, as_int(value, name, -_EXTENT - 1)
    if kind is float:
        return _FLOAT, _DOUBLE.pack(value)
    if kind is str:
        return _STR, value
    if kind is bytes:
        return _BYTES, value
    if isinstance(value, np.ndarray):
        try:
            dtype = onnx_dtype(value.dtype)
        except TypeError as e:
            raise ProgramError(f"dtype {value.dtype} has no ONNX counterpart", operand=name) from e
        return _ARRAY, [int(dtype), list(value.shape), to_bytes(value)]
    if isinstance(value, ValueType):
        return _TYPE, tables.type(value)
    if isinstance(value, tuple):
        kinds = {type(v) for v in value}
        if kinds <= {int}:
            return _INTS, pack_ints(value)
        if kinds == {float}:
            return _FLOATS, np.array(value, "<f8").tobytes()
        members = [encode_attribute(v, tables, name) for v in value]
        if len({tag for tag, _ in members}) == 1 and members[0][0] in _ONES:
            return _TUPLE, [members[0][0], [plain for _, plain in members]]
        raise ProgramError("a list attribute of mixed kinds", operand=name)
    raise ProgramError(f"{kind.__name__} is no attribute value", operand=name)


def decode_attribute(tag: object, plain: object, tables: TableReader, name: str) -> Any:
    """The value that `encode_attribute` wrote. Raises: ProgramError."""
    what = f"attribute {name!r}"
    kind = as_int(tag, what, 0, _TYPE)
    if kind == _INT:
        return as_int(plain, what, -_EXTENT - 1)
    if kind == _FLOAT:
        data = as_bytes(plain, what)
        if len(data) != _DOUBLE.size:
            raise ProgramError(f"{what}: a float takes {_DOUBLE.size} bytes, got {len(data)}")
        return _DOUBLE.unpack(data)[0]
    if kind == _INTS:
        return tuple(unpack_ints(plain, what))
    if kind == _FLOATS:
        data = as_bytes(plain, what)
        if len(data) % _DOUBLE.size:
            raise ProgramError(f"{what}: {len(data)} bytes do not hold floats of {_DOUBLE.size}")
        return tuple(np.frombuffer(data, "<f8").tolist())
    if kind == _TUPLE:
        member, values = as_list(plain, what, 2)
        if member not in _ONES:
            raise ProgramError(f"{what}: a list of kind {member!r}")
        return tuple([decode_attribute(member, v, tables, name) for v in as_list(values, what)])
    if kind == _ARRAY:
        dtype, shape, data_ = as_list(plain, what, 3)
        extents = [as_int(d, what) for d in as_list(shape, what)]
        return from_bytes(_dtype(dtype), extents, as_bytes(data_, what))
    if kind == _TYPE:
        declared = tables.type(plain)
        if declared is None:
            raise ProgramError(f"{what}: a type that says nothing")
        return declared
    return as_str(plain, what) if kind == _STR else as_bytes(plain, what)
