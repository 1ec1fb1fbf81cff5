"""Scratch memory: carving a kernel's workspace into aligned arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.types import Array

ALIGNMENT_BYTES = 64

Part = tuple[Sequence[int], npt.DTypeLike]
"""(shape, dtype) of one array."""


def _nbytes(part: Part) -> int:
    return math.prod(part[0]) * np.dtype(part[1]).itemsize


def carved_bytes(*parts: Part) -> int:
    """Bytes of workspace that `carve` needs for these parts."""
    total = 0
    for part in parts:
        total += -(-_nbytes(part) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return total


def carve(workspace: Any, *parts: Part) -> list[Array]:
    """Arrays over consecutive, 64-byte aligned stretches of `carved_bytes(*parts)` bytes (uint8).

    Their contents are whatever the workspace held. The workspace may be None where every part is empty.
    """
    arrays = []
    at = 0
    on_host = workspace.__class__ is np.ndarray
    for part in parts:
        shape, dtype = tuple(part[0]), np.dtype(part[1])
        n = math.prod(shape) * dtype.itemsize
        if workspace is None:
            arrays.append(np.empty(shape, dtype))
        elif on_host:  # what is bound anew in each run carves anew: this is half the time of the general way
            arrays.append(np.ndarray(shape, dtype, workspace, at))
        else:
            arrays.append(workspace[at : at + n].view(dtype).reshape(shape))
        at += -(-n // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return arrays
