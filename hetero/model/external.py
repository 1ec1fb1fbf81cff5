"""External data: every file mapped once, and only from inside the model's own directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import onnx_ir as ir

from hetero.errors import ModelError
from hetero.mapped import map_file
from hetero.types import HostArray


class DataFiles:
    """The data files beside one model.

    Each file is opened and mapped once however many tensors lie in it: a mapping holds a file descriptor, and models
    with thousands of tensors would run out of them. `base_dir` None: no directory is known, so external data are
    refused, unless the tensor itself (of an onnx_ir.Model that was loaded from a file) says where it came from.
    """

    def __init__(self, base_dir: str | os.PathLike[str] | None) -> None:
        self._base = None if base_dir is None else os.path.realpath(os.fspath(base_dir) or ".")
        self._maps: dict[str, HostArray] = {}

    def slice(self, name: str, tensor: ir.ExternalTensor, nbytes: int) -> Callable[[], HostArray]:
        """Check the place of `tensor`'s bytes now; the call returned maps them (flat uint8, read-only) when asked.

        Raises: ModelError naming the tensor for a path that leaves the directory, a missing file, or a range that is
        not `nbytes` long or passes the end of the file.
        """
        base = self._base
        if base is None and tensor.base_dir:
            base = os.path.realpath(os.fspath(tensor.base_dir))
        if base is None:
            raise ModelError(
                f"tensor {name!r} has external data and the model's directory is not known: pass base_dir",
                operand=name,
            )
        path, size = confined(name, base, os.fspath(tensor.location))
        offset = tensor.offset or 0
        if tensor.length is not None and tensor.length != nbytes:
            raise ModelError(
                f"tensor {name!r} has external length {tensor.length}; its dtype and shape need {nbytes}",
                operand=name,
            )
        if offset < 0 or offset + nbytes > size:
            raise ModelError(
                f"tensor {name!r} ends at byte {offset + nbytes} of {tensor.location!r}, which has {size}",
                operand=name,
            )
        return lambda: self._map(name, path)[offset : offset + nbytes] if nbytes else np.empty(0, np.uint8)

    def _map(self, name: str, path: str) -> HostArray:
        mapped = self._maps.get(path)
        if mapped is None:
            try:
                # `path` is fully resolved; O_NOFOLLOW refuses a link put there since it was checked.
                descriptor = os.open(
                    path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
                )
                try:
                    mapped = map_file(descriptor, path)
                finally:
                    os.close(descriptor)
            except (OSError, ValueError) as error:
                raise ModelError(
                    f"the data file of tensor {name!r} cannot be read: {error}", operand=name
                ) from error
            self._maps[path] = mapped
        return mapped


def confined(name: str, base: str, location: str) -> tuple[str, int]:
    """The real path of `location` under `base`, and the file's size in bytes."""
    parts = {*PurePosixPath(location).parts, *PureWindowsPath(location).parts}
    if (
        not location
        or "\0" in location
        or ".." in parts
        or PurePosixPath(location).is_absolute()
        or PureWindowsPath(location).anchor
    ):
        raise ModelError(
            f"tensor {name!r} has the external location {location[:200]!r}, which is not in the model's directory",
            operand=name,
        )
    try:
        real = os.path.realpath(os.path.join(base, location), strict=True)
        status = os.stat(real)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the data file {location[:200]!r} of tensor {name!r} is missing", operand=name
        ) from error
    if not Path(real).is_relative_to(base):
        raise ModelError(
            f"tensor {name!r} has the external location {location[:200]!r}, which leaves the model's directory",
            operand=name,
        )
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(
            f"the data file {location[:200]!r} of tensor {name!r} is no regular file", operand=name
        )
    return real, status.st_size
