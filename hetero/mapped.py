"""Arrays that lie in files: mapped read-only, found again by other processes, and their pages let go of."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.lib.array_utils import byte_bounds

from hetero.types import HostArray

_DROP = getattr(mmap, "MADV_DONTNEED", None)
_DROPPED_BYTES = 64 << 10
"""Arrays below are not worth a system call."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a file is: another one at its path, or other contents, have another stamp."""

    inode: int
    nbytes: int
    mtime_ns: int

    @classmethod
    def of(cls, file: int | str) -> Stamp:
        """That of an open file, or the one at a path. Raises: OSError."""
        status = os.stat(file)
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes [offset, offset + nbytes) of the file at `path`, as long as it has this stamp."""

    path: str
    stamp: Stamp
    offset: int
    nbytes: int


# By mapping, which an array's bases lead to: the file, and where the mapping begins in memory.
_known: WeakKeyDictionary[mmap.mmap, tuple[str, Stamp, int]] = WeakKeyDictionary()


def map_file(descriptor: int, path: str) -> HostArray:
    """A whole file that is open for reading, as read-only uint8. `path` is where other processes find it.

    The mapping lasts as long as an array shows a part of it, whatever becomes of the descriptor.
    Raises: OSError; ValueError for an empty file.
    """
    stamp = Stamp.of(descriptor)
    mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    data: HostArray = np.frombuffer(mapping, np.uint8)
    _known[mapping] = path, stamp, _address(data)
    return data


def range_of(array: HostArray) -> FileRange | None:
    """Where the bytes of a contiguous array lie, if it is a part of a file that was mapped here."""
    known = _file(array)
    if known is None or not array.flags.c_contiguous:
        return None
    _, path, stamp, start = known
    return FileRange(path, stamp, _address(array) - start, array.nbytes)


def open_ranges(ranges: Sequence[FileRange]) -> list[HostArray]:
    """The bytes of each range, mapped: flat, read-only; each file once.

    Raises: OSError where a path leads to no file, or to another one.
    """
    files: dict[tuple[str, Stamp], HostArray] = {}
    out = []
    for wanted in ranges:
        key = wanted.path, wanted.stamp
        data = files.get(key)
        if data is None:
            data = files[key] = _open(wanted.path, wanted.stamp)
        out.append(data[wanted.offset : wanted.offset + wanted.nbytes])
    return out


def _open(path: str, stamp: Stamp) -> HostArray:
    different = FileNotFoundError(f"{path} is another file than the one that is meant")
    if Stamp.of(path) != stamp:  # before it is opened: a pipe would wait
        raise different
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if Stamp.of(descriptor) != stamp:
            raise different
        return map_file(descriptor, path)
    finally:
        os.close(descriptor)


def let_go(*arrays: Any) -> None:
    """Whoever needed these has what it wanted: pages of files that they show leave this process. They come back, from
    the system's cache or the file, when something reads them; other arrays are left alone."""
    for array in arrays:
        if _DROP is None or not isinstance(array, np.ndarray) or array.nbytes < _DROPPED_BYTES:
            continue
        known = _file(array)
        if known is None:
            continue
        mapping, _, _, start = known
        low, high = byte_bounds(array)
        first = -(-(low - start) // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (high - start) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            with suppress(OSError):  # it is advice
                mapping.madvise(_DROP, first, length)


def _file(array: HostArray) -> tuple[mmap.mmap, str, Stamp, int] | None:
    """The mapping that the array shows a part of, and what is known of it."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    known = _known.get(base) if isinstance(base, mmap.mmap) else None
    return None if known is None else (base, *known)


def _address(array: HostArray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
