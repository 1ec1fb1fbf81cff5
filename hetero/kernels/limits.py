"""The bounds on what one operator may declare: checked before anything is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import NoReturn

import numpy as np

from hetero.errors import KernelError, MemoryLimitError
from hetero.kernels.base import Compiled
from hetero.program.operation import Operation
from hetero.types import TensorSpec

MAX_VALUE_ELEMENTS = 1 << 40
MAX_VALUE_BYTES = 64 << 30
KNOWN_VALUE_ELEMENTS = 4096
"""Results with at most this many elements are kept in `TensorSpec.value`, for folding what follows."""
MAX_STEPS = 1 << 20
"""Positions that an attribute alone may ask a kernel to visit one by one (a pool's kernel_shape, say): it costs the
model no byte to name any number there."""

_VALUE_BYTES: ContextVar[int] = ContextVar("VALUE_BYTES", default=MAX_VALUE_BYTES)
_CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class limited:  # noqa: N801 - a context manager: a class costs half of what a generator does, and every run enters it
    """In the block no single value, and no kernel's workspace, may take more than `max_bytes`."""

    __slots__ = ("_max_bytes", "_token")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def __enter__(self) -> None:
        self._token = _VALUE_BYTES.set(self._max_bytes)

    def __exit__(self, *error: object) -> None:
        _VALUE_BYTES.reset(self._token)


@cache
def machine_bytes() -> int:
    """Memory of this machine, or of the container this process is in; MAX_VALUE_BYTES where neither is known.

    A value beyond it would not fail to allocate (the system promises more than it has), but end the process.
    """
    found = [MAX_VALUE_BYTES]
    with suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _CGROUP:
        with suppress(OSError, ValueError):  # "max" where there is no limit
            found.append(int(Path(path).read_text()))
    return min(n for n in found if n > 0)


def bounded(op: Operation, dtype: np.dtype[np.generic], shape: Iterable[int]) -> TensorSpec:
    """The spec of an output whose extents came from data or attributes.

    Extents of 0 make nothing small: the others are held to the bound, as NumPy computes strides over them all the same.
    Raises: KernelError for a negative extent; MemoryLimitError where it would pass MAX_VALUE_ELEMENTS or the bytes that
    `limited` allows.
    """
    spec = TensorSpec(dtype, tuple(int(d) for d in shape))
    if min(spec.shape, default=0) < 0:
        raise KernelError(f"an output would have the shape {list(spec.shape)}", op=op.id, node=op.name)
    elements = math.prod(d or 1 for d in spec.shape)
    if elements > MAX_VALUE_ELEMENTS or elements * dtype.itemsize > _VALUE_BYTES.get():
        _refuse(op, spec, elements)
    return spec


def bounded_steps(op: Operation, steps: int, operand: str) -> int:
    """`steps`, the positions a kernel would visit one by one. Raises: MemoryLimitError beyond MAX_STEPS."""
    if steps > MAX_STEPS:
        raise MemoryLimitError(
            f"asks for {steps} positions; the bound is {MAX_STEPS}", op=op.id, node=op.name, operand=operand
        )
    return steps


def check_declared(op: Operation, compiled: Compiled) -> None:
    """What every kernel must pass, whether it looked itself or not: outputs and workspace within bounds.

    Raises: MemoryLimitError.
    """
    limit_bytes = _VALUE_BYTES.get()
    for spec in compiled.outputs:
        if isinstance(spec, TensorSpec):
            elements = math.prod(spec.shape)
            small = elements <= MAX_VALUE_ELEMENTS and elements * spec.dtype.itemsize <= limit_bytes
            if not small or min(spec.shape, default=1) < 1:
                bounded(op, spec.dtype, spec.shape)
    if compiled.workspace_bytes > limit_bytes:
        raise MemoryLimitError(
            f"needs {compiled.workspace_bytes} bytes of workspace; the bound is {_VALUE_BYTES.get()}"
            " (option max_value_bytes, and this machine's memory)",
            op=op.id,
            node=op.name,
        )


def _refuse(op: Operation, spec: TensorSpec, elements: int) -> NoReturn:
    raise MemoryLimitError(
        f"an output of shape {list(spec.shape)} would hold {elements} elements of {spec.dtype}"
        f" ({elements * spec.dtype.itemsize} bytes); the bound is {MAX_VALUE_ELEMENTS} elements and"
        f" {_VALUE_BYTES.get()} bytes"
        " (option max_value_bytes, and this machine's memory)",
        op=op.id,
        node=op.name,
    )
