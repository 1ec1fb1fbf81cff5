"""CumSum and CumProd: running sums and products along one axis, from either end, with or without the element."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.broadcasting import NUMBERS, one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.operands import axis_of, fail, known_scalar
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import NARROW, widened
from hetero.program.operation import Operation
from hetero.types import Spec, TensorSpec


@kernel("CumSum", versions=(11, 14), values=(1,))
@kernel("CumProd", versions=(26,), values=(1,))
def cumulative(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, axis (one integer) -> X's dtype and shape. `exclusive` starts at 0 (or 1), `reverse` at the end."""
    x = tensor(op, specs, 0)
    if one_dtype(op, (x,), NUMBERS) in NARROW:
        return widened(cumulative, op, specs, xp)
    axis = known_scalar(op, specs, 1, "axis")
    if axis is None:
        fail(op, "is missing", "axis")
    axis = axis_of(op, int(axis), len(x.shape))
    sums = op.op_type == "CumSum"
    exclusive, reverse = bool(op.attr("exclusive", 0)), bool(op.attr("reverse", 0))

    def along(s: slice) -> tuple[slice, ...]:
        return (slice(None),) * axis + (s,)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, out = inputs[0], outputs[0]
        if reverse:
            backwards = along(slice(None, None, -1))
            source, out = source[backwards], out[backwards]
        calls: list[Call] = []
        if exclusive:
            first = out[along(slice(0, 1))]
            calls.append(partial(first.__setitem__, ..., 0 if sums else 1))
            source, out = source[along(slice(0, -1))], out[along(slice(1, None))]
        calls.append(partial(source.cumsum if sums else source.cumprod, axis, x.dtype, out))
        return Quiet(in_turn(calls))

    return computed((TensorSpec(x.dtype, x.shape),), bind)
