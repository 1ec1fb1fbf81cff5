"""Constant tensors: sizes checked before anything is allocated, decoded once, read-only from then on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.external import DataFiles
from hetero.types import HostArray, numpy_dtype

MAX_ELEMENTS = 2**48
"""More elements than any memory holds; NumPy's own extents overflow not far above."""
MAX_RANK = 64
"""NumPy's limit."""
MAX_DENSE_BYTES = 2**30
"""A sparse tensor may claim any dense size with a few bytes, so its dense form is bounded."""

_Proto = onnx.TensorProto
_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_INT32 = {
    *(ir.DataType.INT32, ir.DataType.INT16, ir.DataType.INT8, ir.DataType.INT4, ir.DataType.INT2),
    *(ir.DataType.UINT16, ir.DataType.UINT8, ir.DataType.UINT4, ir.DataType.UINT2, ir.DataType.BOOL),
    *(ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ),
    *(ir.DataType.FLOAT8E5M2, ir.DataType.FLOAT8E5M2FNUZ, ir.DataType.FLOAT8E8M0, ir.DataType.FLOAT4E2M1),
    *(ir.DataType.FLOAT6E2M3, ir.DataType.FLOAT6E3M2),
}
_FIELD_OF: dict[ir.DataType, str] = {
    **dict.fromkeys(_INT32, "int32_data"),
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}


class Lazy:
    """An array that is made by `load` on first use, checked, kept, and never written. What it was made from is let go
    of then: a protobuf's memory lives for as long as any part of it is held."""

    __slots__ = ("_array", "_load")

    def __init__(self, load: Callable[[], HostArray]) -> None:
        self._load: Callable[[], HostArray] | None = load
        self._array: HostArray | None = None

    def get(self, name: str | None, dtype: ir.DataType, shape: tuple[int, ...]) -> HostArray:
        """The read-only array. Raises: ModelError where the bytes do not decode."""
        array, load = self._array, self._load
        if array is None:
            assert load is not None, "it is dropped when there is an array"
            array = self._array = _decoded(name, dtype, shape, load)
            self._load = None
        return array

    def move(self, load: Callable[[], HostArray]) -> None:
        """The same elements are to be had from `load` from now on; what is here is let go of."""
        self._load, self._array = load, None


class HostTensor(ir.LazyTensor):
    """A constant whose array is a Lazy one's, which other handles may share.

    Unlike the tensor it stands for it has a name of its own, so renaming a value leaves the caller's model alone.
    The narrow types unpack to one element each.
    """

    __slots__ = ("lazy",)

    def __init__(self, name: str | None, dtype: ir.DataType, shape: Sequence[int], lazy: Lazy) -> None:
        super().__init__(self._packed, dtype, ir.Shape(tuple(shape), frozen=True), name=name)
        self.lazy = lazy

    def _packed(self) -> ir.TensorProtocol:
        return ir.Tensor(self.numpy(), dtype=self.dtype, name=self.name)

    def numpy(self) -> HostArray:
        """The read-only array. Raises: ModelError where the bytes do not decode."""
        return self.lazy.get(self.name, self.dtype, self.shape.numpy())

    def __array__(self, dtype: object = None, copy: bool | None = None) -> HostArray:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)  # type: ignore[call-overload]

    def __repr__(self) -> str:
        return f"HostTensor<{self.dtype},{self.shape}>(name={self.name!r})"


class HostStrings(ir.StringTensor):
    """HostTensor's twin for strings, since onnx-ir tells string tensors by their class: an object array of str."""

    __slots__ = ("lazy",)

    def __init__(self, name: str | None, shape: Sequence[int], lazy: Lazy) -> None:
        super().__init__((), shape=ir.Shape(tuple(shape), frozen=True), name=name)
        self.lazy = lazy

    def numpy(self) -> HostArray:
        """The read-only array. Raises: ModelError for text that is not UTF-8."""
        return self.lazy.get(self.name, ir.DataType.STRING, self.shape.numpy())

    def __array__(self, dtype: object = None, copy: bool | None = None) -> HostArray:
        return self.numpy()

    def string_data(self) -> list[bytes]:
        """The strings in UTF-8, flat."""
        return [text.encode() for text in self.numpy().ravel()]

    def __repr__(self) -> str:
        return f"HostStrings<{self.shape}>(name={self.name!r})"


HostConstant: TypeAlias = HostTensor | HostStrings


def host_constant(
    name: str | None, dtype: ir.DataType, shape: Sequence[int], load: Callable[[], HostArray]
) -> HostConstant:
    """The kind of constant that `dtype` asks for."""
    return _constant(name, dtype, shape, Lazy(load))


def _constant(name: str | None, dtype: ir.DataType, shape: Sequence[int], lazy: Lazy) -> HostConstant:
    return (
        HostStrings(name, shape, lazy)
        if dtype == ir.DataType.STRING
        else HostTensor(name, dtype, shape, lazy)
    )


def renamed(tensor: HostConstant, name: str | None) -> HostConstant:
    """Another handle on the same array."""
    return _constant(name, tensor.dtype, tensor.shape.numpy(), tensor.lazy)


