"""SequenceValue: an immutable sequence of element handles; values that grow out of one another share one buffer. An
element may lie elsewhere until it is read."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt


class RemoteElement(ABC):
    """An element that lies elsewhere: handles of it are moved, its bytes only when it is read."""

    __slots__ = ("dtype", "nbytes", "shape")

    def __init__(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.shape = shape
        self.nbytes = self.dtype.itemsize * math.prod(shape)

    @abstractmethod
    def fetch(self) -> np.ndarray[Any, Any]:
        """The element here: brought by the first call, the same array from then on."""


class _Store:
    """The element handles of several values: each of them is a prefix of `items`.

    Invariant: holders[n] counts the living values of length n; len(holders) == len(items) + 1, and holders[-1] > 0
    while any value lives. So an element that no value reaches any more is let go, and the longest value may grow in
    place. The lock is re-entrant: a collection may end values while one is being made.
    """

    __slots__ = ("copied", "holders", "items", "lock")

    def __init__(self, items: list[Any], copied: int) -> None:
        self.items = items
        self.holders = [0] * len(items) + [1]
        self.copied = copied
        self.lock = threading.RLock()

    def extend(self, length: int, element: Any) -> bool:
        """Put `element` behind the first `length`, for a value of one more. False where something is there already."""
        with self.lock:
            if length != len(self.items):
                return False
            self.holders.append(1)
            self.items.append(element)
            return True

    def hold(self, length: int) -> None:
        """One more value of `length`."""
        with self.lock:
            self.holders[length] += 1

    def let_go(self, length: int) -> None:
        """One value less of `length`; elements beyond the longest value that is left are dropped."""
        dropped = []
        with self.lock:
            holders = self.holders
            holders[length] -= 1
            while len(holders) > 1 and not holders[-1]:
                holders.pop()
                dropped.append(self.items.pop())
        # here, outside the lock, the elements end


class SequenceValue(Sequence[Any]):
    """An ONNX sequence: immutable, of element handles that are shared, never copied. Thread-safe.

    `dtype` is the elements' NumPy dtype; it is kept for the empty sequence too. Appending to a value that nothing
    longer grew out of, and erasing the last element of any, take constant time whatever the length.
    """

    __slots__ = ("_length", "_store", "dtype")

    def __init__(self, elements: Sequence[Any] = (), dtype: npt.DTypeLike | None = None) -> None:
        self._keep(_Store(list(elements), 0), dtype)

    def _keep(self, store: _Store, dtype: npt.DTypeLike | None) -> None:
        self._store = store
        self._length = len(store.items)
        if dtype is None and store.items and hasattr(store.items[0], "dtype"):
            dtype = store.items[0].dtype
        self.dtype: np.dtype[Any] | None = None if dtype is None else np.dtype(dtype)

    @classmethod
    def _prefix(cls, store: _Store, length: int, dtype: np.dtype[Any] | None) -> SequenceValue:
        """A value of the first `length` handles of `store`, which counts it already."""
        value = cls.__new__(cls)
        value._store, value._length, value.dtype = store, length, dtype
        return value

    @classmethod
    def _copied(cls, elements: list[Any], dtype: np.dtype[Any] | None, before: int) -> SequenceValue:
        """A value over a buffer of its own; `before` handles were copied on the way to its ancestor."""
        value = cls.__new__(cls)
        value._keep(_Store(elements, before + len(elements)), dtype)
        return value

    def __del__(self) -> None:
        store = getattr(self, "_store", None)
        if store is not None:  # else its constructor failed
            store.let_go(self._length)

    # -- reading -------------------------------------------------------------------------------------------------
    @property
    def elements(self) -> tuple[Any, ...]:
        """The handles, as a tuple made for the occasion."""
        return tuple(self._store.items[: self._length])

    @property
    def handles_copied(self) -> int:
        """How many handles were copied from one buffer to another to arrive at this value."""
        return self._store.copied

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> SequenceValue: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return SequenceValue(self.elements[index], self.dtype)
        if not -self._length <= index < self._length:
            raise IndexError(f"index {index} is out of range for a sequence of {self._length}")
        return self._store.items[index + self._length if index < 0 else index]

    def __iter__(self) -> Iterator[Any]:
        # a generator, since its frame keeps this value, and so its elements, alive
        items = self._store.items
        for k in range(self._length):
            yield items[k]

    def __repr__(self) -> str:
        return f"SequenceValue({len(self)} × {self.dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SequenceValue, (self.elements, self.dtype)

    # -- what grows out of it ------------------------------------------------------------------------------------
    def inserted(self, position: int, element: Any, dtype: npt.DTypeLike | None = None) -> SequenceValue:
        """This sequence with `element` before `position` (from 0 to len). `dtype`: for one that knows none yet."""
        kept = self.dtype if dtype is None else np.dtype(dtype)
        store = self._store
        if position == self._length and store.extend(self._length, element):
            return self._prefix(store, self._length + 1, kept)
        elements = store.items[: self._length]
        elements.insert(position, element)
        return self._copied(elements, kept, store.copied)

    def erased(self, position: int) -> SequenceValue:
        """This sequence without the element at `position` (from 0 to len - 1)."""
        store = self._store
        if position == self._length - 1:
            store.hold(position)
            return self._prefix(store, position, self.dtype)
        elements = store.items[: self._length]
        del elements[position]
        return self._copied(elements, self.dtype, store.copied)

    def mapped(self, function: Callable[[Any], Any]) -> SequenceValue:
        """`function` of each element; an element that stands here twice is asked about once. Itself where nothing
        changes."""
        seen: dict[int, Any] = {}
        elements = self.elements
        for element in elements:
            if id(element) not in seen:
                seen[id(element)] = function(element)
        if all(seen[id(e)] is e for e in elements):
            return self
        return SequenceValue([seen[id(e)] for e in elements], self.dtype)


class LazySequence(SequenceValue):
    """A sequence whose elements are brought when they are looked at, each once. `elements` are the handles still, so
    that what is fed to a further step has not moved."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> SequenceValue: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return LazySequence(self.elements[index], self.dtype)
        return _here(super().__getitem__(index))

    def __iter__(self) -> Iterator[Any]:
        return map(_here, super().__iter__())

    def __reduce__(self) -> tuple[Any, ...]:
        return SequenceValue, (tuple(self), self.dtype)


def _here(element: Any) -> Any:
    return element.fetch() if isinstance(element, RemoteElement) else element
