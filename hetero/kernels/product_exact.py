"""Products of byte matrices that lose no bit: in integers, or through float BLAS, which adds up so many exactly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.derived import Keeper, derived
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm import bind_matmul, matmul_shape
from hetero.kernels.gemm_bytes import bind_bytes, serves_bytes
from hetero.kernels.operands import fail
from hetero.kernels.quantized import centred
from hetero.kernels.widen import is_constant
from hetero.kernels.workspace import Part, carve
from hetero.program.operation import Operation
from hetero.types import Array, TensorSpec

EXACT_DEPTH = 256
"""Products of two 9-bit numbers that float32 adds up exactly: 256 * 255² < 2²⁴."""
FLOAT32, INT32 = np.dtype(np.float32), np.dtype(np.int32)


class ExactProduct:
    """a @ b (numpy.matmul's rules) of float32 arrays that hold integers of up to 9 bits, as int32 sums that wrap."""

    def __init__(self, op: Operation, a: tuple[int, ...], b: tuple[int, ...], xp: Any) -> None:
        self.xp = xp
        self.a, self.b = a, b
        self.output = matmul_shape(op, a, b)
        self.parts: tuple[Part, ...] = ((a, FLOAT32), (self.output, FLOAT32))
        """Scratch of `bind`: the left factor, and one product."""
        self.keep = Keeper()

    def bind(self, b: Array, out: Array, workspace: Any) -> tuple[Array, Call]:
        """(the left factor's array, to be filled before each call; the call that writes the sums into `out`)."""
        xp = self.xp
        a, product = carve(workspace, *self.parts)
        depth = self.a[-1]
        calls: list[Call] = [partial(out.fill, 0)] if not depth else []
        for k in range(0, depth, EXACT_DEPTH):
            end = min(k + EXACT_DEPTH, depth)
            rows = b[k:end] if b.ndim == 1 else b[..., k:end, :]
            calls.append(bind_matmul(xp, a[..., k:end], rows, product))
            if k == 0:
                calls.append(partial(xp.copyto, out, product, casting="unsafe"))
            else:
                calls.append(partial(xp.add, out, product, out, casting="unsafe", dtype=np.int32))
        return a, in_turn(calls)

    def of_bytes(
        self,
        a: Array,
        a_zero: Array | None,
        b: Array,
        b_zero: Array | None,
        out: Array,
        workspace: Any,
        *,
        turned: bool = False,
    ) -> list[Call]:
        """The calls that write (a - a_zero) @ (b - b_zero) into `out` (int32), for bytes whose zero points broadcast;
        b - b_zero is transposed where `turned`."""
        one = a_zero is None or a_zero.size == 1
        fixed = is_constant(b) and (b_zero is None or is_constant(b_zero))
        if one and fixed and serves_bytes(self.xp, self.a, self.b):
            return [bind_bytes(self.keep, a, a_zero, b.T if turned else b, b_zero, out)]
        factor, calls = centred_factor(self.xp, b, b_zero, turned=turned)
        left, multiply = self.bind(factor, out, workspace)
        return [*calls, partial(centred, self.xp, a, a_zero, left), multiply]


def centred_factor(
    xp: Any, b: Array, zero: Array | None, *, turned: bool = False
) -> tuple[Array, list[Call]]:
    """b - zero (which broadcasts) in float32, transposed where `turned`, and the calls that fill it before each use.

    A constant is centred once, whoever binds it; anything else into memory that the calls hold.
    """

    def fill(target: Array) -> None:
        centred(xp, b, zero, target)

    calls: list[Call] = []
    if is_constant(b) and (zero is None or is_constant(zero)):

        def make() -> Array:
            target = xp.empty(b.shape, FLOAT32)
            fill(target)
            return target

        found: Array = derived(("centred", FLOAT32.str), (b, zero), make)
    else:
        found = xp.empty(b.shape, FLOAT32)
        calls.append(partial(fill, found))
    return (found.swapaxes(-1, -2) if turned else found), calls


def zero_shape(
    op: Operation, zero: TensorSpec | None, x: TensorSpec, axis: int, operand: str
) -> tuple[int, ...]:
    """How a scale or zero point of `x` must be reshaped to stand beside it; () where there is none, or one for all.

    There is one for each index of `axis`, -2 (the rows) or -1 (the columns): a vector, or an array of x's rank with
    an extent of 1 along the other of the two axes. Raises: KernelError for any other shape.
    """
    if zero is None or zero.size == 1:
        return ()
    rank = len(x.shape)
    other = -1 if axis == -2 else -2
    if rank >= -axis and zero.shape == (x.shape[axis],):
        return (-1, 1) if axis == -2 else (-1,)
    fits = len(zero.shape) == rank >= 2 and all(
        z == 1 or (z == n and i != rank + other)
        for i, (z, n) in enumerate(zip(zero.shape, x.shape, strict=True))
    )
    if not fits:
        fail(op, f"of shape {list(zero.shape)} does not fit {list(x.shape)}", operand)
    return zero.shape


def reshaped(operands: Sequence[Any], index: int, shape: tuple[int, ...]) -> Array | None:
    """Operand `index` in the shape that `zero_shape` found, or None where it is left out."""
    found = operands[index] if index < len(operands) else None
    return None if found is None else found.reshape(shape)


def scaled(
    xp: Any, sums: Array, factor: Array, scale: Array, bias: Array | None, wide: Array, out: Array
) -> None:
    """out = sums * (factor * scale) + bias, made in float32 (`wide`, which may be `out`)."""
    xp.multiply(sums, xp.multiply(factor, scale, dtype=np.float32), wide, dtype=np.float32, casting="unsafe")
    if bias is not None:
        xp.add(wide, bias, wide, dtype=np.float32, casting="unsafe")
    if wide is not out:
        xp.copyto(out, wide, casting="unsafe")
