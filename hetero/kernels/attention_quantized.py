"""QAttention of com.microsoft: Attention with an input and weights of bytes; past the projection it is float32."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.attention import Attention, Extras, Reach
from hetero.kernels.attention_heads import LOWEST, Cache, check_shape, head_size, scale_of, split_heads
from hetero.kernels.attention_mask import causal_last, mask_of
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.operands import fail, host_reason
from hetero.kernels.product_exact import (
    FLOAT32,
    INT32,
    ExactProduct,
    reshaped,
    scaled,
    zero_shape,
)  # fmt: skip
from hetero.kernels.quantized import one_number, one_scale, require_bytes
from hetero.kernels.quiet import Quiet
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import Array, Spec, TensorSpec

_INPUT, _WEIGHT, _BIAS, _INPUT_SCALE, _WEIGHT_SCALE, _MASK, _INPUT_ZERO, _WEIGHT_ZERO, _PAST = range(9)


class _Projection:
    """(input - zero) @ (weight - zero), scaled, plus bias: (B, S, 3 * hidden) in float32."""

    def __init__(self, op: Operation, specs: Sequence[Spec], xp: Any) -> None:
        self.xp = xp
        x, weight, bias = tensor(op, specs, _INPUT), tensor(op, specs, _WEIGHT), tensor(op, specs, _BIAS)
        require_bytes(op, x, weight)
        if len(x.shape) != 3 or len(weight.shape) != 2 or weight.shape[0] != x.shape[2]:
            fail(op, f"of shape {list(weight.shape)} for an input {list(x.shape)}", "weight")
        if weight.shape[1] % 3:
            fail(op, f"{weight.shape[1]} columns are not queries, keys and values", "weight")
        one_scale(op, specs, _INPUT_SCALE, "input_scale")
        one_number(op, given(specs, _INPUT_ZERO), "input_zero_point")
        one_dtype(op, (bias, tensor(op, specs, _WEIGHT_SCALE)), frozenset((FLOAT32,)))
        check_shape(op, bias, (weight.shape[1],), "bias")
        self.scale = zero_shape(op, tensor(op, specs, _WEIGHT_SCALE), weight, -1, "weight_scale")
        self.zero = zero_shape(op, given(specs, _WEIGHT_ZERO), weight, -1, "weight_zero_point")
        self.product = ExactProduct(op, x.shape, weight.shape, xp)
        self.parts: tuple[Part, ...] = (*self.product.parts, (self.product.output, INT32))

    def bind(self, inputs: Sequence[Any], out: Array, workspace: Any) -> list[Call]:
        """The calls that project into `out`; `workspace` begins with `parts`."""
        sums = carve(workspace, *self.parts)[-1]
        zeros = reshaped(inputs, _INPUT_ZERO, ()), reshaped(inputs, _WEIGHT_ZERO, self.zero)
        scales = inputs[_INPUT_SCALE].reshape(()), inputs[_WEIGHT_SCALE].reshape(self.scale)
        return [
            *self.product.of_bytes(inputs[_INPUT], zeros[0], inputs[_WEIGHT], zeros[1], sums, workspace),
            partial(scaled, self.xp, sums, *scales, inputs[_BIAS], out, out),
        ]


@kernel("QAttention", domain="com.microsoft", versions=(1,), dispatch=Dispatch.LIBRARY)
def qattention(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """input (B, S, D) and weight (D, 3*N*H) in bytes, bias (3*N*H), their scales (the weight's one, or one a column),
    optional mask_index (see `mask_of`), zero points, past (2, B, N, P, H) -> output (B, S, N*H) in float32, optional
    present (2, B, N, P + S, H)."""
    if op.attr("do_rotary", 0) or op.attr("past_present_share_buffer", 0):
        raise UnsupportedError("rotation and shared buffers are not served", op=op.id, node=op.name)
    projection = _Projection(op, specs, xp)
    b, s, columns = projection.product.output
    past = given(specs, _PAST)
    n, hidden = int(op.attr("num_heads", 0)), columns // 3
    size = head_size(op, hidden, n, "weight")
    steps = 0
    if past is not None:
        one_dtype(op, (past,), frozenset((FLOAT32,)))
        steps = past.shape[3] if len(past.shape) == 5 else 0
        check_shape(op, past, (2, b, n, steps, size), "past")
    cache = Cache(steps, s, steps + s)
    t = cache.total
    mask = mask_of(
        op, given(specs, _MASK), batch=b, queries=s, past=steps, keys=t, dtype=FLOAT32, operand="mask_index"
    )
    sizes = Attention(b, n, n, s, t, size, size, FLOAT32, scale_of(op, size))
    causal = bool(op.attr("unidirectional", 0)) and s > 1
    store = (2, b, n, t, size)
    declared = (TensorSpec(FLOAT32, (b, s, hidden)), TensorSpec(FLOAT32, store))
    outputs = [d if p else None for d, p in zip(declared, op.present_outputs, strict=False)]
    wants_present = len(outputs) > 1 and outputs[1] is not None
    core_parts = sizes.parts(xp)
    parts: tuple[Part, ...] = (
        *projection.parts,
        (projection.product.output, FLOAT32),
        (store if past is not None and not wants_present else (0,), np.float32),
        *core_parts,
        *(() if mask is None else mask.parts),
    )
    first = len(projection.parts)

    def bind(inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        operands = [*inputs, *[None] * (_PAST + 1 - len(inputs))]
        projected, own, *scratch = carve(workspace, *parts)[first:]
        core, mask_scratch = scratch[: len(core_parts)], scratch[len(core_parts) :]
        calls = projection.bind(operands, projected, workspace)
        ends = (0, hidden, 2 * hidden, columns)
        queries, *kv = (split_heads(projected[:, :, i:j], n) for i, j in itertools.pairwise(ends))
        present = results[1] if wants_present else own if past is not None else None
        if present is not None:
            for i in range(2):
                before = None if past is None else operands[_PAST][i]
                calls += cache.calls(xp, before, kv[i], None, present[i])
                kv[i] = present[i]
        biases = []
        if mask is not None:
            calls += mask.bind(xp, operands[_MASK], *mask_scratch)
            biases.append(mask_scratch[0])
        reach = Reach(causal_last(xp, s, steps, t), None, LOWEST) if causal else None
        calls.append(
            sizes.bind(xp, queries, kv[0], kv[1], split_heads(results[0], n), core, Extras(biases, reach))
        )
        return Quiet(in_turn(calls))

    return computed(
        outputs,
        bind,
        contiguous=[i for i in range(len(specs)) if given(specs, i) is not None],
        workspace_bytes=carved_bytes(*parts),
        capture=host_reason(xp, "may allocate the right factor"),
    )
