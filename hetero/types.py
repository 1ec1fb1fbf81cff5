"""What a value is: dtypes, tensor types as the graph declares them, specs as a run sees them, sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

DataType = ir.DataType
Array = Any
"""An array of some provider: numpy.ndarray on the host, cupy.ndarray or a simulated device's array elsewhere."""
HostArray = npt.NDArray[Any]

Dim = int | str | None
"""An extent: known, symbolic (an expression over symbols such as "batch" or "2*n + 1"), or unknown."""
Shape = tuple[Dim, ...]

STRING = np.dtype(object)
_TO_NUMPY: dict[DataType, np.dtype[Any]] = {
    t: (STRING if t == DataType.STRING else np.dtype(t.numpy())) for t in DataType if t != DataType.UNDEFINED
}
_FROM_NUMPY: dict[np.dtype[Any], DataType] = {v: k for k, v in _TO_NUMPY.items()}
FLOATS = frozenset(np.dtype(t) for t in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16))


def numpy_dtype(dtype: DataType) -> np.dtype[Any]:
    """The NumPy dtype that holds an ONNX dtype (ml_dtypes for the narrow ones, object for strings)."""
    return _TO_NUMPY[dtype]


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


ValueType = TensorType | SequenceType | OptionalType


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


Spec = TensorSpec | SequenceSpec | AbsentSpec
ABSENT = AbsentSpec()


def spec_of(array: HostArray) -> TensorSpec:
    """The spec of a host array, without its value."""
    return TensorSpec(array.dtype, array.shape)


class SequenceValue(Sequence[Any]):
    """An ONNX sequence: an immutable tuple of element handles that are shared, never copied.

    `dtype` is the elements' NumPy dtype; it is kept for the empty sequence too.
    """

    __slots__ = ("dtype", "elements")

    def __init__(self, elements: Sequence[Any] = (), dtype: npt.DTypeLike | None = None) -> None:
        self.elements = tuple(elements)
        if dtype is None and self.elements and hasattr(self.elements[0], "dtype"):
            dtype = self.elements[0].dtype
        self.dtype: np.dtype[Any] | None = None if dtype is None else np.dtype(dtype)

    def __len__(self) -> int:
        return len(self.elements)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> SequenceValue: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return SequenceValue(self.elements[index], self.dtype)
        return self.elements[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __repr__(self) -> str:
        return f"SequenceValue({len(self)} × {self.dtype})"
