"""Elementwise operators that need more than one ufunc: division, remainders, powers, Where and Clip."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from hetero.errors import KernelError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import (
    BOOL,
    NUMBERS,
    SIGNED,
    broadcast,
    one_dtype,
    overwritable,
)
from hetero.kernels.quiet import Quiet, quiet
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Spec, TensorSpec

FLOAT32_MAX = float(np.finfo(np.float32).max)


@kernel("Div", versions=(7, 13, 14))
def div(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A, B of one dtype -> A / B; integers truncate toward zero, and x / 0 is then 0."""
    a, b = tensor(op, specs, 0), tensor(op, specs, 1)
    output = TensorSpec(one_dtype(op, (a, b), NUMBERS), broadcast(op, a, b))
    if output.dtype not in SIGNED:
        function = xp.divide if output.dtype in FLOATS else xp.floor_divide
        return computed(
            (output,),
            lambda i, o, _: quiet(function, i[0], i[1], o[0]),
            overwrites=overwritable(output, a, b),
        )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        x, y, out = *inputs, outputs[0]

        def call() -> None:
            xp.fmod(x, y, out)  # the remainder of truncation: what is left divides exactly
            xp.subtract(x, out, out)
            xp.floor_divide(out, y, out)

        return Quiet(call)

    return computed((output,), bind)


