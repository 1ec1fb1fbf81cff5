"""Sequence elements that stay where they came from until something reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.providers.base import Provider
from hetero.types import Array, HostArray, RemoteElement, SequenceValue


class Element:
    """A handle to an element that is still on the host, or with another child, in a sequence on a device.

    Inserting, erasing and indexing move handles; the element itself is uploaded when it is first read, once, for all
    sequences that hold the handle.
    """

    __slots__ = ("_here", "dtype", "nbytes", "shape", "source")

    def __init__(self, source: HostArray | RemoteElement) -> None:
        self.source = source
        self.dtype: np.dtype[Any] = source.dtype
        self.shape: tuple[int, ...] = source.shape
        self.nbytes: int = source.nbytes
        self._here: Array | None = None

    def fetch(self, provider: Provider) -> Array:
        """The element in the provider's memory. A handle belongs to one device; on the host its source is what is asked
        for."""
        if provider.is_host:
            return arrived(provider, self.source)
        if self._here is None:
            self._here = arrived(provider, self.source)
        return self._here


def deferred(sequence: SequenceValue) -> SequenceValue:
    """The sequence as a device child holds it: host arrays stand for themselves until they are read."""
    return sequence.mapped(lambda v: Element(v) if isinstance(v, np.ndarray | RemoteElement) else v)


def arrived(provider: Provider, value: Any) -> Any:
    """`value`, and where it is a sequence its elements, in the provider's memory; None stays None."""
    if isinstance(value, Element):
        return value.fetch(provider)
    if isinstance(value, RemoteElement):
        value = value.fetch()
    if isinstance(value, SequenceValue):
        return value.mapped(lambda v: arrived(provider, v))
    if isinstance(value, np.ndarray) and not provider.is_host:
        return provider.upload(value)
    return value
