"""DynamicQuantizeMatMul, MatMulIntegerToFloat and MatMulInteger16: integer products that end as floats or int32."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm import bind_matmul, matmul_shape
from hetero.kernels.operands import fail, host_reason
from hetero.kernels.product_exact import INT32, ExactProduct, reshaped, scaled, zero_shape
from hetero.kernels.quantize import find_range
from hetero.kernels.quantized import require_bytes
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import NARROW
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import Spec, TensorSpec

FLOAT32 = np.dtype(np.float32)
_REASON = "may allocate the right factor"


def _check_bias(op: Operation, bias: TensorSpec | None, columns: int) -> None:
    if bias is not None and bias.shape != (columns,):
        fail(op, f"of shape {list(bias.shape)} for {columns} columns", "bias")


@kernel("DynamicQuantizeMatMul", domain="com.microsoft", versions=(1,), dispatch=Dispatch.LIBRARY)
def dynamic_quantize_matmul(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A (float32), B (bytes), its scale and optional zero point (one, or one a column), optional bias (N) -> the
    product of A rounded to 256 levels over its range with B, in float32."""
    a, b, bias = tensor(op, specs, 0), tensor(op, specs, 1), given(specs, 4)
    one_dtype(op, (a, tensor(op, specs, 2)), frozenset((FLOAT32,)))
    require_bytes(op, b)
    product = ExactProduct(op, a.shape, b.shape, xp)
    scale_shape = zero_shape(op, tensor(op, specs, 2), b, -1, "b_scale")
    zero_point_shape = zero_shape(op, given(specs, 3), b, -1, "b_zero_point")
    _check_bias(op, bias, b.shape[-1] if len(b.shape) > 1 else 1)
    parts: tuple[Part, ...] = (
        *product.parts,
        (product.output, INT32),
        ((3,), FLOAT32),
        ((), bool),
        ((), np.uint8),
        (a.shape, FLOAT32),
        (a.shape, np.uint8),
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        *_, sums, numbers, flat, byte, real, levels = carve(workspace, *parts)
        low, high, step = (numbers[i : i + 1].reshape(()) for i in range(3))
        b_zero = reshaped(inputs, 3, zero_point_shape)
        product_calls = product.of_bytes(levels, low, inputs[1], b_zero, sums, workspace)
        scale, shift = inputs[2].reshape(scale_shape), inputs[4] if bias is not None else None

        def quantize() -> None:
            find_range(xp, inputs[0], step, byte, low, high, flat)  # low holds the zero point then
            xp.divide(inputs[0], step, real)
            xp.rint(real, real)
            xp.add(real, low, real)
            xp.clip(real, 0, 255, out=real)
            xp.copyto(levels, real, casting="unsafe")

        calls: list[Call] = [
            quantize,
            *product_calls,
            partial(scaled, xp, sums, step, scale, shift, outputs[0], outputs[0]),
        ]
        return Quiet(in_turn(calls))

    output = TensorSpec(FLOAT32, product.output)
    return computed((output,), bind, workspace_bytes=carved_bytes(*parts), capture=host_reason(xp, _REASON))


@kernel("MatMulIntegerToFloat", domain="com.microsoft", versions=(1,), dispatch=Dispatch.LIBRARY)
def matmul_integer_to_float(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A, B (bytes), their scales (A's one or one a row, B's one or one a column), optional zero points likewise and
    bias (N) -> (A - zero point) @ (B - zero point) times the scales, plus bias, in the scales' dtype."""
    a, b, bias = tensor(op, specs, 0), tensor(op, specs, 1), given(specs, 6)
    require_bytes(op, a, b)
    dtype = one_dtype(op, (tensor(op, specs, 2), tensor(op, specs, 3)), NARROW | {FLOAT32})
    product = ExactProduct(op, a.shape, b.shape, xp)
    shapes = {
        i: zero_shape(op, given(specs, i), a if axis == -2 else b, axis, name)
        for i, axis, name in (
            (2, -2, "a_scale"), (3, -1, "b_scale"), (4, -2, "a_zero_point"), (5, -1, "b_zero_point")
        )
    }  # fmt: skip
    _check_bias(op, bias, b.shape[-1] if len(b.shape) > 1 else 1)
    wide = dtype != FLOAT32
    parts: tuple[Part, ...] = (
        *product.parts,
        (product.output, INT32),
        (product.output if wide else (0,), FLOAT32),
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        *_, sums, real = carve(workspace, *parts)
        zeros = reshaped(inputs, 4, shapes[4]), reshaped(inputs, 5, shapes[5])
        calls = product.of_bytes(inputs[0], zeros[0], inputs[1], zeros[1], sums, workspace)
        scales = (inputs[2].reshape(shapes[2]), inputs[3].reshape(shapes[3]))
        shift = inputs[6] if bias is not None else None
        y = outputs[0]
        calls.append(partial(scaled, xp, sums, *scales, shift, real if wide else y, y))
        return Quiet(in_turn(calls))

    output = TensorSpec(dtype, product.output)
    return computed((output,), bind, workspace_bytes=carved_bytes(*parts), capture=host_reason(xp, _REASON))


@kernel("MatMulInteger16", domain="com.microsoft", versions=(1,), dispatch=Dispatch.LIBRARY)
def matmul_integer16(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A, B (int16, or both uint16) -> their product in int32 (uint32), which wraps."""
    a, b = tensor(op, specs, 0), tensor(op, specs, 1)
    dtypes = {a.dtype, b.dtype}
    if dtypes not in ({np.dtype(np.int16)}, {np.dtype(np.uint16)}):
        raise UnsupportedError(f"{op.op_type} of {a.dtype} and {b.dtype}", op=op.id, node=op.name)
    output = TensorSpec(
        np.dtype(np.int32 if a.dtype.kind == "i" else np.uint32), matmul_shape(op, a.shape, b.shape)
    )
    if a.shape[-1] > 1 << 20:
        raise KernelError(f"{a.shape[-1]} products do not add up exactly", op=op.id, node=op.name)
    real = np.dtype(np.float64)
    parts: tuple[Part, ...] = (
        (a.shape, real),
        (b.shape, real),
        (output.shape, real),
        (output.shape, np.int64),
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        wide_a, wide_b, product, whole = carve(workspace, *parts)
        return in_turn(
            [
                partial(xp.copyto, wide_a, inputs[0]),
                partial(xp.copyto, wide_b, inputs[1]),
                bind_matmul(xp, wide_a, wide_b, product),
                partial(
                    xp.copyto, whole, product, casting="unsafe"
                ),  # a float out of int32's range would not wrap
                partial(xp.copyto, outputs[0], whole, casting="unsafe"),
            ]
        )

    return computed((output,), bind, workspace_bytes=carved_bytes(*parts))