def _decoded(
    name: str | None, dtype: ir.DataType, shape: tuple[int, ...], load: Callable[[], HostArray]
) -> HostArray:
    wanted = numpy_dtype(dtype)
    try:
        array = np.asarray(load())
        if dtype == ir.DataType.STRING:
            array = _text(array)
        elif array.dtype != wanted:
            # Bit patterns (uint8 for float8…) and big-endian views: same bits, native type.
            if array.dtype.newbyteorder("=") == wanted:
                array = array.astype(wanted)
            elif array.dtype.itemsize == wanted.itemsize:
                array = array.view(wanted)
            else:
                raise TypeError(f"dtype {array.dtype} where {wanted} is declared")
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"the data of tensor {name!r} cannot be read: {error}", operand=name) from error
    if array.shape != shape:
        raise ModelError(
            f"tensor {name!r} has shape {list(array.shape)}, declared is {list(shape)}", operand=name
        )
    view = array.view()
    view.flags.writeable = False
    return view


def _objects(items: Sequence[object], shape: tuple[int, ...]) -> HostArray:
    out = np.empty(len(items), dtype=object)
    out[:] = items
    return out.reshape(shape)


def _text(array: HostArray) -> HostArray:
    out = np.empty(array.shape, dtype=object)
    flat = out.reshape(-1)
    for k, item in enumerate(array.ravel().tolist()):
        flat[k] = item.decode("utf-8") if isinstance(item, bytes) else str(item)
    return out


def constant(name: str | None, array: HostArray, dtype: ir.DataType) -> HostConstant:
    """A HostTensor over an array that exists already (shared, not copied)."""
    return host_constant(name, dtype, array.shape, lambda: array)


def check_shape(name: str, dims: Sequence[int], dtype: int) -> tuple[ir.DataType, int]:
    """The dtype and the number of elements a tensor declares.

    Raises: ModelError for an unknown dtype, a negative extent, or more elements than any memory holds.
    """
    try:
        data_type = ir.DataType(dtype)
    except ValueError as error:
        raise ModelError(f"tensor {name!r} has the unknown dtype {dtype}", operand=name) from error
    if data_type == ir.DataType.UNDEFINED:
        raise ModelError(f"tensor {name!r} has no dtype", operand=name)
    if len(dims) > MAX_RANK:
        raise ModelError(
            f"tensor {name!r} has {len(dims)} axes; at most {MAX_RANK} are possible", operand=name
        )
    if any(d < 0 for d in dims):
        raise ModelError(f"tensor {name!r} has a negative extent: {list(dims)}", operand=name)
    # Zero extents are skipped: NumPy computes strides over the others all the same.
    if math.prod(d for d in dims if d) > MAX_ELEMENTS:
        raise ModelError(f"tensor {name!r} declares an impossible size: {list(dims)}", operand=name)
    return data_type, math.prod(dims)


