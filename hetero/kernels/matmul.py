"""Matrix products of floats and integers: MatMul, Gemm and com.microsoft's FusedMatMul."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import NUMBERS, broadcasts_to, elements, one_dtype
from hetero.kernels.derived import Keeper
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm import bind_matmul, matmul_shape, transposed
from hetero.kernels.gemm_batched import bind_batched, is_batched
from hetero.kernels.gemm_packed import bind_packed, is_packed
from hetero.kernels.matmul_few import bind_few_rows, is_few_rows
from hetero.kernels.matmul_weighted import bind_weighted, is_weighted
from hetero.kernels.operands import fail
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import NARROW, is_constant, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import FLOATS, Array, Spec, TensorSpec

FEW_ROWS = 128
"""Rows up to which BLAS takes twice as long with a transposed right factor: laying it out first pays."""


def bind_product(xp: Any, keep: Keeper, a: Array, b: Array, out: Array) -> Call:
    """The call out = a @ b (numpy.matmul's rules), in tiles where the shapes say so; `out` contiguous."""
    if is_packed(xp, a.shape, b.shape, out.dtype):
        return bind_packed(keep, a, b, out)
    if is_batched(xp, a.shape, b.shape, out.dtype):
        return bind_batched(a, b, out)
    return bind_matmul(xp, a, b, out)


@kernel("MatMul", versions=(1, 9, 13), dispatch=Dispatch.LIBRARY)
def matmul(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A, B of one dtype -> numpy.matmul; half precision adds in float32, integers wrap."""
    a, b = tensor(op, specs, 0), tensor(op, specs, 1)
    dtype = one_dtype(op, (a, b), NUMBERS)
    if dtype in NARROW:
        return widened(matmul, op, specs, xp)
    output = TensorSpec(dtype, matmul_shape(op, a.shape, b.shape))

    few, many = is_few_rows(xp, a.shape, b.shape, dtype), is_batched(xp, a.shape, b.shape, dtype)
    weighted = not few and is_weighted(xp, a.shape, b.shape, dtype)
    tiles = many or is_packed(xp, a.shape, b.shape, dtype)
    keep = Keeper()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if few:
            return bind_few_rows(inputs[0], inputs[1], outputs[0])
        if weighted:
            return bind_weighted(inputs[0], inputs[1], outputs[0])
        call = bind_product(xp, keep, inputs[0], inputs[1], outputs[0])
        return Quiet(call) if dtype in FLOATS and not tiles else call

    # One matrix on the right makes one product of all rows, where those lie one after the other.
    batches = xp is np and len(b.shape) > 2 and elements(b.shape[:-2]) != 1
    blocks = [k for k, s in enumerate((a, b)) if batches and len(s.shape) > 2 and not many]
    return computed(
        (output,), bind, blocks=blocks, turned=[1] if few or many else (), as_they_lie=(0, 1) if many else ()
    )


@kernel("Gemm", versions=(7, 9, 11, 13), dispatch=Dispatch.LIBRARY)
def gemm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A (M, K), B (K, N), either of them transposed by attribute, optional C -> alpha A B + beta C, (M, N)."""
    a, b, c = tensor(op, specs, 0), tensor(op, specs, 1), given(specs, 2)
    dtype = one_dtype(op, (a, b) if c is None else (a, b, c), NUMBERS)
    if dtype in NARROW:
        return widened(gemm, op, specs, xp)
    if len(a.shape) != 2 or len(b.shape) != 2:
        fail(op, f"operands of shape {list(a.shape)} and {list(b.shape)} are not two matrices")
    trans_a, trans_b = bool(op.attr("transA", 0)), bool(op.attr("transB", 0))
    alpha, beta = float(op.attr("alpha", 1.0)), float(op.attr("beta", 1.0))
    left = a.shape[::-1] if trans_a else a.shape
    right = b.shape[::-1] if trans_b else b.shape
    output = TensorSpec(dtype, matmul_shape(op, left, right))
    if c is not None and not broadcasts_to(c, output.shape):
        fail(op, f"of shape {list(c.shape)} does not broadcast to {list(output.shape)}", "C")
    adds = c is not None and beta != 0
    parts: tuple[Part, ...] = ((c.shape, dtype),) if c is not None and adds and beta != 1 else ()
    packs = is_packed(xp, left, right, dtype)
    row = c is not None and c.shape[-1:] == output.shape[1:] and elements(c.shape) == output.shape[1]
    joins = packs and row and alpha == beta == 1
    turns = xp is np and dtype in FLOATS and trans_b and 1 < left[0] <= FEW_ROWS
    keep = Keeper()

    def laid_out(b: Array, calls: list[Call]) -> Array:
        """The transpose of `b`, laid out anew: once where it is constant, else by each call."""

        def make() -> Array:
            return np.ascontiguousarray(b.T)

        if is_constant(b):
            return keep("turned", (b,), make)
        target = make()
        calls.append(partial(np.copyto, target, b.T))
        return target

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        calls: list[Call] = []
        x, y = inputs[0].T if trans_a else inputs[0], inputs[1].T if trans_b else inputs[1]
        out = outputs[0]
        if joins:
            return bind_packed(keep, x, y, out, inputs[2].reshape(-1))
        if packs:
            calls.append(bind_packed(keep, x, y, out))
        else:
            calls.append(bind_matmul(xp, x, laid_out(inputs[1], calls) if turns else y, out))
        if alpha != 1:
            calls.append(partial(xp.multiply, out, alpha, out, casting="unsafe"))
        if adds:
            bias = inputs[2]
            if parts:
                (scaled,) = carve(workspace, *parts)
                calls.append(partial(xp.multiply, bias, beta, scaled, casting="unsafe"))
                bias = scaled
            calls.append(partial(xp.add, out, bias, out))
        call = in_turn(calls)
        return Quiet(call) if dtype in FLOATS else call

    return computed((output,), bind, workspace_bytes=carved_bytes(*parts))


@kernel("FusedMatMul", "TransposeMatMul", domain="com.microsoft", versions=(1,), dispatch=Dispatch.LIBRARY)
def fused_matmul(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A, B, transposed by attribute (`transA`, `transBatchA`: the first axis moves before the last) -> alpha A B."""
    a, b = tensor(op, specs, 0), tensor(op, specs, 1)
    dtype = one_dtype(op, (a, b), FLOATS)
    if dtype in NARROW:
        return widened(fused_matmul, op, specs, xp)
    alpha = float(op.attr("alpha", 1.0))

    def turned(array: Array, side: str) -> Array:
        if op.attr(f"transBatch{side}", 0) and array.ndim > 2:
            array = array.transpose(*range(1, array.ndim - 1), 0, array.ndim - 1)
        return transposed(array) if op.attr(f"trans{side}", 0) and array.ndim > 1 else array

    shapes = [turned(np.broadcast_to(np.int8(0), s.shape), side).shape for s, side in ((a, "A"), (b, "B"))]
    output = TensorSpec(dtype, matmul_shape(op, *shapes))
    keep = Keeper()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        calls = [bind_product(xp, keep, turned(inputs[0], "A"), turned(inputs[1], "B"), outputs[0])]
        if alpha != 1:
            calls.append(partial(xp.multiply, outputs[0], alpha, outputs[0]))
        return Quiet(in_turn(calls))

    return computed((output,), bind)
