"""What declared shapes demand of the concrete ones: the guards of a program's inputs."""

from __future__ import annotations

from collections.abc import Sequence

from hetero.program.program import Port, ShapeGuard
from hetero.types import TensorType


def guards_for(inputs: Sequence[Port]) -> tuple[ShapeGuard, ...]:
    """One guard per extent that `inputs` declare as a number, a symbol or an expression; input and axis order."""
    return tuple(
        ShapeGuard(port.name, axis, dim)
        for port in inputs
        if isinstance(port.type, TensorType) and port.type.shape is not None
        for axis, dim in enumerate(port.type.shape)
        if dim is not None
    )
