"""Images of jitted functions on disk, beside numba's own cache: a process that finds one does without numba.

What numba goes by decides: the source of the function and of its helpers, the versions of numba and llvmlite, the
machine, and numba's settings. What does not fit in any of these is not looked at.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from uuid import uuid4

from hetero.kernels.machine_code import Image
from hetero.kernels.processor import description

_FORMAT = "1"
_DIGEST = 32


def read(name: str, file: str, stamp: str) -> Image | None:
    """The image that was written under this name for the source `file`, if the stamp is still the same."""
    for folder in _folders(file):
        with suppress(OSError, ImportError):
            data = (folder / _file_name(name, file)).read_bytes()
            head, body = data[: 2 * _DIGEST], data[2 * _DIGEST :]
            if head == _digest(stamp.encode()) + _digest(body):
                return Image.unpacked(body)
    return None


def write(name: str, file: str, stamp: str, image: Image) -> None:
    """Keep an image, where there is a folder that can be written: a file appears whole or not at all."""
    body = image.packed()
    for folder in _folders(file):
        with suppress(OSError, ImportError):
            folder.mkdir(parents=True, exist_ok=True)
            target = folder / _file_name(name, file)
            fresh = target.with_suffix(f".{uuid4().hex}")  # readable for whoever may read what is made here
            fresh.write_bytes(_digest(stamp.encode()) + _digest(body) + body)
            fresh.replace(target)
            return


def stamp_of(files: Iterable[str], *more: str) -> str:
    """What changes when one of the files does, or one of the texts `more`."""
    parts = []
    for file in sorted(files):
        stat = os.stat(file)
        parts.append(f"{Path(file).name} {stat.st_mtime_ns} {stat.st_size}")
    return "\n".join([*parts, *more])


def _folders(file: str) -> list[Path]:
    """Where images for a source file may lie: in the first that can be written. As numba: NUMBA_CACHE_DIR, or beside
    the source, or else the user's own cache."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return [Path(chosen) / "hetero"]
    own = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [Path(file).parent / "__pycache__", Path(own) / "hetero"]


def _file_name(name: str, file: str) -> str:
    return f"{Path(file).stem}.{name}.{machine()}.image"


@cache
def machine() -> str:
    """A name for everything but the source: two machines, or two installations, that share a folder keep apart."""
    settings = sorted(
        f"{k}={v}" for k, v in os.environ.items() if k.startswith("NUMBA_") and k not in _NO_MATTER
    )
    versions = [metadata.version(package) for package in ("numba", "llvmlite")]
    found = [
        _FORMAT,
        sys.implementation.cache_tag or "",
        platform.machine(),
        *versions,
        *settings,
        description(),
    ]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


_NO_MATTER = frozenset({"NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR", "NUMBA_THREADING_LAYER"})


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
