"""LayerNormalization, RMSNormalization, GroupNormalization, InstanceNormalization, by way of `norm_rows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero.errors import KernelError
from hetero.kernels.base import ANY_VERSION, Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.broadcasting import broadcasts_to, elements, one_dtype
from hetero.kernels.norm_rows import FLOAT32, Rows, bind_rows
from hetero.kernels.operands import axis_of, fail
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import FLOATS, Array, DataType, Spec, TensorSpec, numpy_dtype


def stash_dtype(op: Operation) -> np.dtype[Any]:
    """The dtype of the statistics. Raises: KernelError for a `stash_type` that is no float."""
    code = op.attr("stash_type", 1)
    try:
        dtype = numpy_dtype(DataType(code))
    except (ValueError, KeyError):
        dtype = None
    if dtype is None or dtype not in FLOATS:
        raise KernelError(f"{code!r} is no float dtype", op=op.id, node=op.name, operand="stash_type")
    return dtype


def flat_affine(op: Operation, spec: TensorSpec | None, shape: tuple[int, ...], axis: int, name: str) -> str:
    """How a scale or bias that broadcasts to `shape` meets rows that start at `axis`.

    "none", "row" (one value an element of the row), "one" (a single value) or "each" (must be spread out).
    """
    if spec is None:
        return "none"
    if not broadcasts_to(spec, shape):
        fail(op, f"of shape {list(spec.shape)} does not broadcast to {list(shape)}", name)
    if spec.size == 1:
        return "one"
    inner = shape[axis:]
    extents = (1,) * (len(inner) - len(spec.shape)) + spec.shape
    return "row" if extents[-len(inner) :] == inner and spec.size == elements(inner) else "each"


@kernel("LayerNormalization", versions=range(1, 18))  # onnxruntime's exporters used it before it was standard
@kernel("RMSNormalization", versions=(23,))
@kernel("SimplifiedLayerNormalization", versions=ANY_VERSION)
@kernel("SimplifiedLayerNormalization", domain="com.microsoft", versions=(1,))
def layer_norm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, Scale, optional B -> Y, optional mean and 1 / standard deviation of the axes from `axis` on.

    RMSNormalization and SimplifiedLayerNormalization divide by the root mean square; Y has the scale's dtype there,
    and the second output of the latter is 1 / root mean square.
    """
    centred = op.op_type == "LayerNormalization"
    x, scale = tensor(op, specs, 0), tensor(op, specs, 1)
    bias = given(specs, 2) if centred else None
    for spec in (x, scale, *(() if bias is None else (bias,))):
        one_dtype(op, (spec,), FLOATS)
    axis = axis_of(op, int(op.attr("axis", -1)), len(x.shape))
    stash = stash_dtype(op)
    output = TensorSpec(x.dtype if centred else scale.dtype, x.shape)
    rows = Rows(
        1, elements(x.shape[:axis]), 1, elements(x.shape[axis:]), x.dtype, output.dtype,
        float(op.attr("epsilon", 1e-5)), centred,
    )  # fmt: skip
    if rows.wide == np.float64 and output.dtype != np.float64:
        rows = replace(rows, dtype=FLOAT32)
    statistic = TensorSpec(stash, (*x.shape[:axis], *(1,) * (len(x.shape) - axis)))
    specs_out = [output, statistic, statistic][: len(op.present_outputs)]
    outputs = tuple(s if p else None for s, p in zip(specs_out, op.present_outputs, strict=True))
    kinds = [flat_affine(op, scale, x.shape, axis, "Scale"), flat_affine(op, bias, x.shape, axis, "B")]
    spread: list[Part] = [(x.shape if kind == "each" else (0,), rows.wide) for kind in kinds]
    own = rows.parts(xp)

    def bind(inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        arrays = carve(workspace, *spread, ((carved_bytes(*own),), np.uint8))
        copies: list[tuple[Array, Array]] = []
        affine: list[Array | None] = []
        for kind, operand, scratch in zip(kinds, (*inputs[1:], None), arrays, strict=False):
            if kind == "each":
                copies.append((scratch, operand))
                operand = scratch.reshape(rows.rows, 1, rows.width)
            elif kind != "none":
                operand = operand.reshape(1, 1, -1)
            affine.append(None if kind == "none" else operand)
        mean = results[1] if centred and len(results) > 1 else None
        inverse = results[-1] if len(results) == (3 if centred else 2) else None
        call = bind_rows(
            xp, rows, inputs[0], results[0], affine[0], affine[1], arrays[-1], mean=mean, inverse=inverse
        )
        if not copies:
            return call

        def spread_first() -> None:
            for target, source in copies:
                target[...] = source
            call()

        return spread_first

    return computed(
        outputs,
        bind,
        contiguous=(0, 1, 2),
        # A scale or bias of X's shape may be X.
        overwrites=((0, 0),) if output.dtype == x.dtype and "each" not in kinds and axis > 0 else (),
        workspace_bytes=carved_bytes(*spread, ((carved_bytes(*own),), np.uint8)),
    )


@kernel("InstanceNormalization", versions=(6, 22))
@kernel("GroupNormalization", versions=(18, 21))
def channel_norm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, …), scale, bias -> X normalised per sample and group of channels (or channel).

    Scale and bias hold one value a channel; in GroupNormalization 18 one a group.
    """
    x, scale, bias = (tensor(op, specs, i) for i in range(3))
    one_dtype(op, (x, scale, bias), FLOATS)
    if len(x.shape) < 2:
        fail(op, f"needs at least two axes, has shape {list(x.shape)}", "X")
    batch, channels, width = x.shape[0], x.shape[1], elements(x.shape[2:])
    groups = channels if op.op_type == "InstanceNormalization" else int(op.attr("num_groups", 0))
    if groups < 1 or channels % groups:
        fail(op, f"{groups} does not divide {channels} channels", "num_groups")
    per_group = op.op_type == "GroupNormalization" and op.version < 21
    for name, spec in (("scale", scale), ("bias", bias)):
        if spec.shape != (groups if per_group else channels,):
            fail(op, f"of shape {list(spec.shape)} for {channels} channels in {groups} groups", name)
    inside = channels // groups
    rows = Rows(batch, groups, inside, width, x.dtype, x.dtype, float(op.attr("epsilon", 1e-5)))
    parts = rows.parts(xp)
    affine = (groups, 1 if per_group else inside, 1)

    def bind(inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        return bind_rows(
            xp, rows, inputs[0], results[0], inputs[1].reshape(affine), inputs[2].reshape(affine), workspace
        )

    return computed(
        (TensorSpec(x.dtype, x.shape),),
        bind,
        contiguous=(0, 1, 2),
        overwrites=((0, 0),),
        workspace_bytes=carved_bytes(*parts),
    )
