"""MatMulNBits: a product with weights of 2 to 8 bits, which are dequantised once where they are constant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.derived import derived
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm import bind_matmul
from hetero.kernels.gemm_packed import bind_panels, is_packed, pack_into, packed
from hetero.kernels.operands import fail, host_reason
from hetero.kernels.packed import FLOAT32, UINT8, Blocks, require_block, require_width
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import is_constant
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import FLOATS, Array, Spec, TensorSpec

_B, _SCALES, _ZEROS, _GROUP, _BIAS = 1, 2, 3, 4, 5


def _check_weights(op: Operation, specs: Sequence[Spec], blocks: Blocks) -> None:
    b, scales, zero, group = (
        tensor(op, specs, _B), tensor(op, specs, _SCALES), given(specs, _ZEROS), given(specs, _GROUP)
    )  # fmt: skip
    if b.dtype != UINT8:
        raise UnsupportedError(f"weights of {b.dtype}", op=op.id, node=op.name, operand="B")
    blob = blocks.block * blocks.bits // 8
    if b.size != blocks.rows * blocks.count * blob:
        fail(op, f"has shape {list(b.shape)}, not {[blocks.rows, blocks.count, blob]}", "B")
    if scales.size != blocks.rows * blocks.count:
        fail(op, f"has shape {list(scales.shape)}, not {[blocks.rows, blocks.count]}", "scales")
    if zero is not None:
        width = blocks.zero_bytes if zero.dtype == UINT8 else blocks.count
        if zero.dtype != UINT8 and zero.dtype not in FLOATS:
            raise UnsupportedError(f"zero points of {zero.dtype}", op=op.id, node=op.name)
        if zero.size != blocks.rows * width:
            fail(op, f"has shape {list(zero.shape)}, not {[blocks.rows, width]}", "zero_points")
    if group is not None and group.size not in (blocks.depth, blocks.count * blocks.block):
        fail(op, f"has shape {list(group.shape)} for K = {blocks.depth}", "g_idx")


def _check_group(op: Operation, group: Array, blocks: Blocks) -> None:
    if group.size and (int(group.min()) < 0 or int(group.max()) >= blocks.count):
        fail(op, f"names a block outside [0, {blocks.count - 1}]", "g_idx")


@kernel("MatMulNBits", domain="com.microsoft", versions=(1,), dispatch=Dispatch.LIBRARY)
def matmul_nbits(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A (…, K), B (N, blocks, bytes) of packed integers, scales (N, blocks), optional zero points (N, blocks), packed
    as B or floats, g_idx (K; the block whose scale a column takes), bias (N) -> A @ dequantised B transposed, (…, N).

    `accuracy_level` sets how far A may be rounded; it never is. B without an element stands for a product of zeros.
    """
    a, b, bias = tensor(op, specs, 0), tensor(op, specs, _B), given(specs, _BIAS)
    one_dtype(op, (a,), FLOATS - {np.dtype(np.float64)})
    if op.attr("weight_prepacked", 0):
        raise UnsupportedError("weights in the layout of another device", op=op.id, node=op.name, operand="B")
    depth, n = int(op.attr("K")), int(op.attr("N"))
    bits = require_width(op, int(op.attr("bits", 4)))
    blocks = Blocks(n, depth, require_block(op, int(op.attr("block_size")), least=16), bits)
    if not a.shape or a.shape[-1] != depth:
        fail(op, f"has shape {list(a.shape)} for K = {depth}", "A")
    if bias is not None and bias.shape != (n,):
        fail(op, f"has shape {list(bias.shape)} for N = {n}", "bias")
    output = TensorSpec(a.dtype, (*a.shape[:-1], n))
    omitted = b.size == 0 and n > 0 and depth > 0
    if not omitted:
        _check_weights(op, specs, blocks)
    narrow = a.dtype != FLOAT32
    parts: tuple[Part, ...] = (
        (a.shape if narrow else (0,), FLOAT32),
        (output.shape if narrow else (0,), FLOAT32),
    )

    packs = is_packed(xp, a.shape, (depth, n), FLOAT32)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        wide_a, wide_y = carve(workspace, *parts)
        x, y = (wide_a, wide_y) if narrow else (inputs[0], outputs[0])
        calls: list[Call] = []
        if omitted:
            calls.append(partial(y.fill, 0))
        else:
            if narrow:
                calls.append(partial(xp.copyto, x, inputs[0], casting="unsafe"))
            weights, prepare = _weights(op, xp, blocks, (*inputs, None, None, None)[1:5], packs)
            multiply = bind_panels(x, weights, y) if packs else bind_matmul(xp, x, weights.T, y)
            calls += [*prepare, multiply]
        if bias is not None:
            calls.append(partial(xp.add, y, inputs[_BIAS], y))
        if narrow:
            calls.append(partial(xp.copyto, outputs[0], y, casting="unsafe"))
        return Quiet(in_turn(calls))

    return computed(
        (output,),
        bind,
        contiguous=(_B, _SCALES, _ZEROS),
        workspace_bytes=carved_bytes(*parts),
        capture=host_reason(xp, "allocates unpacked weights"),
    )


def _weights(
    op: Operation, xp: Any, blocks: Blocks, operands: Sequence[Array | None], packs: bool
) -> tuple[Array, list[Call]]:
    """The dequantised weights (N, K), in panels where `packs`, and the calls that fill them before each product."""
    bits, scales, zero, group = operands
    assert bits is not None
    assert scales is not None

    def fill(target: Array) -> None:
        if group is not None:
            _check_group(op, group, blocks)
        blocks.dequantize(xp, bits.reshape(blocks.rows, -1), scales, zero, target, group)

    if not all(a is None or is_constant(a) for a in operands):
        every_time = xp.empty((blocks.rows, blocks.depth), FLOAT32)
        if not packs:
            return every_time, [partial(fill, every_time)]
        panels = packed(every_time.T)
        return panels, [partial(fill, every_time), partial(pack_into, every_time.T, panels)]

    def make() -> Array:
        target = xp.empty((blocks.rows, blocks.depth), FLOAT32)
        with np.errstate(all="ignore"):
            fill(target)
        return packed(target.T) if packs else target

    return derived(("MatMulNBits", blocks, packs), operands, make), []
