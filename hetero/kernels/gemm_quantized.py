"""QGemm: a product of byte matrices with an int32 bias, as bytes again or as floats."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import broadcasts_to, one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.operands import fail, host_reason
from hetero.kernels.product_exact import FLOAT32, INT32, ExactProduct
from hetero.kernels.quantized import per_map, requantize, require_bytes
from hetero.kernels.quiet import Quiet
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import Array, Spec, TensorSpec


@kernel("QGemm", domain="com.microsoft", versions=(1,), dispatch=Dispatch.LIBRARY)
def qgemm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A (M, K), its scale and zero point, B (K, N), its scale and zero point (one, or one a column), either transposed
    by attribute, optional C (int32, broadcasts to (M, N), of scale alpha a_scale b_scale), optional scale and zero
    point of Y -> alpha A B + C, in bytes where Y's zero point is given and else in float32."""
    a, b, c, y_scale, y_zero = (
        tensor(op, specs, 0), tensor(op, specs, 3), given(specs, 6), given(specs, 7), given(specs, 8)
    )  # fmt: skip
    require_bytes(op, a, b)
    one_dtype(op, (tensor(op, specs, 1), tensor(op, specs, 4)), frozenset((FLOAT32,)))
    if len(a.shape) != 2 or len(b.shape) != 2:
        fail(op, f"operands of shape {list(a.shape)} and {list(b.shape)} are not two matrices")
    trans_a, trans_b = bool(op.attr("transA", 0)), bool(op.attr("transB", 0))
    product = ExactProduct(
        op, a.shape[::-1] if trans_a else a.shape, b.shape[::-1] if trans_b else b.shape, xp
    )
    columns = product.output[1]
    for index, count, name in ((1, 1, "a_scale"), (2, 1, "a_zero_point"), (4, columns, "b_scale"),
                               (5, columns, "b_zero_point"), (7, 1, "y_scale"), (8, 1, "y_zero_point")):  # fmt: skip
        per_map(op, given(specs, index), count, name)
    if (y_scale is None) != (y_zero is None):
        fail(op, "y_scale and y_zero_point come together", "y_zero_point")
    if c is not None and (c.dtype != INT32 or not broadcasts_to(c, product.output)):
        fail(op, f"{c} does not broadcast to int32 {list(product.output)}", "C")
    if y_zero is not None:
        require_bytes(op, y_zero)
    output = TensorSpec(FLOAT32 if y_zero is None else y_zero.dtype, product.output)
    alpha = np.float32(op.attr("alpha", 1.0))
    parts: tuple[Part, ...] = (
        *product.parts,
        (product.output, INT32),
        (product.output if y_zero is not None else (0,), FLOAT32),
    )

    def finish(inputs: Sequence[Any], sums: Array, real: Array, out: Array) -> None:
        scale = alpha * inputs[1].reshape(()) * inputs[4].reshape(-1)
        if y_zero is None:
            xp.multiply(sums, scale, out=out, dtype=np.float32, casting="unsafe")
        else:
            xp.copyto(real, sums, casting="unsafe")
            requantize(xp, real, scale / inputs[7].reshape(()), inputs[8].reshape(()), out)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        *_, sums, real = carve(workspace, *parts)
        b_zero = inputs[5]
        if b_zero is not None:
            b_zero = b_zero.reshape((-1, 1) if trans_b and b_zero.size > 1 else (-1,))
        source = inputs[0].T if trans_a else inputs[0]
        a_zero = None if inputs[2] is None else inputs[2].reshape(())
        calls = product.of_bytes(source, a_zero, inputs[3], b_zero, sums, workspace, turned=trans_b)
        if c is not None:
            calls.append(partial(xp.add, sums, inputs[6], sums))
        calls.append(partial(finish, inputs, sums, real, outputs[0]))
        return Quiet(in_turn(calls))

    return computed(
        (output,),
        bind,
        workspace_bytes=carved_bytes(*parts),
        capture=host_reason(xp, "allocates the scales' product"),
    )
