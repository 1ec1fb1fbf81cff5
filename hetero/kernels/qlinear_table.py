"""Quantised operators whose result hangs on one byte at a time: a table of 256 results, looked up.

QLinearSigmoid, QLinearLeakyRelu, QLinearWhere and QLinearConcat of com.microsoft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import KernelError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import BOOL, broadcast, one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.operands import axis_of, fail, host_reason
from hetero.kernels.quantized import BYTES, one_number, one_scale
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import is_constant
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

_REASON = "builds its table on the host"
Curve = Callable[[Any, Array], Array]
"""(xp, 256 float32 numbers) -> what the operator makes of them, before they are quantised."""


def _identity(xp: Any, real: Array) -> Array:
    return real


def _sigmoid(xp: Any, real: Array) -> Array:
    return (1 / (1 + xp.exp(-real.astype(np.float64)))).astype(np.float32)


def _leaky(alpha: Any, xp: Any, real: Array) -> Array:
    return xp.where(real >= 0, real, real * alpha)


def table_of(
    xp: Any, curve: Curve, dtype: np.dtype[Any], x: tuple[Array, Array | None], y: tuple[Array, Array | None]
) -> Array:
    """What each byte of `dtype` (in the order of its bits as uint8) gives: (256,), of `dtype`.

    x and y are (scale, zero point) of the operand and of the result.
    """
    limits = np.iinfo(dtype)
    codes = xp.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    real = (codes - _zero(x)) * x[0].reshape(())
    levels = xp.rint(curve(xp, real) / y[0].reshape(())) + _zero(y)
    return levels.clip(limits.min, limits.max).astype(dtype)


def _zero(pair: tuple[Array, Array | None]) -> Any:
    return np.float32(0) if pair[1] is None else pair[1].reshape(()).astype(np.float32)


def look_up(xp: Any, curve: Curve, x: Array, of: Sequence[Array | None], out: Array) -> Call:
    """A call that writes the table's entry for each byte of `x` into `out`.

    `of`: scale and zero point of x, then of the result. A table of constants is built here and now.
    """
    x_scale, x_zero, y_scale, y_zero = of
    assert x_scale is not None
    assert y_scale is not None
    build = partial(table_of, xp, curve, x.dtype, (x_scale, x_zero), (y_scale, y_zero))
    bits = x.view(np.uint8)
    if all(a is None or is_constant(a) for a in of):
        with np.errstate(all="ignore"):
            table = build()
        return partial(_take, table, bits, out)
    return lambda: _take(build(), bits, out)


def _take(table: Array, bits: Array, out: Array) -> None:
    out[...] = table[bits]


def _unary(op: Operation, specs: Sequence[Spec], xp: Any, curve: Curve) -> Compiled:
    """X, its scale and zero point, scale and zero point of Y (zero points optional) -> Y, of X's dtype."""
    x = tensor(op, specs, 0)
    dtype = one_dtype(op, (x, *(s for s in (given(specs, 2), given(specs, 4)) if s is not None)), BYTES)
    for index, name in ((1, "X_scale"), (3, "Y_scale")):
        one_scale(op, specs, index, name)
    for index, name in ((2, "X_zero_point"), (4, "Y_zero_point")):
        one_number(op, given(specs, index), name)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        of = (*inputs[1:], None)[:4]
        return Quiet(look_up(xp, curve, inputs[0], of, outputs[0]))

    return computed((TensorSpec(dtype, x.shape),), bind, capture=host_reason(xp, _REASON))


@kernel("QLinearSigmoid", domain="com.microsoft", versions=(1,))
def qlinear_sigmoid(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """1 / (1 + exp(-x)) of bytes; operands as `_unary` says."""
    return _unary(op, specs, xp, _sigmoid)


@kernel("QLinearLeakyRelu", domain="com.microsoft", versions=(1,))
def qlinear_leaky_relu(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """x where it is not negative, else alpha x, of bytes; operands as `_unary` says."""
    return _unary(op, specs, xp, partial(_leaky, np.float32(op.attr("alpha", 0.01))))


@kernel("QLinearWhere", domain="com.microsoft", versions=(1,))
def qlinear_where(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """condition (bool), X, its scale and zero point, Y, its scale and zero point, scale and zero point of Z -> Z:
    X where the condition holds, else Y, of their dtype."""
    condition, x, y = tensor(op, specs, 0), tensor(op, specs, 1), tensor(op, specs, 4)
    one_dtype(op, (condition,), frozenset((BOOL,)))
    dtype = one_dtype(op, (x, y, *(tensor(op, specs, i) for i in (3, 6, 8))), BYTES)
    for index, name in ((2, "x_scale"), (5, "y_scale"), (7, "z_scale")):
        one_scale(op, specs, index, name)
    for index, name in ((3, "x_zero_point"), (6, "y_zero_point"), (8, "z_zero_point")):
        one_number(op, given(specs, index), name)
    shape = broadcast(op, condition, x, y)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        z = inputs[7:9]
        first, second = xp.empty(x.shape, dtype), xp.empty(y.shape, dtype)
        chosen = xp.broadcast_to(inputs[0], shape)
        return Quiet(
            in_turn(
                [
                    look_up(xp, _identity, inputs[1], (*inputs[2:4], *z), first),
                    look_up(xp, _identity, inputs[4], (*inputs[5:7], *z), second),
                    partial(xp.copyto, outputs[0], second),
                    partial(xp.copyto, outputs[0], first, where=chosen),
                ]
            )
        )

    return computed((TensorSpec(dtype, shape),), bind, capture=host_reason(xp, _REASON))


@kernel("QLinearConcat", domain="com.microsoft", versions=(1,))
def qlinear_concat(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Scale and zero point of Y, then a tensor, its scale and its zero point for each operand -> Y: the operands one
    after another along `axis`, each requantised to Y's scale."""
    if len(specs) < 5 or len(specs) % 3 != 2:
        fail(op, f"{len(specs)} inputs are not two and then three for each tensor")
    places = range(2, len(specs), 3)
    tensors = [tensor(op, specs, i) for i in places]
    dtype = one_dtype(
        op, (*tensors, tensor(op, specs, 1), *(tensor(op, specs, i + 2) for i in places)), BYTES
    )
    for index in (0, *(i + 1 for i in places)):
        one_scale(op, specs, index, f"input {index}")
    for index in (1, *(i + 2 for i in places)):
        one_number(op, given(specs, index), f"input {index}")
    first = tensors[0].shape
    axis = axis_of(op, int(op.attr("axis")), len(first))
    for t in tensors:
        if len(t.shape) != len(first) or any(
            i != axis and a != b for i, (a, b) in enumerate(zip(t.shape, first, strict=True))
        ):
            raise KernelError(
                f"{list(t.shape)} does not join {list(first)} along axis {axis}", op=op.id, node=op.name
            )
    extent = sum(t.shape[axis] for t in tensors)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        calls: list[Call] = []
        at = 0
        for i, t in zip(places, tensors, strict=True):
            out = outputs[0][(*(slice(None),) * axis, slice(at, at + t.shape[axis]))]
            at += t.shape[axis]
            calls.append(look_up(xp, _identity, inputs[i], (*inputs[i + 1 : i + 3], *inputs[:2]), out))
        return Quiet(in_turn(calls))

    output = TensorSpec(dtype, (*first[:axis], extent, *first[axis + 1 :]))
    return computed((output,), bind, capture=host_reason(xp, _REASON))
