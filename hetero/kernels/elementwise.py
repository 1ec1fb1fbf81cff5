"""Operators that are one ufunc: unary, binary and variadic arithmetic, comparison, logic and bits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, handling, kernel, tensor, viewed
from hetero.kernels.broadcasting import (
    BOOL,
    INTEGERS,
    NUMBERS,
    broadcast,
    one_dtype,
    overwritable,
    stretches,
)
from hetero.kernels.erf import erf_into, scratch_dtypes
from hetero.kernels.fused import chain, in_turn
from hetero.kernels.quiet import Quiet, quiet
from hetero.kernels.tape_kernel import taped
from hetero.kernels.widen import NARROW, widened
from hetero.program.operation import Operation
from hetero.types import FLOATS, STRING, Spec, TensorSpec

UFUNCS = {
    "Abs": "absolute", "Neg": "negative", "Sign": "sign", "Reciprocal": "reciprocal", "Sqrt": "sqrt",
    "Exp": "exp", "Log": "log", "Floor": "floor", "Ceil": "ceil", "Round": "rint", "Sin": "sin", "Cos": "cos",
    "Tan": "tan", "Asin": "arcsin", "Acos": "arccos", "Atan": "arctan", "Sinh": "sinh", "Cosh": "cosh",
    "Tanh": "tanh", "Asinh": "arcsinh", "Acosh": "arccosh", "Atanh": "arctanh", "Not": "logical_not",
    "BitwiseNot": "invert", "IsNaN": "isnan", "Add": "add", "Sub": "subtract", "Mul": "multiply",
    "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor", "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "Equal": "equal", "Less": "less",
    "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "Max": "maximum",
    "Min": "minimum", "Sum": "add",
}  # fmt: skip
"""Operator -> the ufunc that it is. `rint` rounds half to even, as Round does."""

SILENT = frozenset(("Abs", "Neg", "Floor", "Ceil", "Round", "IsNaN", "Max", "Min",
                    "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"))  # fmt: skip
"""These raise no floating-point flag on any operand."""


def _apply(op: Operation, function: Any, *arguments: Any) -> Call:
    """The ufunc bound to its operands; guarded where it can set floating-point flags."""
    if op.op_type in SILENT or arguments[0].dtype not in FLOATS:
        return partial(function, *arguments)
    return quiet(function, *arguments)


@kernel("Abs", "Neg", versions=(6, 13))
@kernel("Sign", versions=(9, 13))
@kernel("Reciprocal", "Sqrt", "Exp", "Log", "Floor", "Ceil", "Tanh", versions=(6, 13))
@kernel("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", versions=(7, 22))
@kernel("Sinh", "Cosh", "Asinh", "Acosh", "Atanh", versions=(9, 22))
@kernel("Round", versions=(11, 22))
@kernel("Not", versions=(1,))
@kernel("BitwiseNot", versions=(18,))
def unary(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> X's dtype and shape."""
    x = tensor(op, specs, 0)
    allowed = {"Abs": NUMBERS, "Neg": NUMBERS, "Sign": NUMBERS, "Not": frozenset((BOOL,)),
               "BitwiseNot": INTEGERS}.get(op.op_type, FLOATS)  # fmt: skip
    one_dtype(op, (x,), allowed)
    if op.op_type in ("Exp", "Tanh"):
        on_tape = taped(op, specs, x.shape, xp)
        if on_tape is not None:
            return on_tape
    function = getattr(xp, UFUNCS[op.op_type])
    output = TensorSpec(x.dtype, x.shape)
    return computed(
        (output,),
        lambda i, o, _: _apply(op, function, i[0], o[0]),
        overwrites=((0, 0),),
        stretch=stretches(op, x.dtype),
    )


