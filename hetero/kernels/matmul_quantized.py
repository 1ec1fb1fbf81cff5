"""MatMulInteger and QLinearMatMul: products of centred bytes that lose no bit. Float8 operands multiply as they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.convert import FLOAT8, conversion
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm import bind_matmul
from hetero.kernels.operands import fail, host_reason
from hetero.kernels.product_exact import FLOAT32, INT32, ExactProduct, centred_factor, reshaped, zero_shape
from hetero.kernels.quantized import BYTES, centred, requantize, require_bytes
from hetero.kernels.quiet import Quiet
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import FLOATS, Array, Spec, TensorSpec

_REASON = "may allocate the right factor"


@kernel("MatMulInteger", versions=(10,), dispatch=Dispatch.LIBRARY)
def matmul_integer(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A, B (int8 or uint8), optional zero points (per tensor, per row of A, per column of B) -> int32 product."""
    a, b = tensor(op, specs, 0), tensor(op, specs, 1)
    require_bytes(op, a, b)
    shapes = []
    for index, beside, axis, name in ((2, a, -2, "a_zero_point"), (3, b, -1, "b_zero_point")):
        zero = given(specs, index)
        if zero is not None and zero.dtype != beside.dtype:
            fail(op, f"is {zero.dtype}, its operand {beside.dtype}", name)
        shapes.append(zero_shape(op, zero, beside, axis, name))
    product = ExactProduct(op, a.shape, b.shape, xp)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        zeros = reshaped(inputs, 2, shapes[0]), reshaped(inputs, 3, shapes[1])
        return in_turn(product.of_bytes(inputs[0], zeros[0], inputs[1], zeros[1], outputs[0], workspace))

    return computed(
        (TensorSpec(INT32, product.output),),
        bind,
        workspace_bytes=carved_bytes(*product.parts),
        capture=host_reason(xp, _REASON),
    )


def _finish(xp: Any, product: Array, scales: Sequence[Array], zero: Array, out: Array) -> None:
    """out = product * (a_scale * b_scale / y_scale) + zero, in bytes or float8. `product` (float32) is overwritten."""
    a, b, y = (s.astype(np.float32) for s in scales)
    factor = a * b / y
    if out.dtype in BYTES:
        requantize(xp, product, factor, zero, out)
        return
    xp.multiply(product, factor, out=product)
    xp.add(product, zero.astype(np.float32), out=product)
    step, scratch = conversion(xp, FLOAT32, out.dtype)
    step(product, out, *(product for _ in scratch))


@kernel("QLinearMatMul", versions=(10, 21), dispatch=Dispatch.LIBRARY)
def qlinear_matmul(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """a, its scale and zero point (one, or one a row), b, its scale and zero point (one, or one a column), y's scale
    and zero point -> y in bytes or float8, rounded half to even and saturated."""
    a, b, y_zero = tensor(op, specs, 0), tensor(op, specs, 3), tensor(op, specs, 7)
    for spec in (a, b, y_zero):
        if spec.dtype not in (BYTES if op.version < 21 else BYTES | FLOAT8):
            raise UnsupportedError(f"{op.op_type} of {spec.dtype}", op=op.id, node=op.name)
    for index in (1, 4, 6):
        if tensor(op, specs, index).dtype not in FLOATS:
            raise UnsupportedError(f"scale of {tensor(op, specs, index).dtype}", op=op.id, node=op.name)
    product = ExactProduct(op, a.shape, b.shape, xp)
    output = TensorSpec(y_zero.dtype, product.output)
    shapes = {
        i: zero_shape(op, tensor(op, specs, i), beside, axis, name)
        for i, beside, axis, name in (
            (1, a, -2, "a_scale"), (2, a, -2, "a_zero_point"), (4, b, -1, "b_scale"), (5, b, -1, "b_zero_point"),
            (6, output, -2, "y_scale"), (7, output, -2, "y_zero_point"),
        )
    }  # fmt: skip
    exact = a.dtype in BYTES and b.dtype in BYTES
    parts: tuple[Part, ...] = (
        *product.parts,
        (product.output if exact else (0,), INT32),
        (product.output, FLOAT32),
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        left, _, sums, single = carve(workspace, *parts)
        a_scale, a_zero, b_scale, b_zero, y_scale, y_zero = (inputs[i].reshape(s) for i, s in shapes.items())
        if exact:
            calls = product.of_bytes(inputs[0], a_zero, inputs[3], b_zero, sums, workspace)
            calls.append(partial(xp.copyto, single, sums, casting="unsafe"))
        else:
            factor, calls = centred_factor(xp, inputs[3], b_zero)
            calls += [partial(centred, xp, inputs[0], a_zero, left), bind_matmul(xp, left, factor, single)]
        calls.append(partial(_finish, xp, single, (a_scale, b_scale, y_scale), y_zero, outputs[0]))
        return Quiet(in_turn(calls))

    return computed(
        (output,),
        bind,
        workspace_bytes=carved_bytes(*parts),
        capture=host_reason(xp, _REASON),
    )
