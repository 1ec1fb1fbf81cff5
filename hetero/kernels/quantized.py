"""Arithmetic on quantised bytes through floats that hold every sum exactly, and rounding back to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import tensor
from hetero.kernels.operands import fail
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

BYTES = frozenset((np.dtype(np.int8), np.dtype(np.uint8)))


def exact_float(depth: int) -> np.dtype[Any]:
    """The float in which `depth` products of two bytes, each less a zero point, sum without rounding."""
    return np.dtype(np.float32 if depth * 255 * 255 <= 1 << 24 else np.float64)


def require_bytes(op: Operation, *specs: TensorSpec) -> None:
    """Raises: UnsupportedError unless all are int8 or uint8."""
    for spec in specs:
        if spec.dtype not in BYTES:
            raise UnsupportedError(f"{op.op_type} of {spec.dtype}", op=op.id, node=op.name)


def per_map(op: Operation, spec: TensorSpec | None, maps: int, operand: str) -> None:
    """Raises: KernelError unless the operand is left out, one number, or one for each of `maps`."""
    if spec is not None and not (spec.size == 1 or spec.shape == (maps,)):
        fail(op, f"must be one number or {maps}, has shape {list(spec.shape)}", operand)


def one_number(op: Operation, spec: TensorSpec | None, operand: str) -> None:
    """Raises: KernelError unless the operand is left out or holds one number."""
    if spec is not None and spec.size != 1:
        fail(op, f"must be one number, has shape {list(spec.shape)}", operand)


def one_scale(op: Operation, specs: Sequence[Spec], index: int, operand: str) -> None:
    """Raises: KernelError unless the operand is one number, UnsupportedError unless it is float32."""
    spec = tensor(op, specs, index)
    one_number(op, spec, operand)
    if spec.dtype != np.float32:
        raise UnsupportedError(f"scale of {spec.dtype}", op=op.id, node=op.name, operand=operand)


def centred(xp: Any, source: Array, zero_point: Array | None, target: Array) -> None:
    """source - zero_point into a float target; the zero point broadcasts."""
    xp.copyto(target, source, casting="unsafe")
    if zero_point is not None:
        xp.subtract(target, zero_point, out=target)


EXACT_DEPTH = 256
"""Products of two numbers of 9 bits that float32 adds up exactly: 256 * 255² < 2²⁴."""


def by_depth(weights: Array) -> list[Array]:
    """`weights` (K, N) cut into pieces of so few rows that a product of bytes with one of them is exact in float32."""
    return [weights[k : k + EXACT_DEPTH] for k in range(0, max(len(weights), 1), EXACT_DEPTH)]


def rounded(xp: Any, source: Array, shared: bool) -> tuple[Array, Array, Array]:
    """(levels from 0 to 255, zero point, step) of rows over their range, which includes 0; all in float32.

    The rows share one range, or each has its own.
    """
    axis = None if shared else 1
    low = xp.minimum(source.min(axis=axis, keepdims=True), 0)
    high = xp.maximum(source.max(axis=axis, keepdims=True), 0)
    step = ((high - low) / np.float32(255)).astype(np.float32)
    step = xp.where(step == 0, np.float32(1), step)
    zero = xp.rint(xp.clip(-low / step, 0, 255))
    return xp.clip(xp.rint(source / step) + zero, 0, 255), zero, step


def rounded_product(
    xp: Any, weights: Sequence[Array], scale: Array, shared: bool, source: Array, target: Array
) -> None:
    """source (rows, K) @ weights (K, N) into target, with the source rounded to 256 levels over its range.

    The rows share one range, or each has its own. `weights` are centred bytes in a float that sums them exactly, whole
    or in the pieces of `by_depth`; `scale` is theirs, one or N.
    """
    if not source.size:
        target.fill(0)
        return
    levels, zero, step = rounded(xp, source, shared)
    levels = (levels - zero).astype(weights[0].dtype)
    product, done = xp.matmul(levels[:, : len(weights[0])], weights[0]), len(weights[0])
    if len(weights) > 2:  # one sum of two exact floats is rounded once, as the sum of all would be
        product = product.astype(np.float64)
    for piece in weights[1:]:
        product += xp.matmul(levels[:, done : done + len(piece)], piece)
        done += len(piece)
    xp.multiply(product.astype(np.float32), step * scale, out=target)


def requantize(xp: Any, sums: Array, scale: Array, zero_point: Array | None, target: Array) -> None:
    """round_half_even(sums * scale) + zero_point into bytes, saturating. `sums` (float) is overwritten."""
    limits = np.iinfo(target.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        xp.multiply(sums, scale, out=sums)
        xp.rint(sums, out=sums)
        if zero_point is not None:
            xp.add(sums, zero_point, out=sums)
        xp.clip(sums, limits.min, limits.max, out=sums)
        xp.copyto(target, sums, casting="unsafe")