def stored_bytes(dtype: ir.DataType, size: int) -> int:
    """Bytes of `size` elements as ONNX stores them (narrow types packed)."""
    return -(-size * dtype.bitwidth // 8)


def check_tensor(proto: _Proto, name: str | None = None) -> None:
    """Check a TensorProto's own data against what it declares, without decoding it.

    Raises: ModelError naming the tensor.
    """
    name = name or proto.name or "<unnamed>"
    dtype, size = check_shape(name, proto.dims, proto.data_type)
    if proto.HasField("segment"):
        raise ModelError(f"tensor {name!r} is stored in segments, which no ONNX file may use", operand=name)
    filled = [f for f in _FIELDS if len(getattr(proto, f))]
    if proto.data_location == _Proto.EXTERNAL:
        if filled or proto.HasField("raw_data"):
            raise ModelError(f"tensor {name!r} has both inline and external data", operand=name)
        _check_external_keys(proto, name)
        return
    if proto.HasField("raw_data"):
        if filled:
            raise ModelError(f"tensor {name!r} has both raw_data and {filled[0]}", operand=name)
        if dtype == ir.DataType.STRING:
            raise ModelError(f"string tensor {name!r} cannot be stored as raw_data", operand=name)
        _compare(name, "bytes of raw_data", len(proto.raw_data), stored_bytes(dtype, size))
        return
    field = _FIELD_OF[dtype]
    if any(f != field for f in filled):
        raise ModelError(f"tensor {name!r} of dtype {dtype.name} is stored in {filled[0]}", operand=name)
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        wanted = 2 * size
    elif dtype != ir.DataType.STRING and dtype.bitwidth in (2, 4):
        wanted = stored_bytes(dtype, size)
    else:
        wanted = size
    _compare(name, f"elements of {field}", len(getattr(proto, field)), wanted)


def _compare(name: str, what: str, have: int, wanted: int) -> None:
    if have != wanted:
        raise ModelError(
            f"tensor {name!r} has {have} {what}; its dtype and shape need {wanted}", operand=name
        )


def _check_external_keys(proto: _Proto, name: str) -> None:
    entries = {e.key: e.value for e in proto.external_data}
    for key in ("offset", "length"):
        text = entries.get(key)
        # isdecimal alone admits other scripts' digits, and int() refuses texts beyond 4300 digits.
        if text is not None and not (text.isascii() and text.isdecimal() and len(text) <= 20):
            raise ModelError(f"tensor {name!r} has the bad external {key} {text[:40]!r}", operand=name)
    if not entries.get("location"):
        raise ModelError(f"tensor {name!r} has external data without a location", operand=name)


def host_tensor(tensor: ir.TensorProtocol, files: DataFiles, name: str | None = None) -> HostConstant:
    """`tensor` checked and wrapped; external data are looked up through `files`, which confines them.

    Raises: ModelError naming the tensor.
    """
    if isinstance(tensor, HostTensor | HostStrings):
        return renamed(tensor, name)
    label = name or tensor.name or "<unnamed>"
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        check_tensor(tensor.raw, label)
        return host_constant(name, tensor.dtype, tuple(tensor.raw.dims), lambda: _frozen(tensor.numpy()))
    dims = tensor.shape.dims
    if not all(isinstance(d, int) for d in dims):
        raise ModelError(f"tensor {label!r} has symbolic extents: {tensor.shape}", operand=label)
    extents = tuple(int(d) for d in dims)  # type: ignore[arg-type]
    dtype, size = check_shape(label, extents, int(tensor.dtype))
    if isinstance(tensor, ir.ExternalTensor):
        if dtype == ir.DataType.STRING:
            raise ModelError(f"string tensor {label!r} cannot have external data", operand=label)
        nbytes = stored_bytes(dtype, size)
        slice_ = files.slice(label, tensor, nbytes)
        return host_constant(name, dtype, extents, lambda: _from_bytes(slice_(), dtype, extents))
    if isinstance(tensor, ir.StringTensor):
        strings = list(tensor.string_data())
        _compare(label, "strings", len(strings), size)
        # Not numpy(): NumPy's own bytes type drops trailing zero bytes.
        return host_constant(name, dtype, extents, lambda: _objects(strings, extents))
    return host_constant(name, dtype, extents, tensor.numpy)


def _frozen(array: HostArray) -> HostArray:
    """An array that was just decoded, read-only with all that it shows a part of: kernels keep what follows from it."""
    part: object = array
    while isinstance(part, np.ndarray) and part.flags.writeable:
        part.flags.writeable = False
        part = part.base
    return array


def _from_bytes(raw: HostArray, dtype: ir.DataType, shape: tuple[int, ...]) -> HostArray:
    """Elements of a flat uint8 array: a view, but for the packed types."""
    if dtype.bitwidth < 8:
        packed = _Proto(dims=shape, data_type=int(dtype), raw_data=raw.tobytes())
        return _frozen(ir.serde.TensorProtoTensor(packed).numpy())
    return raw.view(numpy_dtype(dtype).newbyteorder("<")).reshape(shape)


def densify(sparse: onnx.SparseTensorProto, name: str) -> _Proto:
    """The dense form of a sparse tensor, named `name`.

    Raises: ModelError for indices that leave the shape, counts that disagree, or more than MAX_DENSE_BYTES.
    """
    dtype, size = check_shape(name, sparse.dims, sparse.values.data_type)
    if dtype == ir.DataType.STRING or dtype.bitwidth < 8:
        raise ModelError(f"sparse tensor {name!r} of dtype {dtype.name} is not possible", operand=name)
    if stored_bytes(dtype, size) > MAX_DENSE_BYTES:
        raise ModelError(
            f"sparse tensor {name!r} is {stored_bytes(dtype, size)} bytes when dense; the limit is {MAX_DENSE_BYTES}",
            operand=name,
        )
    for part in (sparse.values, sparse.indices):
        check_tensor(part, name)
        if part.data_location == _Proto.EXTERNAL:
            raise ModelError(f"sparse tensor {name!r} has external data", operand=name)
    values = ir.serde.TensorProtoTensor(sparse.values).numpy()
    indices = ir.serde.TensorProtoTensor(sparse.indices).numpy()
    shape = tuple(sparse.dims)
    linear = indices.ndim == 1
    if (
        values.ndim != 1
        or indices.dtype != np.int64
        or indices.shape not in ((len(values),), (len(values), len(shape)))
    ):
        raise ModelError(
            f"sparse tensor {name!r} has values {list(values.shape)} and indices {list(indices.shape)}",
            operand=name,
        )
    dense = np.zeros(size, dtype=numpy_dtype(dtype))
    bounds = np.asarray(size if linear else shape, dtype=np.int64)
    if np.any(indices < 0) or np.any(indices >= bounds):
        raise ModelError(f"sparse tensor {name!r} has an index outside its shape {list(shape)}", operand=name)
    flat = (
        indices if linear else np.ravel_multi_index(tuple(indices.T), shape) if len(values) else indices[:, 0]
    )
    dense[flat] = values
    return _Proto(name=name, dims=shape, data_type=int(dtype), raw_data=dense.tobytes())
