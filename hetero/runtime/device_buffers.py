"""Memory of the caller's on one child's device: bound inputs are read from it and bound outputs written into it, and
nothing crosses the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.errors import InputError
from hetero.providers.base import Provider
from hetero.types import Array, HostArray, TensorSpec


@dataclass(frozen=True, slots=True)
class BufferRef:
    """Names the front of a buffer: elements [0, shape[k]) along each axis k. What crosses in place of a value."""

    id: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BufferChange:
    """What to do with a buffer, in this order: make it (zeros of `spec`), write a value to its front, read its front,
    free it. Applied by the child that has it."""

    ref: BufferRef
    spec: TensorSpec | None = None
    value: HostArray | None = None
    read: bool = False
    free: bool = False


class DeviceBuffers:
    """The buffers on one child; false where there are none."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._arrays: dict[int, Array] = {}

    def __bool__(self) -> bool:
        return bool(self._arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(int(a.nbytes) for a in self._arrays.values())

    def change(self, change: BufferChange) -> HostArray | None:
        """Apply it; a copy of the front where it asks for one. Raises: InputError, MemoryLimitError."""
        provider, ref = self._provider, change.ref
        found: HostArray | None = None
        if change.spec is not None:
            array = provider.empty(change.spec)
            provider.copy(provider.upload(np.zeros(change.spec.shape, change.spec.dtype)), array)()
            self._arrays[ref.id] = array
        if change.value is not None:
            provider.copy(provider.upload(change.value), self.view(ref))()
        if change.read:
            found = np.array(provider.download(self.view(ref)))
        if change.free:
            self._arrays.pop(ref.id, None)
        return found

    def view(self, ref: BufferRef) -> Array:
        """The front of the buffer. Raises: InputError where there is none of that number, or it is smaller."""
        array = self._arrays.get(ref.id)
        if array is None:
            raise InputError(
                "a device buffer is not there: it was closed, or its child has been started anew",
                device=self._provider.name,
            )
        shape = tuple(array.shape)
        if len(shape) != len(ref.shape) or any(n > m for n, m in zip(ref.shape, shape, strict=True)):
            raise InputError(
                f"{list(ref.shape)} is not within the buffer's {list(shape)}", device=self._provider.name
            )
        for axis, (n, m) in enumerate(zip(ref.shape, shape, strict=True)):
            if n != m:
                array = self._provider.narrow(array, axis, 0, n)
        return array

    def enter(self, names: Iterable[str], values: dict[str, Any]) -> None:
        """Put the arrays themselves in place of what stands for them."""
        for name in names:
            value = values.get(name)
            if isinstance(value, BufferRef):
                values[name] = self.view(value)

    def leave(
        self, targets: Mapping[str, BufferRef], names: Iterable[str], values: Mapping[str, Any]
    ) -> None:
        """Copy results into the buffers they are bound to. Raises: InputError for one too small, with both sizes."""
        for name in names:
            target = targets.get(name)
            if target is None:
                continue
            value = values[name]
            shape = tuple(value.shape)
            if len(shape) != len(target.shape) or any(
                n > m for n, m in zip(shape, target.shape, strict=True)
            ):
                raise InputError(
                    f"output {name!r} is {list(shape)}, its device buffer {list(target.shape)}", operand=name
                )
            here = self._provider.upload(value) if isinstance(value, np.ndarray) else value
            self._provider.copy(here, self.view(BufferRef(target.id, shape)))()

    def clear(self) -> None:
        """Free all."""
        self._arrays.clear()
