"""What a value is: dtypes, tensor types as the graph declares them, specs as a run sees them, sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from hetero.data_type import NUMPY
from hetero.data_type import STRING as STRING
from hetero.data_type import DataType as DataType
from hetero.map_value import MapValue as MapValue
from hetero.sequence_value import LazySequence as LazySequence
from hetero.sequence_value import RemoteElement as RemoteElement
from hetero.sequence_value import SequenceValue as SequenceValue

Array = Any
"""An array of some provider: numpy.ndarray on the host, cupy.ndarray or a simulated device's array elsewhere."""
HostArray = npt.NDArray[Any]

Dim = int | str | None
"""An extent: known, symbolic (an expression over symbols such as "batch" or "2*n + 1"), or unknown."""
Shape = tuple[Dim, ...]

_FROM_NUMPY = {NUMPY[t]: t for t in DataType if t != DataType.UNDEFINED}
FLOATS = frozenset(np.dtype(t) for t in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16))


def numpy_dtype(dtype: IntEnum) -> np.dtype[Any]:
    """The NumPy dtype that holds an ONNX dtype, ours or onnx-ir's; ml_dtypes for narrow ones, object for strings."""
    return NUMPY[dtype]


def onnx_dtype(dtype: npt.DTypeLike) -> DataType:
    """The ONNX dtype of a NumPy dtype. Any text dtype (object, U, S) is STRING.

    Raises: TypeError for dtypes ONNX has no name for (datetime64, longdouble, structured…).
    """
    d = np.dtype(dtype)
    if d.kind in "OUS" or d.kind == "T":
        return DataType.STRING
    found = _FROM_NUMPY.get(d.newbyteorder("="))
    if found is None:
        raise TypeError(f"dtype {d} has no ONNX counterpart")
    return found


@dataclass(frozen=True, slots=True)
class TensorType:
    """What the graph says of a tensor: dtype (None: not inferred), shape (None: rank unknown)."""

    dtype: DataType | None
    shape: Shape | None = None

    def __str__(self) -> str:
        dims = (
            "[?]"
            if self.shape is None
            else "[" + ", ".join("?" if d is None else str(d) for d in self.shape) + "]"
        )
        return f"{self.dtype.name.lower() if self.dtype is not None else '?'}{dims}"


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A sequence of `element`s."""

    element: ValueType

    def __str__(self) -> str:
        return f"seq({self.element})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """An `element` or nothing."""

    element: ValueType

    def __str__(self) -> str:
        return f"optional({self.element})"


@dataclass(frozen=True, slots=True)
class MapType:
    """A map from integers or texts (`key`) to scalars (`value`, without axes). Lives on the host only."""

    key: DataType
    value: TensorType

    def __str__(self) -> str:
        value = "?" if self.value.dtype is None else self.value.dtype.name.lower()
        return f"map({self.key.name.lower()}, {value})"


ValueType = TensorType | SequenceType | OptionalType | MapType


def host_kind(type_: ValueType | None) -> str | None:
    """ "strings" or "maps" where values of this type hold such, which no device does; otherwise None."""
    while isinstance(type_, SequenceType | OptionalType):
        type_ = type_.element
    if isinstance(type_, MapType):
        return "maps"
    return "strings" if isinstance(type_, TensorType) and type_.dtype == DataType.STRING else None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as a run sees it: NumPy dtype, concrete extents, and its value where that is known on the host.

    `value` is set only for constants and shape arithmetic (small host arrays, never written); it takes no part in
    equality, so specs serve as cache keys.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    value: HostArray | None = field(default=None, compare=False, repr=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a contiguous array of this spec, as NumPy stores it."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """A sequence (of any length) as a run sees it."""

    dtype: np.dtype[Any] | None


@dataclass(frozen=True, slots=True)
class AbsentSpec:
    """An optional that holds nothing, or an operand that was left out."""


@dataclass(frozen=True, slots=True)
class MapSpec:
    """A map (of any length) as a run sees it, with the dtype of its values."""

    dtype: np.dtype[Any]


Spec = TensorSpec | SequenceSpec | AbsentSpec | MapSpec
ABSENT = AbsentSpec()


def spec_of(array: HostArray) -> TensorSpec:
    """The spec of a host array, without its value."""
    return TensorSpec(array.dtype, array.shape)
