"""One road to BLAS: matrix products of any strides, with batches folded into one call where they can be. Large ones of
float32 run in tiles, on threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import KernelError
from hetero.kernels.base import Call
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm_gathered import bind_gathered_product, is_gathered
from hetero.kernels.gemm_packed import as_rows
from hetero.program.operation import Operation
from hetero.types import Array


def matmul_shape(op: Operation, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of numpy.matmul's result. Raises: KernelError where the operands do not fit."""
    if not a or not b:
        raise KernelError("a scalar has no matrix product", op=op.id, node=op.name)
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    rank = max(len(left), len(right)) - 2
    first = (1,) * (rank - len(left) + 2) + left[:-2]
    second = (1,) * (rank - len(right) + 2) + right[:-2]
    if left[-1] != right[-2] or any(m != n and 1 not in (m, n) for m, n in zip(first, second, strict=True)):
        raise KernelError(f"shapes {list(a)} and {list(b)} do not multiply", op=op.id, node=op.name)
    batch = tuple(n if m == 1 else m for m, n in zip(first, second, strict=True))
    return (*batch, *left[-2:-1][: len(a) > 1], *right[-1:][: len(b) > 1])


def bind_matmul(xp: Any, a: Array, b: Array, out: Array) -> Call:
    """The call out = a @ b (numpy.matmul's rules), where `out` is C-contiguous and of `matmul_shape`.

    Batches of `a` against one matrix `b` become one product. An operand whose strides BLAS cannot read is copied on
    each call, into memory that the call holds.
    """
    if is_gathered(xp, a.shape, b.shape, out.dtype):
        return bind_gathered_product(a, b, out)
    if a.ndim == b.ndim == 2 and a.flags.c_contiguous and b.flags.forc and out.size and a.size and xp is np:
        return partial(np.matmul, a, b, out)
    vector_a, vector_b = a.ndim == 1, b.ndim == 1
    a = a[None, :] if vector_a else a
    b = b[:, None] if vector_b else b
    batch = out.shape[: out.ndim - (not vector_a) - (not vector_b)]
    out = out.reshape(*batch, a.shape[-2], b.shape[-1])
    if out.size == 0:
        return in_turn([])
    if a.shape[-1] == 0:
        return partial(out.fill, 0)
    if b.ndim > 2 and all(d == 1 for d in b.shape[:-2]):
        b = b.reshape(b.shape[-2:])
    if a.ndim > 2 and b.ndim == 2:
        rows = as_rows(a)
        if rows is not None:
            a, out = rows, out.reshape(-1, out.shape[-1])
            if is_gathered(xp, a.shape, b.shape, out.dtype):
                return bind_gathered_product(a, b, out)
    calls: list[Call] = []
    operands = []
    for operand in (a, b):
        if xp is np and operand.dtype.kind == "f" and not _blas_reads(operand):
            packed = xp.empty(operand.shape, operand.dtype)
            calls.append(partial(packed.__setitem__, ..., operand))
            operand = packed
        operands.append(operand)
    calls.append(partial(xp.matmul, *operands, out))
    return in_turn(calls)


def _blas_reads(a: Array) -> bool:
    """Whether BLAS takes the matrices of `a` as they lie: one of the axes dense, the other one no shorter."""
    (m, n), (row, column), item = a.shape[-2:], a.strides[-2:], a.itemsize
    by_rows = (column == item or n == 1) and (row >= n * item or m == 1) and row % item == 0
    by_columns = (row == item or m == 1) and (column >= m * item or n == 1) and column % item == 0
    return bool((by_rows or by_columns) and row >= 0 and column >= 0)


def transposed(array: Array, axes: Sequence[int] | None = None) -> Array:
    """A view with the last two axes exchanged."""
    order = list(range(array.ndim)) if axes is None else list(axes)
    order[-2], order[-1] = order[-1], order[-2]
    return array.transpose(order)
