"""BitCast: the same bits under another dtype of the same width."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hetero.kernels.base import Call, Compiled, kernel, tensor, viewed
from hetero.kernels.operands import dtype_attribute, fail
from hetero.program.operation import Operation
from hetero.types import STRING, Array, Spec, TensorSpec


@kernel("BitCast", versions=(26,), strided=True, views=True)
def bit_cast(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> X's bits as the dtype that `to` names, which must be as wide: a view."""
    x, target = tensor(op, specs, 0), dtype_attribute(op, "to")
    if target is None:
        fail(op, "is missing", "to")
    if STRING in (x.dtype, target) or target.itemsize != x.dtype.itemsize:
        fail(op, f"{x.dtype} has no bits in common with {target}", "to")

    def view(inputs: Sequence[Any]) -> tuple[Array]:
        return (inputs[0].view(target),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return partial(outputs[0].__setitem__, ..., inputs[0].view(target))

    return viewed([TensorSpec(target, x.shape)], view, bind)
