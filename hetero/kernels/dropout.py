"""Dropout at inference: its input, and a mask that keeps everything."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor, viewed
from hetero.kernels.broadcasting import BOOL
from hetero.kernels.fused import in_turn
from hetero.kernels.operands import known_scalar
from hetero.program.operation import Operation
from hetero.types import Spec, TensorSpec


@kernel("Dropout", versions=(7, 10))
@kernel("Dropout", versions=(12, 13, 22), values=(1, 2))
def dropout(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, optional ratio and training_mode -> X, optional mask of true (of ones in X's dtype in version 7).

    Training with a ratio above 0 draws at random and is declined.
    """
    x = tensor(op, specs, 0)
    if op.version >= 12 and known_scalar(op, specs, 2, "training_mode"):
        ratio = known_scalar(op, specs, 1, "ratio")
        if ratio is None or ratio != 0:
            raise UnsupportedError("training_mode draws at random", op=op.id, node=op.name)
    output = TensorSpec(x.dtype, x.shape)
    mask = TensorSpec(BOOL if op.version >= 10 else x.dtype, x.shape)
    if not any(op.present_outputs[1:]):
        outputs = (output, None)[: len(op.present_outputs)]
        return viewed(
            outputs, lambda inputs: (inputs[0],), lambda i, o, _: partial(o[0].__setitem__, ..., i[0])
        )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        calls: list[Call] = [partial(outputs[1].fill, 1)]
        if outputs[0] is not None:
            calls.append(partial(outputs[0].__setitem__, ..., inputs[0]))
        return in_turn(calls)

    return computed((output if op.present_outputs[0] else None, mask), bind)
