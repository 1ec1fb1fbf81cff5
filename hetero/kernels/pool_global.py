"""GlobalAveragePool, GlobalMaxPool and GlobalLpPool: each plane to one element."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel
from hetero.kernels.fused import in_turn
from hetero.kernels.pool import FLOATS, lp_order, raise_to
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.window import spatial
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Spec, TensorSpec


def _planes(op: Operation, x: TensorSpec) -> tuple[int, int]:
    """(planes, elements of one). Raises: UnsupportedError for other than float32/64; KernelError for empty planes."""
    if x.dtype not in FLOATS:
        raise UnsupportedError(f"{op.op_type} of {x.dtype}", op=op.id, node=op.name)
    planes = x.shape[0] * x.shape[1]
    elements = int(np.prod(x.shape[2:]))
    if planes and not elements:
        raise KernelError(f"planes of {list(x.shape[2:])} have no element", op=op.id, node=op.name)
    return planes, elements


def _output(x: TensorSpec) -> TensorSpec:
    return TensorSpec(x.dtype, (*x.shape[:2], *(1,) * (len(x.shape) - 2)))


@kernel("GlobalAveragePool", versions=(1, 22))
def global_average_pool(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, D1…) -> (N, C, 1…), the mean of each plane."""
    x = spatial(op, specs)
    if x.dtype in NARROW:
        return widened(global_average_pool, op, specs, xp)
    planes, elements = _planes(op, x)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, y = inputs[0].reshape(planes, elements), outputs[0].reshape(planes)
        scale = xp.asarray(elements, x.dtype)
        calls = (
            [partial(xp.add.reduce, source, 1, None, y)] if xp is np else [partial(source.sum, 1, None, y)]
        )
        calls.append(partial(xp.divide, y, scale, y))
        return in_turn(calls if planes else [])

    return computed((_output(x),), bind, contiguous=(0,))


@kernel("GlobalMaxPool", versions=(1, 22))
def global_max_pool(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, D1…) -> (N, C, 1…), the largest of each plane."""
    x = spatial(op, specs)
    if x.dtype in NARROW:
        return widened(global_max_pool, op, specs, xp)
    planes, elements = _planes(op, x)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, y = inputs[0].reshape(planes, elements), outputs[0].reshape(planes)
        return (lambda: source.max(axis=1, out=y)) if planes else lambda: None

    return computed((_output(x),), bind, contiguous=(0,))


@kernel("GlobalLpPool", versions=(2, 22))
def global_lp_pool(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, D1…) -> (N, C, 1…), (sum of |x|^p) ^ (1/p) of each plane; p is 2 unless given."""
    x = spatial(op, specs)
    if x.dtype in NARROW:
        return widened(global_lp_pool, op, specs, xp)
    planes, elements = _planes(op, x)
    p = lp_order(op)
    parts: tuple[Part, ...] = (((planes, elements), x.dtype),) if planes else ()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if not planes:
            return lambda: None
        (powers,) = carve(workspace, *parts)
        source, y = inputs[0].reshape(planes, elements), outputs[0].reshape(planes)

        def call() -> None:
            raise_to(xp, source, powers, p)
            powers.sum(axis=1, out=y)
            xp.power(y, 1 / p, out=y)

        return call

    return computed((_output(x),), bind, contiguous=(0,), workspace_bytes=carved_bytes(*parts))
