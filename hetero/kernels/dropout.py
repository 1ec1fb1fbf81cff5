"""Dropout: its input and a mask that keeps everything at inference; a random mask in training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, dynamic, given, kernel, tensor, viewed
from hetero.kernels.broadcasting import BOOL
from hetero.kernels.fused import in_turn
from hetero.kernels.operands import fail, known_scalar
from hetero.kernels.randomness import Draws
from hetero.program.operation import Operation
from hetero.types import Spec, TensorSpec


@kernel("Dropout", versions=(7, 10), views=True)
def dropout(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> X, optional mask of true (of ones in X's dtype in version 7)."""
    x = tensor(op, specs, 0)
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


# Only training_mode decides what is compiled. The ratio is read when it is there: a kernel compiled anew for each
# ratio would start its draws within a step from the first again. Not being deterministic keeps a training node over
# weights from being folded; at inference a view of a weight is a weight all the same.
@kernel("Dropout", versions=(12, 13, 22), values=(2,), deterministic=False, views=True)
def dropout_with_mode(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, optional ratio in [0, 1) (0.5) and training_mode (false) -> X, optional mask of true; in training
    X * mask / (1 - ratio) and a mask that is false with the probability `ratio`, drawn anew in each run."""
    if not known_scalar(op, specs, 2, "training_mode"):
        return dropout(op, specs, xp)
    x, share = tensor(op, specs, 0), given(specs, 1)
    if share is not None and share.size != 1:
        fail(op, f"must hold one element, has shape {list(share.shape)}", "ratio")
    wide = np.float64 if x.dtype == np.float64 else np.float32
    draws = Draws(op)

    def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
        ratio = 0.5 if share is None else float(inputs[1].reshape(-1)[0])
        if not 0 <= ratio < 1:
            fail(op, f"{ratio} is outside [0, 1)", "ratio")
        # Drawn on the host, whatever device this is: the same numbers everywhere.
        mask = xp.asarray(draws.uniform(x.shape) >= np.float32(ratio))
        results: list[Any] = [None] * len(op.present_outputs)
        if op.present_outputs[0]:
            with np.errstate(over="ignore", invalid="ignore"):
                kept = xp.where(mask, wide(1 / (1 - ratio)), wide(0))
                results[0] = (inputs[0].astype(wide, copy=False) * kept).astype(x.dtype, copy=False)
        if any(op.present_outputs[1:]):
            results[1] = mask
        return tuple(results)

    # Run, not bound: a bound call may wait in a device's queue until the step that it draws for is over.
    return dynamic(run, capture="draws at random on the host")
