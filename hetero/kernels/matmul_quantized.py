"""QLinearMatMul: a float product of the centred bytes that loses no bit, then bytes again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.operands import fail
from hetero.kernels.quantized import centred, exact_float, requantize, require_bytes
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, Spec, TensorSpec


def _product_shape(op: Operation, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if not a or not b or a[-1] != b[-2 if len(b) > 1 else 0]:
        fail(op, f"{list(a)} and {list(b)} have no matrix product")
    try:
        lead = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        fail(op, f"{list(a)} and {list(b)} do not broadcast")
    return (*lead, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _by_row(array: Array) -> Array:
    """A vector of one number per row of a matrix, as a column."""
    return array.reshape(-1, 1) if array.ndim == 1 and array.size > 1 else array


@kernel("QLinearMatMul", versions=(10, 21))
def qlinear_matmul(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """a, its scale and zero point (one, or one a row), b, its scale and zero point (one, or one a column), y's scale
    and zero point -> y in bytes, rounded half to even and saturated."""
    a, b, y_zero = tensor(op, specs, 0), tensor(op, specs, 3), tensor(op, specs, 7)
    require_bytes(op, a, b, y_zero)
    for index in (1, 4, 6):
        if tensor(op, specs, index).dtype not in FLOATS:
            raise UnsupportedError(f"scale of {tensor(op, specs, index).dtype}", op=op.id, node=op.name)
    shape = _product_shape(op, a.shape, b.shape)
    real = exact_float(a.shape[-1])
    single = np.dtype(np.float32)
    for index, operand in ((1, "a_scale"), (2, "a_zero_point"), (4, "b_scale"), (5, "b_zero_point")):
        spec = tensor(op, specs, index)
        rows = index < 3
        whole = (a if rows else b).shape
        fits = (*whole[:-2], whole[-2], 1) if rows and len(whole) > 1 else (*whole[:-2], 1, whole[-1])
        ends = (whole[-2],) if rows and len(whole) > 1 else whole[-1:]
        if spec.size != 1 and spec.shape not in (fits, ends):
            fail(op, f"of shape {list(spec.shape)} does not fit {list(whole)}", operand)
    parts: tuple[Part, ...] = ((a.shape, real), (b.shape, real), (shape, real), (shape, single))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        wide_a, wide_b, sums, product = carve(workspace, *parts)
        a_scale, a_zero = _by_row(inputs[1]), _by_row(inputs[2])
        b_scale, b_zero, y_scale = inputs[4], inputs[5], inputs[6]

        def call() -> None:
            centred(xp, inputs[0], a_zero, wide_a)
            centred(xp, inputs[3], b_zero, wide_b)
            xp.matmul(wide_a, wide_b, out=sums)
            xp.copyto(product, sums, casting="unsafe")
            scale = a_scale.astype(single) * b_scale.astype(single) / y_scale.astype(single)
            requantize(xp, product, scale, inputs[7], outputs[0])

        return call

    output = TensorSpec(y_zero.dtype, shape)
    return computed((output,), bind, workspace_bytes=carved_bytes(*parts))
