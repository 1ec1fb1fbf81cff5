"""DeviceBuffer: the caller's handle to memory on a child's device."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.errors import InputError
from hetero.runtime.children import Children
from hetero.runtime.device_buffers import BufferChange, BufferRef
from hetero.types import HostArray, TensorSpec

_ids = itertools.count(1)


class DeviceBuffer:
    """An array of zeros on the device of one child, to be bound to inputs and outputs (`IOBinding`).

    Made by `HeterogeneousExecutor.device_buffer`, and freed by `close`, or with the executor.
    """

    def __init__(
        self, children: Children, child: int, device: str, dtype: np.dtype[Any], ref: BufferRef
    ) -> None:
        """The handle alone: `made` has the memory taken."""
        self._children, self.child, self.device = children, child, device
        self.dtype, self.ref = dtype, ref

    @classmethod
    def made(
        cls, children: Children, child: int, device: str, dtype: npt.DTypeLike, shape: tuple[int, ...]
    ) -> DeviceBuffer:
        """A new one. Raises: MemoryLimitError."""
        spec, ref = TensorSpec(np.dtype(dtype), shape), BufferRef(next(_ids), shape)
        children.change_buffer(child, BufferChange(ref, spec))
        return cls(children, child, device, spec.dtype, ref)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return self.ref.shape

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.dtype.itemsize * math.prod(self.shape)

    def front(self, *shape: int) -> DeviceBuffer:
        """Elements [0, shape[k]) along each axis k, of the same memory: a logical prefix of a larger fixed buffer.

        Raises: InputError where it is larger.
        """
        fits = len(shape) == len(self.shape) and all(
            0 <= n <= m for n, m in zip(shape, self.shape, strict=True)
        )
        if not fits:
            raise InputError(f"{list(shape)} is not within the buffer's {list(self.shape)}")
        return DeviceBuffer(
            self._children, self.child, self.device, self.dtype, BufferRef(self.ref.id, tuple(shape))
        )

    def write(self, value: npt.ArrayLike) -> None:
        """Become `value`, of this dtype and shape. Raises: InputError for another."""
        array: HostArray = np.asarray(value)
        if array.dtype != self.dtype or array.shape != self.shape:
            raise InputError(
                f"must be {self.dtype}{list(self.shape)}, but is {array.dtype}{list(array.shape)}"
            )
        self._children.change_buffer(self.child, BufferChange(self.ref, value=array))

    def read(self) -> HostArray:
        """A copy on the host."""
        found: Any = self._children.change_buffer(self.child, BufferChange(self.ref, read=True))
        return np.asarray(found)

    def close(self) -> None:
        """Free the memory, of its other parts too. A second call does nothing."""
        self._children.change_buffer(self.child, BufferChange(self.ref, free=True))

    def __repr__(self) -> str:
        return f"DeviceBuffer({self.dtype}{list(self.shape)} on {self.device})"
