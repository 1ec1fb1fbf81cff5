"""One row times a matrix, compiled: bound by memory, which is read in one stream where the matrix lies turned."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.broadcasting import elements
from hetero.kernels.derived import Keeper
from hetero.kernels.fused import in_turn
from hetero.kernels.jit import PARALLEL_ELEMENTS, enabled, jit, prange
from hetero.kernels.widen import is_constant
from hetero.types import Array

ELEMENTS = range(1 << 14, (1 << 24) + 1)
"""Of a matrix: so many that BLAS waits for memory, and so few (64 MiB) that a turned copy may be kept."""
SHORTEST = 64
"""Either side of a matrix."""
_PARALLEL_ELEMENTS = 8 * PARALLEL_ELEMENTS
_FLOAT32 = np.dtype(np.float32)


def _row_numpy(row: Array, turned: Array, out: Array) -> None:
    np.matmul(turned, row, out=out)


@jit("f4[1], f4[2], f4[1]!", twin=_row_numpy, reorder=True)
def row_product(row: Array, turned: Array, out: Array) -> None:
    """out[n] = Σ row[k] turned[n, k]."""
    for n in prange(turned.shape[0]):
        total = np.float32(0)
        for k in range(turned.shape[1]):
            total += row[k] * turned[n, k]
        out[n] = total


def is_row(xp: Any, a: tuple[int, ...], b: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether this is for the product of operands of these shapes, which alone decide."""
    if xp is not np or dtype != _FLOAT32 or len(b) != 2 or min(b) < SHORTEST or b[0] * b[1] not in ELEMENTS:
        return False
    return elements(a) == b[0] and enabled()


def bind_row(keep: Keeper, a: Array, b: Array, out: Array, *, turned: bool = False) -> Call:
    """The call out = a @ b for contiguous operands that `is_row` takes; with `turned`, `b` is the transpose already.

    A constant `b` is turned once, any other in each call.
    """
    calls: list[Call] = []
    rows = b
    if not turned and is_constant(b):
        rows = keep("turned", (b,), lambda: np.ascontiguousarray(b.T))
    elif not turned:
        rows = np.empty(b.shape[::-1], b.dtype)
        calls.append(partial(np.copyto, rows, b.T))
    row, target = a.reshape(-1), out.reshape(-1)
    function = row_product.variant(row, rows, target, parallel=rows.size >= _PARALLEL_ELEMENTS)
    return in_turn([*calls, partial(function, row, rows, target)])