@kernel("Mod", versions=(10, 13, 28))
def mod(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A, B of one dtype -> the remainder with B's sign, or with A's where `fmod` is 1. x mod 0 of integers is 0."""
    a, b = tensor(op, specs, 0), tensor(op, specs, 1)
    output = TensorSpec(one_dtype(op, (a, b), NUMBERS), broadcast(op, a, b))
    if output.dtype in FLOATS and not op.attr("fmod", 0) and op.version < 28:
        raise KernelError("fmod must be 1 for floats", op=op.id, node=op.name, operand="fmod")
    function = xp.fmod if op.attr("fmod", 0) else xp.remainder
    return computed(
        (output,), lambda i, o, _: quiet(function, i[0], i[1], o[0]), overwrites=overwritable(output, a, b)
    )


@kernel("Pow", versions=(7, 12, 13, 15))
def power(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, Y -> X ** Y in X's dtype, whatever Y's.

    Integers wrap, and to a negative power they give what truncation leaves: 1, -1 or 0.
    """
    x, y = tensor(op, specs, 0), tensor(op, specs, 1)
    one_dtype(op, (x,), NUMBERS)
    one_dtype(op, (y,), NUMBERS)
    output = TensorSpec(x.dtype, broadcast(op, x, y))
    if x.dtype in NARROW and y.dtype != x.dtype:
        return widened(power, op, specs, xp)
    if x.dtype in FLOATS:
        return _float_power(output, y, xp)
    if y.dtype in FLOATS:
        return _integer_to_float_power(output, y, xp)
    # Powers of a number of n bits repeat after 2 ** (n - 2) exponents; those of an even one end at 0 long before.
    period = 1 << (8 * x.dtype.itemsize - 2)
    folds = np.iinfo(y.dtype).max > np.iinfo(x.dtype).max
    parts: tuple[Part, ...] = (
        (y.shape, x.dtype),
        (y.shape, BOOL),
        (output.shape, BOOL),
        (x.shape, BOOL),
        (x.shape, BOOL),
        (y.shape if folds else (0,), y.dtype),
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        base, exponent, out = *inputs, outputs[0]
        natural, negative, zero, other, minus, folded = carve(workspace, *parts)

        def call() -> None:
            if folds:
                xp.bitwise_and(exponent, period - 1, out=folded)
                xp.add(folded, period, out=folded)
                xp.less(exponent, period, negative)
                xp.copyto(folded, exponent, where=negative)
            # 1 and -1 to a negative power are 1 or themselves, by its lowest bit; all else truncates to 0.
            xp.less(exponent, 0, negative)
            natural[...] = folded if folds else exponent
            xp.bitwise_and(natural, 1, out=natural, where=negative)
            xp.power(base, natural, out)
            xp.equal(base, 1, other)
            if x.dtype in SIGNED:
                xp.equal(base, -1, minus)
                xp.logical_or(other, minus, other)
            xp.logical_not(other, other)
            xp.logical_and(negative, other, zero)
            xp.copyto(out, x.dtype.type(0), where=zero)

        return Quiet(call)

    return computed((output,), bind, workspace_bytes=carved_bytes(*parts))


def _float_power(output: TensorSpec, y: TensorSpec, xp: Any) -> Compiled:
    dtype = output.dtype
    parts: tuple[Part, ...] = () if y.dtype == dtype else ((y.shape, dtype),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        base, given_exponent, out = *inputs, outputs[0]
        exponent = carve(workspace, *parts)[0] if parts else given_exponent
        multiplies = xp is np and y.size == 1

        def call() -> None:
            if parts:
                exponent[...] = given_exponent
            # Of negative numbers powf takes sixty nanoseconds each, and x³ is in every GELU, x² in every norm that
            # was exported as single operators.
            if multiplies and exponent.item() in (2.0, 3.0):
                xp.multiply(base, base, out)
                if exponent.item() == 3.0:
                    xp.multiply(out, base, out)
            else:
                xp.power(base, exponent, out)

        return Quiet(call)

    return computed((output,), bind, workspace_bytes=carved_bytes(*parts))


def _integer_to_float_power(output: TensorSpec, y: TensorSpec, xp: Any) -> Compiled:
    parts: tuple[Part, ...] = ((output.shape, np.float64),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        base, exponent, out = *inputs, outputs[0]
        (real,) = carve(workspace, *parts)

        def call() -> None:
            xp.power(base, exponent, out=real, dtype=np.float64, casting="unsafe")
            out[...] = real

        return Quiet(call)

    return computed((output,), bind, workspace_bytes=carved_bytes(*parts))


@kernel("Where", versions=(9, 16))
def where(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """condition (bool), X, Y of one dtype -> their broadcast shape."""
    condition, x, y = (tensor(op, specs, i) for i in range(3))
    one_dtype(op, (condition,), frozenset((BOOL,)))
    if x.dtype != y.dtype:
        raise KernelError(f"X is {x.dtype}, Y is {y.dtype}", op=op.id, node=op.name)
    output = TensorSpec(x.dtype, broadcast(op, condition, x, y))
    if x.dtype.kind == "O" or x.dtype.itemsize > 8:

        def bind_copies(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
            def call() -> None:
                xp.copyto(outputs[0], inputs[2])
                xp.copyto(outputs[0], inputs[1], where=inputs[0])

            return call

        return computed((output,), bind_copies)
    # Selecting by bit masks, y ^ ((x ^ y) & mask), vectorises; a masked copy is ten times slower.
    bits = np.dtype(f"i{x.dtype.itemsize}")

    def stretch(specs: Sequence[Spec]) -> tuple[TensorSpec, int]:
        chosen, a, b = (tensor(op, specs, i) for i in range(3))
        return TensorSpec(x.dtype, broadcast(op, chosen, a, b)), carved_bytes((chosen.shape, bits))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        chosen, a, b = inputs[0].view(np.int8), inputs[1].view(bits), inputs[2].view(bits)
        out = outputs[0].view(bits)
        (mask,) = carve(workspace, (chosen.shape, bits))

        def call() -> None:
            xp.negative(chosen, mask, dtype=bits) if bits.itemsize > 1 else xp.negative(chosen, mask)
            xp.bitwise_xor(a, b, out)
            xp.bitwise_and(out, mask, out)
            xp.bitwise_xor(out, b, out)

        return call

    bytes_ = carved_bytes((condition.shape, bits))
    return computed((output,), bind, workspace_bytes=bytes_, stretch=stretch)


@kernel("Clip", versions=(6, 11, 12, 13))
def clip(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, optional scalars min and max -> min(max, max(X, min)), in X's dtype. NaN stays NaN.

    The bounds are attributes up to version 6, inputs later. A float's bound that is left out is its dtype's lowest or
    largest number (float32's in version 6), as the text says: infinity is clipped to it.
    """
    x = tensor(op, specs, 0)
    dtype = one_dtype(op, (x,), NUMBERS)
    output = TensorSpec(dtype, x.shape)
    limits = _limits(dtype)
    if op.version < 11:
        with np.errstate(over="ignore"):  # float32's largest number is infinite in float16
            low, high = (
                np.float64(op.attr(name, sign * FLOAT32_MAX)).astype(dtype)
                for name, sign in (("min", -1), ("max", 1))
            )
        return computed((output,), lambda i, o, _: _clip(xp, i[0], low, high, o[0]), overwrites=((0, 0),))
    for name, spec in (("min", given(specs, 1)), ("max", given(specs, 2))):
        if spec is not None and spec.dtype != dtype:
            raise KernelError(f"is {spec.dtype}, the input is {dtype}", op=op.id, node=op.name, operand=name)
        if spec is not None and spec.size != 1:
            raise KernelError(
                f"must be a scalar, has shape {list(spec.shape)}", op=op.id, node=op.name, operand=name
            )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        low, high = (inputs[i].reshape(()) if given(specs, i) is not None else limits[i - 1] for i in (1, 2))
        return _clip(xp, inputs[0], low, high, outputs[0])

    return computed((output,), bind, overwrites=((0, 0),))


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The lowest and the largest number of a float dtype; (None, None) for integers, which no default bound changes."""
    if dtype not in FLOATS:
        return None, None
    largest = dtype.type(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return -largest, largest


def _clip(xp: Any, x: Any, low: Any, high: Any, out: Any) -> Call:
    if low is None and high is None:
        return partial(out.__setitem__, ..., x)
    if high is None:
        return partial(xp.maximum, x, low, out=out)
    if low is None:
        return partial(xp.minimum, x, high, out=out)
    if x.dtype.kind == "V":  # ml_dtypes' floats have no clip of their own

        def call() -> None:
            xp.maximum(x, low, out=out)
            xp.minimum(out, high, out=out)

        return call
    return partial(x.clip, low, high, out)
