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
