"""QLinearSoftmax of com.microsoft: exponentials from a table of 256, so that a row costs one division an element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.operands import axis_of, host_reason
from hetero.kernels.quantized import BYTES, one_number, one_scale
from hetero.kernels.quiet import Quiet
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

_LARGEST = np.finfo(np.float32).max
_HEADROOM = 5
"""How far, as a power of e, the sum of a row's exponentials stays below the largest float32."""


def _exponentials(xp: Any, scale: float, length: int) -> Array:
    """exp(scale (i - 255)) for i in 0…255 in float32, raised so that `length` of them add up to a large finite number.

    A row is shifted so that its largest element stands at 255.
    """
    raised = max(0.0, float(np.log(_LARGEST / np.float32(length))) - _HEADROOM) / scale
    found: Array = xp.exp((xp.arange(256, dtype=np.float64) - 255 + raised) * scale).astype(np.float32)
    return found


def _softmax(xp: Any, inputs: Sequence[Any], rows: Array, out: Array, axis: int) -> None:
    """Softmax of bytes along `axis` into `out`, in units of floor(1 / y_scale) as onnxruntime has it."""
    dtype = rows.dtype
    table = _exponentials(xp, float(inputs[1].reshape(())), rows.shape[axis])
    below = xp.max(rows, axis=axis, keepdims=True).astype(np.int16) - rows
    values = table[255 - below]
    # A running sum adds in the order of the elements, as onnxruntime does; sum() would pair them.
    total = xp.add.accumulate(values, axis=axis, dtype=np.float32)
    total = total[(*(slice(None),) * axis, slice(-1, None))]
    levels = np.floor(np.float32(1) / inputs[3].reshape(())[()])
    xp.multiply(values, levels, out=values)
    xp.divide(values, total, out=values)
    xp.rint(values, out=values)
    if len(inputs) > 4 and inputs[4] is not None:
        xp.add(values, inputs[4].reshape(()), out=values)
    limits = np.iinfo(dtype)
    xp.copyto(out, values.clip(limits.min, limits.max), casting="unsafe")


@kernel("QLinearSoftmax", domain="com.microsoft", versions=(1,))
def qlinear_softmax(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, its scale and optional zero point (neither shifts the result), scale and optional zero point of Y -> Y, of
    X's dtype: softmax along `axis`, or for `opset` below 13 over all axes from it on."""
    x, y_zero = tensor(op, specs, 0), given(specs, 4)
    dtype = one_dtype(op, (x,) if y_zero is None else (x, y_zero), BYTES)
    for index, name in ((1, "X_scale"), (3, "y_scale")):
        one_scale(op, specs, index, name)
    for index, name in ((2, "x_zero_point"), (4, "y_zero_point")):
        one_number(op, given(specs, index), name)
    axis = axis_of(op, int(op.attr("axis", -1)), len(x.shape))
    merge = int(op.attr("opset", 13)) < 13
    shape = (*x.shape[:axis], math.prod(x.shape[axis:])) if merge else x.shape

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if not x.size:
            return bool
        return Quiet(partial(_softmax, xp, inputs, inputs[0].reshape(shape), outputs[0].reshape(shape), axis))

    return computed(
        (TensorSpec(dtype, x.shape),),
        bind,
        contiguous=(0,),
        capture=host_reason(xp, "allocates what it sums"),
    )
