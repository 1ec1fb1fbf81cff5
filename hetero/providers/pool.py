"""The byte pool: size classes, best reuse first, a limit, and counters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.errors import ClosedError, DeviceError, MemoryLimitError
from hetero.providers.base import Buffer
from hetero.types import HostArray

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""
_FINE = 1024
"""Up to here classes are multiples of ALIGNMENT; above it there are four to each power of two."""
_WIDER = 4
"""How many classes above the wanted one may serve it (four: at most twice its size)."""


def size_class(nbytes: int) -> int:
    """The size that `nbytes` is rounded to: at least 64, a multiple of 64, at most a quarter more than asked."""
    if nbytes <= _FINE:
        return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
    step = 1 << ((nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


def aligned_bytes(nbytes: int) -> HostArray:
    """An uninitialised uint8 array of `nbytes`, 64-byte aligned. Raises: MemoryError."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : start + nbytes]


class PooledBuffer(Buffer):
    """A buffer that knows its pool. Every take makes a new one, so that an old handle to reused bytes is dead."""

    __slots__ = ("pool",)

    def __init__(self, pool: BytePool, raw: Any, nbytes: int) -> None:
        self.raw = raw
        self.nbytes = nbytes
        self.device = pool.device
        self.live = True
        self.pool = pool


class BytePool:
    """Hands out byte blocks and takes them back; free blocks wait for reuse until `trim`, `close` or the limit.

    `allocate(nbytes)` makes a block (by default a 64-byte aligned uint8 array). `limit_bytes` bounds what live and
    free blocks and `reserve`d bytes take together; free blocks go first. Used from one thread, save `unreserve`.

    Counters (bytes, or calls): pool_bytes (live + free), pool_peak_bytes, live_bytes, live_peak_bytes, takes, hits.
    """

    def __init__(
        self,
        device: str,
        limit_bytes: int | None = None,
        allocate: Callable[[int], Any] = aligned_bytes,
    ) -> None:
        self.device = device
        self.limit_bytes = limit_bytes
        self.pool_bytes = self.pool_peak_bytes = 0
        self.live_bytes = self.live_peak_bytes = 0
        self.takes = self.hits = 0
        self._allocate = allocate
        self._free: dict[int, list[Any]] = {}
        self._reserved = 0
        self._unreserved: deque[int] = deque()
        self._closed = False

    def take(self, nbytes: int) -> PooledBuffer:
        """A buffer of at least `nbytes`; the block last given back first, while its lines may be in cache.

        Raises: MemoryLimitError (names wanted, live and limit), ClosedError.
        """
        if nbytes < 0:
            raise DeviceError(f"a buffer of {nbytes} bytes was asked for", device=self.device)
        size = size_class(nbytes)
        blocks = self._free.get(size)
        if blocks:
            self.hits += 1
            block = blocks.pop()
        else:
            block, size = self._take_wider(size) or self._make(nbytes, size)
        self.takes += 1
        self.live_bytes += size
        if self.live_bytes > self.live_peak_bytes:
            self.live_peak_bytes = self.live_bytes
        return PooledBuffer(self, block, size)

    def give(self, buffer: Buffer) -> None:
        """Take `buffer` back. Raises: DeviceError for a second time, or for a buffer of another pool."""
        if not isinstance(buffer, PooledBuffer) or buffer.pool is not self:
            raise DeviceError(
                f"a buffer of {buffer.device} was given back to {self.device}, which never handed it out",
                device=self.device,
            )
        if not buffer.live:
            raise DeviceError(f"a buffer of {buffer.nbytes} bytes was given back twice", device=self.device)
        buffer.live = False
        size = buffer.nbytes
        self.live_bytes -= size
        # A block trimmed to fit under the limit is of no class, and a closed pool keeps nothing.
        if self._closed or size_class(size) != size:
            self.pool_bytes -= size
        else:
            self._free.setdefault(size, []).append(buffer.raw)

    def reserve(self, nbytes: int) -> None:
        """Count `nbytes` that live outside the pool against the limit. Raises: MemoryLimitError."""
        self._settle()
        if not self._fits(nbytes):
            raise self._too_much(nbytes)
        self._reserved += nbytes

    def unreserve(self, nbytes: int) -> None:
        """Undo a `reserve`; may be called from any thread (a finalizer), and counts from the next `reserve` on."""
        self._unreserved.append(nbytes)

    def trim(self) -> None:
        """Drop the free blocks."""
        self.pool_bytes -= self.free_bytes
        self._free.clear()

    def close(self) -> None:
        """Drop the free blocks; live ones go when they are given back. A take is refused from now on."""
        self._closed = True
        self.trim()

    @property
    def free_bytes(self) -> int:
        """Bytes that wait for reuse."""
        return self.pool_bytes - self.live_bytes

    def stats(self) -> dict[str, int]:
        """The counters by name."""
        self._settle()
        return {
            "pool_bytes": self.pool_bytes,
            "pool_peak_bytes": self.pool_peak_bytes,
            "live_bytes": self.live_bytes,
            "live_peak_bytes": self.live_peak_bytes,
            "reserved_bytes": self._reserved,
            "takes": self.takes,
            "hits": self.hits,
        }

    def _take_wider(self, size: int) -> tuple[Any, int] | None:
        if self.pool_bytes == self.live_bytes:
            return None
        for _ in range(_WIDER):
            size = size_class(size + 1)
            blocks = self._free.get(size)
            if blocks:
                self.hits += 1
                return blocks.pop(), size
        return None

    def _make(self, nbytes: int, size: int) -> tuple[Any, int]:
        if self._closed:
            raise ClosedError(f"{self.device} is closed", device=self.device)
        self._settle()
        if not self._fits(size):
            # What the class adds must not be what breaks the limit.
            size = max(ALIGNMENT, math.ceil(nbytes / ALIGNMENT) * ALIGNMENT)
            if not self._fits(size):
                raise self._too_much(nbytes)
        try:
            block = self._allocate(size)
        except MemoryError as error:
            raise self._too_much(nbytes) from error
        self.pool_bytes += size
        self.pool_peak_bytes = max(self.pool_peak_bytes, self.pool_bytes)
        return block, size

    def _fits(self, nbytes: int) -> bool:
        """Whether `nbytes` more stay under the limit, after free blocks were dropped as far as needed."""
        if self.limit_bytes is None:
            return True
        room = self.limit_bytes - self._reserved - nbytes
        if self.live_bytes > room:
            return False
        for size in sorted(self._free, reverse=True):
            blocks = self._free[size]
            while blocks and self.pool_bytes > room:
                blocks.pop()
                self.pool_bytes -= size
        return True

    def _settle(self) -> None:
        while self._unreserved:
            self._reserved -= self._unreserved.popleft()

    def _too_much(self, nbytes: int) -> MemoryLimitError:
        limit = "the system has no more" if self.limit_bytes is None else f"limit {self.limit_bytes} bytes"
        return MemoryLimitError(
            f"{self.device} has no memory for {nbytes} bytes: live {self.live_bytes + self._reserved} bytes, {limit}",
            device=self.device,
        )
