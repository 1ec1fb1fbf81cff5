"""The bounds on what one operator may declare: checked before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from hetero.errors import MemoryLimitError
from hetero.program.operation import Operation
from hetero.types import TensorSpec

MAX_VALUE_ELEMENTS = 1 << 40
MAX_VALUE_BYTES = 64 << 30
KNOWN_VALUE_ELEMENTS = 4096
"""Results with at most this many elements are kept in `TensorSpec.value`, for folding what follows."""


def bounded(op: Operation, dtype: np.dtype[np.generic], shape: Iterable[int]) -> TensorSpec:
    """The spec of an output whose extents came from data.

    Raises: MemoryLimitError where it would pass MAX_VALUE_ELEMENTS or MAX_VALUE_BYTES.
    """
    extents = tuple(int(d) for d in shape)
    elements = math.prod(extents)
    nbytes = elements * dtype.itemsize
    if elements > MAX_VALUE_ELEMENTS or nbytes > MAX_VALUE_BYTES:
        raise MemoryLimitError(
            f"an output of shape {list(extents)} would hold {elements} elements of {dtype} ({nbytes} bytes);"
            f" the bound is {MAX_VALUE_ELEMENTS} elements and {MAX_VALUE_BYTES} bytes",
            op=op.id,
            node=op.name,
        )
    return TensorSpec(dtype, extents)
