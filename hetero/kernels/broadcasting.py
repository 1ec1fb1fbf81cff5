"""What operators of several tensors ask of them: one dtype they compute in, shapes that broadcast."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Stretch
from hetero.program.operation import Operation
from hetero.types import FLOATS, Spec, TensorSpec

SIGNED = frozenset(np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
UNSIGNED = frozenset(np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
INTEGERS = SIGNED | UNSIGNED
NUMBERS = FLOATS | INTEGERS
BOOL = np.dtype(bool)


def broadcast(op: Operation, *specs: TensorSpec) -> tuple[int, ...]:
    """The shape the operands broadcast to. Raises: KernelError where they do not."""
    first = specs[0].shape
    if all(s.shape == first for s in specs[1:]):
        return first
    rank = max(len(s.shape) for s in specs)
    found = [1] * rank
    for s in specs:
        for i, d in enumerate(s.shape, rank - len(s.shape)):
            if d != 1:
                if found[i] not in (1, d):
                    shapes = ", ".join(str(list(s.shape)) for s in specs)
                    raise KernelError(f"shapes {shapes} do not broadcast", op=op.id, node=op.name)
                found[i] = d
    return tuple(found)


def stretches(op: Operation, dtype: np.dtype[Any]) -> Stretch:
    """That of a kernel whose result has this dtype and the shape that its operands, all tensors, broadcast to."""

    def stretch(specs: Sequence[Spec]) -> tuple[TensorSpec, int]:
        return TensorSpec(dtype, broadcast(op, *specs)), 0  # type: ignore[arg-type]

    return stretch


def broadcasts_to(spec: TensorSpec, shape: tuple[int, ...]) -> bool:
    """Whether the operand broadcasts to `shape` (unidirectionally)."""
    gap = len(shape) - len(spec.shape)
    return gap >= 0 and all(d in (1, e) for d, e in zip(spec.shape, shape[gap:], strict=True))


def one_dtype(op: Operation, specs: Iterable[TensorSpec], allowed: frozenset[np.dtype[Any]]) -> np.dtype[Any]:
    """The dtype that all operands share.

    Raises: KernelError where they differ, UnsupportedError where it is not in `allowed`.
    """
    dtypes = [s.dtype for s in specs]
    if dtypes.count(dtypes[0]) != len(dtypes):
        raise KernelError(f"operands differ in dtype: {', '.join(map(str, dtypes))}", op=op.id, node=op.name)
    if dtypes[0] not in allowed:
        raise UnsupportedError(f"{op.id} of {dtypes[0]}", op=op.id, node=op.name)
    return dtypes[0]


def overwritable(output: TensorSpec, *inputs: TensorSpec) -> tuple[tuple[int, int], ...]:
    """(input, 0) for each input as large and of the same dtype as the output: right for single ufuncs only."""
    return tuple((i, 0) for i, s in enumerate(inputs) if s.shape == output.shape and s.dtype == output.dtype)


def elements(shape: Iterable[int]) -> int:
    """Number of elements of a shape."""
    return math.prod(shape)