@kernel("Add", "Sub", "Mul", versions=(7, 13, 14))
@kernel("And", "Or", "Xor", versions=(7,))
@kernel("BitwiseAnd", "BitwiseOr", "BitwiseXor", versions=(18,))
def binary(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A, B of one dtype -> their broadcast shape in that dtype."""
    a, b = tensor(op, specs, 0), tensor(op, specs, 1)
    allowed = NUMBERS
    if op.op_type in ("And", "Or", "Xor"):
        allowed = frozenset((BOOL,))
    elif op.op_type.startswith("Bitwise"):
        allowed = INTEGERS
    output = TensorSpec(one_dtype(op, (a, b), allowed), broadcast(op, a, b))
    function = getattr(xp, UFUNCS[op.op_type])
    return computed(
        (output,),
        lambda i, o, _: _apply(op, function, i[0], i[1], o[0]),
        overwrites=overwritable(output, a, b),
        stretch=stretches(op, output.dtype),
    )


@kernel("Equal", versions=(7, 11, 13, 19))
@kernel("Less", "Greater", versions=(7, 9, 13))
@kernel("LessOrEqual", "GreaterOrEqual", versions=(12, 16))
def compare(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A, B of one dtype -> bool of their broadcast shape. Equal takes bool and strings too."""
    a, b = tensor(op, specs, 0), tensor(op, specs, 1)
    allowed = NUMBERS | {BOOL, STRING} if op.op_type == "Equal" else NUMBERS
    one_dtype(op, (a, b), allowed)
    output = TensorSpec(BOOL, broadcast(op, a, b))
    function = getattr(xp, UFUNCS[op.op_type])
    return computed(
        (output,),
        lambda i, o, _: _apply(op, function, i[0], i[1], o[0]),
        overwrites=overwritable(output, a, b),
        stretch=stretches(op, output.dtype),
    )


@kernel("Max", "Min", versions=(6, 8, 12, 13))
@kernel("Sum", "Mean", versions=(6, 8, 13))
def variadic(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """One or more tensors of one dtype -> their broadcast shape in it. Half precision adds in float32."""
    operands = [tensor(op, specs, i) for i in range(len(specs))]
    adds = op.op_type in ("Sum", "Mean")
    dtype = one_dtype(op, operands, FLOATS if adds else NUMBERS)
    if adds and dtype in NARROW and len(operands) > 1:
        return widened(variadic, op, specs, xp)
    output = TensorSpec(dtype, broadcast(op, *operands))
    function = getattr(xp, UFUNCS.get(op.op_type, "add"))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        out = outputs[0]
        if len(inputs) == 1:
            return partial(out.__setitem__, ..., inputs[0])
        # NumPy deprecates a positional output of maximum and minimum.
        calls: list[Call] = [partial(function, inputs[0], inputs[1], out=out)]
        calls += [partial(function, out, x, out=out) for x in inputs[2:]]
        if op.op_type == "Mean":
            calls.append(partial(xp.multiply, out, out.dtype.type(1 / len(inputs)), out))
        call = in_turn(calls)
        return Quiet(call) if adds else call

    # Of more than two operands, one may be the same array as a later one: none is overwritten.
    may = overwritable(output, *operands) if len(operands) <= 2 else ()
    return computed((output,), bind, overwrites=may)


@kernel("IsNaN", versions=(9, 13, 20))
def is_nan(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X of any float dtype -> bool of its shape."""
    x = tensor(op, specs, 0)
    return computed((TensorSpec(BOOL, x.shape),), lambda i, o, _: partial(xp.isnan, i[0], o[0]))


@kernel("IsInf", versions=(10, 20))
def is_inf(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X of any float dtype -> bool of its shape; `detect_negative`, `detect_positive` choose the signs."""
    x = tensor(op, specs, 0)
    negative, positive = bool(op.attr("detect_negative", 1)), bool(op.attr("detect_positive", 1))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if negative and positive:
            return partial(xp.isinf, inputs[0], outputs[0])
        if not negative and not positive:
            return partial(outputs[0].fill, False)
        # In a dtype without infinities this is its NaN, which equals nothing.
        infinity = np.float32(np.inf if positive else -np.inf).astype(x.dtype)
        return partial(xp.equal, inputs[0], infinity, outputs[0])

    return computed((TensorSpec(BOOL, x.shape),), bind)


@kernel("Erf", versions=(9, 13))
def erf(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X of a float dtype -> erf(X)."""
    x = tensor(op, specs, 0)
    if one_dtype(op, (x,), FLOATS) in NARROW:
        return widened(erf, op, specs, xp)
    on_tape = taped(op, specs, x.shape, xp)
    if on_tape is not None:
        return on_tape
    return chain(xp, TensorSpec(x.dtype, x.shape), partial(erf_into, xp), scratch=scratch_dtypes(x.dtype))


@kernel("Identity", versions=(1, 13, 14, 16, 19, 21, 23, 24, 25), views=True)
def identity(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The input itself: a view of a tensor, the same sequence or optional."""
    spec = specs[0]
    if not isinstance(spec, TensorSpec):
        return handling(lambda inputs: (inputs[0],), capture="sequence or optional")
    return viewed(
        (TensorSpec(spec.dtype, spec.shape),),
        lambda inputs: (inputs[0],),
        lambda i, o, _: partial(o[0].__setitem__, ..., i[0]),
    )


@kernel("BitShift", versions=(11, 28))
def bit_shift(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, Y of one integer dtype -> X shifted by Y bits; the right shift of a signed dtype keeps the sign."""
    x, y = tensor(op, specs, 0), tensor(op, specs, 1)
    output = TensorSpec(one_dtype(op, (x, y), INTEGERS), broadcast(op, x, y))
    function = xp.left_shift if op.attr("direction") in ("LEFT", b"LEFT") else xp.right_shift
    return computed(
        (output,),
        lambda i, o, _: partial(function, i[0], i[1], o[0]),
        overwrites=overwritable(output, x, y),
    )
