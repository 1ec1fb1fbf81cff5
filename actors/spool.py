"""An unnamed file that takes over what lies in the driver's memory, so that all actors of the machine can map it."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hetero.mapped import map_file
from hetero.types import HostArray

_PAGE_BYTES, _LINE_BYTES = 4096, 64
_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs"))


class Spool:
    """A file without a name, gone with the last process that has it open or mapped, however that ends.

    Its pages belong to the system's cache: they are shared by all who map them, and are the first to go when memory is
    short, since they can be read again.
    """

    def __init__(self, nbytes: int) -> None:
        """Room for so many bytes. Raises: OSError where there is none on a disk."""
        with tempfile.TemporaryFile(buffering=0, dir=_directory(nbytes)) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self._data: HostArray | None = None
        self._end = 0

    @property
    def path(self) -> str:
        """Where processes of the same user on this machine find the file."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def add(self, array: HostArray) -> Callable[[], HostArray]:
        """Write the elements; the call returned shows them, read-only. Raises: OSError."""
        align = _PAGE_BYTES if array.nbytes >= _PAGE_BYTES else _LINE_BYTES
        start = -(-self._end // align) * align
        left, at = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, start
        while left:
            written = os.pwrite(self._descriptor, left, at)
            left, at = left[written:], at + written
        self._end = start + array.nbytes
        dtype, shape, nbytes = array.dtype, array.shape, array.nbytes
        return lambda: self._bytes(start, nbytes).view(dtype).reshape(shape)

    def _bytes(self, start: int, nbytes: int) -> HostArray:
        if self._data is None or len(self._data) < start + nbytes:
            self._data = map_file(self._descriptor, self.path)
        return self._data[start : start + nbytes]


def _directory(nbytes: int) -> str:
    """Where temporary files lie on a disk that has room for twice as much."""
    for folder in (tempfile.gettempdir(), "/var/tmp"):
        if not _is_memory(folder):
            status = os.statvfs(folder)
            if status.f_bavail * status.f_frsize >= 2 * nbytes:
                return folder
    raise OSError(f"there is no disk with room for {nbytes} bytes of temporary files")


def _is_memory(folder: str) -> bool:
    """Whether files there take memory; raises OSError where the system does not tell."""
    real = os.path.realpath(folder, strict=True)
    found, kind = "", ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, type_, *_ = line.split()
        if Path(real).is_relative_to(point) and len(point) >= len(found):
            found, kind = point, type_
    return kind in _MEMORY
