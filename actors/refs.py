"""Elements of sequences as object references: put once, moved by handle, brought to a process when they are read."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future
from typing import Any

import numpy as np
import ray
import ray.exceptions as rex

from hetero.errors import TransportError
from hetero.types import HostArray, RemoteElement

_lock = threading.Lock()
_banks: weakref.WeakValueDictionary[str, Bank] = weakref.WeakValueDictionary()
_counts = {"elements_fetched": 0, "element_bytes_fetched": 0}


class LostElementError(TransportError):
    """The object that holds an element is gone, with the node on which it lay or the process that put it."""


class Bank:
    """The elements that one child made for one parcel, or the caller gave: an object of the store that is opened once
    in a process. The arrays lie in the node's store; where they are not on this node, they come as a whole."""

    def __init__(self, ref: Any) -> None:
        self.ref = ref
        self._arrays: list[HostArray] | None = None
        self._opening = threading.Lock()
        self._coming: Future[Any] | None = None

    def arrays(self) -> list[HostArray]:
        """All elements, read-only. Raises: RayError where they are lost."""
        with self._opening:
            if self._arrays is None:
                coming, self._coming = self._coming, None
                here = coming is not None and coming.done() and coming.exception() is None
                self._arrays = list(coming.result() if here and coming is not None else ray.get(self.ref))
            return self._arrays

    def bring(self) -> None:
        """Have them on this node for as long as this process refers to them, whatever becomes of the others. Does not
        wait."""
        with self._opening:
            if self._arrays is None and self._coming is None:
                self._coming = self.ref.future()


def bank_of(ref: Any) -> Bank:
    """The bank of an object, one in this process."""
    name = ref.hex()
    with _lock:
        bank = _banks.get(name)
        if bank is None:
            bank = _banks[name] = Bank(ref)
        return bank


class ObjectElement(RemoteElement):
    """Element `index` of a bank. `own`: fetched into memory of this process, so that it holds nothing in the store."""

    __slots__ = ("__weakref__", "_fetched", "bank", "index", "own")

    def __init__(
        self, bank: Bank, index: int, dtype: np.dtype[Any], shape: tuple[int, ...], *, own: bool
    ) -> None:
        super().__init__(dtype, shape)
        self.bank: Bank | None = bank
        self.index, self.own = index, own
        self._fetched: HostArray | None = None

    def fetch(self) -> HostArray:
        """As RemoteElement. Raises: LostElementError."""
        found = self._fetched
        if found is None:
            assert self.bank is not None, "an element that was not fetched has its bank"
            try:
                arrays = self.bank.arrays()
            except rex.RayError as error:
                form = ", ".join(map(str, self.shape))
                raise LostElementError(
                    f"element {self.index} of those that a sequence was made of, {self.dtype.name}[{form}], is lost:"
                    f" {type(error).__name__}"
                ) from error
            array = arrays[self.index].view(self.dtype)
            found = array.copy(order="K") if self.own else array
            with _lock:
                _counts["elements_fetched"] += 1
                _counts["element_bytes_fetched"] += self.nbytes
            self._fetched = found
            if self.own:
                self.bank = None  # which may go, with what it holds in the store, once all were fetched
        return found


def statistics() -> dict[str, int]:
    """Elements that were read in this process, and their bytes."""
    with _lock:
        return dict(_counts)
