"""Attributes of onnx-ir nodes as plain Python values: numbers, text, read-only host arrays, value types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from hetero.errors import ModelError
from hetero.types import (
    DataType,
    Dim,
    HostArray,
    OptionalType,
    SequenceType,
    Shape,
    TensorType,
    ValueType,
    numpy_dtype,
)

GRAPHS = frozenset({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})
_MAX_DENSE_BYTES = 1 << 31
"""A sparse tensor's few bytes may declare any dense size; past this it is refused, as protobuf would refuse it."""


def attribute_value(attribute: ir.Attr) -> Any:
    """An attribute that holds no graph, as a Python value.

    int, float, str (bytes where the model's are not UTF-8), read-only arrays for tensors (sparse ones densified,
    strings as an object array of str), value types for type protos; lists of these as tuples.

    Raises: ModelError for references to a function's attributes, values that are missing or damaged, and map types.
    """
    kind = attribute.type
    if attribute.is_ref():
        raise ModelError(
            f"refers to attribute {attribute.ref_attr_name!r} of a function that was not inlined",
            operand=attribute.name,
        )
    value = attribute.value
    if value is None:
        raise ModelError("attribute without a value", operand=attribute.name)
    kinds = ir.AttributeType
    try:
        if kind in (kinds.INT, kinds.FLOAT, kinds.STRING, kinds.INTS, kinds.FLOATS):
            return value
        if kind == kinds.STRINGS:
            return tuple(value)
        one = _ONE.get(kind)
        if one is not None:
            return one(value)
        many = _MANY.get(kind)
        if many is not None:
            return tuple(many(v) for v in value)
    except ModelError as e:
        raise e.at(operand=attribute.name) from e.__cause__
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError) as e:
        raise ModelError(f"damaged {kind.name.lower()} attribute: {e}", operand=attribute.name) from e
    raise ModelError(f"attribute of kind {kind.name.lower()}", operand=attribute.name)


def host_array(tensor: ir.TensorProtocol) -> HostArray:
    """The tensor's elements as a read-only array; strings as an object array of str.

    Raises: ModelError where a string element is not UTF-8.
    """
    if tensor.dtype == ir.DataType.STRING:
        return _read_only(_strings(tensor))
    array: HostArray = np.asarray(tensor.numpy())
    dtype = numpy_dtype(tensor.dtype)
    if array.dtype != dtype:
        array = array.astype(dtype)
    return _read_only(array)


def type_and_shape(declared: ir.TypeAndShape) -> ValueType:
    """A type proto as a value type; the shape belongs to the innermost tensor.

    Raises: ModelError for a type that is missing, and for kinds other than tensor, sequence and optional.
    """
    return _value_type(declared.type, declared.shape)


def _value_type(declared: Any, shape: ir.Shape | None) -> ValueType:
    if isinstance(declared, ir.SequenceType):
        return SequenceType(_value_type(declared.elem_type, shape))
    if isinstance(declared, ir.OptionalType):
        return OptionalType(_value_type(declared.elem_type, shape))
    if isinstance(declared, ir.TensorType | ir.SparseTensorType):
        dtype = DataType(declared.dtype)
        return TensorType(None if dtype == DataType.UNDEFINED else dtype, _shape(shape))
    raise ModelError(f"type {declared} is neither tensor, sequence nor optional")


def _shape(shape: ir.Shape | None) -> Shape | None:
    if shape is None:
        return None
    # Some exporters write -1 for an extent they do not know.
    dims: list[Dim] = [(d if d >= 0 else None) if isinstance(d, int) else d.value or None for d in shape]
    return tuple(dims)


def _strings(tensor: Any) -> HostArray:
    # StringTensor.numpy() may be a fixed-width bytes array, which drops trailing NULs: read the elements themselves.
    elements = (
        list(tensor.string_data()) if hasattr(tensor, "string_data") else tensor.numpy().ravel().tolist()
    )
    out = np.empty(len(elements), object)
    for k, element in enumerate(elements):
        try:
            out[k] = element if isinstance(element, str) else bytes(element).decode()
        except ValueError as e:
            raise ModelError(f"element {k} of a string tensor is not UTF-8") from e
    return out.reshape(tuple(int(d) for d in tensor.shape))


def _dense(sparse: Any) -> HostArray:
    """The dense form of a sparse tensor: zeros (or empty text) but for the listed elements.

    `indices` are positions in C order, shape (nnz,), or coordinates, shape (nnz, rank).
    """
    dims = tuple(int(d) for d in sparse.dims)
    values = host_array(sparse.values).reshape(-1)
    size = 1
    for d in dims:
        size *= d
        if d < 0 or size * max(values.dtype.itemsize, 1) > _MAX_DENSE_BYTES:
            raise ModelError(f"sparse tensor of dense shape {list(dims)} is too large")
    indices = host_array(sparse.indices).astype(np.int64)
    flat = np.full(size, "", object) if values.dtype == object else np.zeros(size, values.dtype)
    if indices.ndim == 2:
        if indices.shape != (values.size, len(dims)):
            raise ModelError(f"sparse indices of shape {list(indices.shape)} for {values.size} values")
        strides = np.cumprod((1, *dims[:0:-1]), dtype=np.int64)[::-1]
        if indices.size and ((indices < 0) | (indices >= np.asarray(dims, np.int64))).any():
            raise ModelError("sparse index out of range")
        indices = (indices * strides).sum(axis=1)
    if indices.shape != values.shape or (indices.size and not 0 <= indices.min() <= indices.max() < size):
        raise ModelError("sparse index out of range")
    flat[indices] = values
    return _read_only(flat.reshape(dims))


def _read_only(array: HostArray) -> HostArray:
    view = array.view()
    view.flags.writeable = False
    return view


_ONE: dict[ir.AttributeType, Callable[[Any], Any]] = {
    ir.AttributeType.TENSOR: host_array,
    ir.AttributeType.SPARSE_TENSOR: _dense,
    ir.AttributeType.TYPE_PROTO: type_and_shape,
}
_MANY: dict[ir.AttributeType, Callable[[Any], Any]] = {
    ir.AttributeType.TENSORS: host_array,
    ir.AttributeType.SPARSE_TENSORS: _dense,
    ir.AttributeType.TYPE_PROTOS: type_and_shape,
}
