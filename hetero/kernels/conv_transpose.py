"""ConvTranspose: one product gives every input position's contribution to each tap; taps are added where they land."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.derived import Keeper
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm_batched import bind_matrices
from hetero.kernels.gemm_gathered import is_gathered
from hetero.kernels.jit import PARALLEL_ELEMENTS, jit, prange
from hetero.kernels.jit_call import bound
from hetero.kernels.widen import NARROW, is_constant, widened
from hetero.kernels.window import Window, auto_pad_of, axis_taps, spatial
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

FLOATS = frozenset((np.dtype(np.float32), np.dtype(np.float64)))


@dataclass(frozen=True, slots=True)
class _Geometry:
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    outputs: tuple[int, ...]


def _geometry(op: Operation, extents: tuple[int, ...], kernel_extents: tuple[int, ...]) -> _Geometry:
    """Pads in front and output extents, by the formulas of the operator's text.

    Raises: KernelError for attributes of a wrong length or value.
    """
    rank = len(extents)

    def ints(name: str, default: int, least: int, length: int = rank) -> tuple[int, ...]:
        values = tuple(int(v) for v in (op.attr(name) or (default,) * length))
        if len(values) != length or min(values) < least:
            raise KernelError(f"{name} {list(values)} for {rank} axes", op=op.id, node=op.name, operand=name)
        return values

    strides, dilations = ints("strides", 1, 1), ints("dilations", 1, 1)
    extra = ints("output_padding", 0, 0)
    auto_pad = auto_pad_of(op)
    full = [
        (e - 1) * s + x + (k - 1) * d + 1 if e else 0
        for e, s, x, k, d in zip(extents, strides, extra, kernel_extents, dilations, strict=True)
    ]
    asked = tuple(int(v) for v in (op.attr("output_shape") or ()))
    if asked:
        if len(asked) not in (rank, rank + 2) or min(asked) < 0:
            raise KernelError(
                f"output_shape {list(asked)} for {rank} axes", op=op.id, node=op.name, operand="output_shape"
            )
        outputs = asked[-rank:]
    elif auto_pad.startswith("SAME"):
        outputs = tuple(e * s for e, s in zip(extents, strides, strict=True))
    else:
        pads = ints("pads", 0, 0, 2 * rank) if auto_pad == "NOTSET" else (0,) * (2 * rank)
        outputs = tuple(f - b - e for f, b, e in zip(full, pads[:rank], pads[rank:], strict=True))
        if min(outputs) < 0:
            raise KernelError(
                f"pads {list(pads)} leave nothing of {full}", op=op.id, node=op.name, operand="pads"
            )
        return _Geometry(strides, dilations, pads[:rank], outputs)
    totals = [max(f - o, 0) for f, o in zip(full, outputs, strict=True)]
    begins = tuple(t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in totals)
    return _Geometry(strides, dilations, begins, outputs)


@kernel("ConvTranspose", versions=(1, 11, 22))
def conv_transpose(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (N, C, D1…), W (C, M/group, k1…), optional B (M) -> (N, M, o1…), in X's float dtype."""
    x, w, b = spatial(op, specs), tensor(op, specs, 1), given(specs, 2)
    if x.dtype in NARROW:
        return widened(conv_transpose, op, specs, xp)
    if x.dtype not in FLOATS:
        raise UnsupportedError(f"convolution of {x.dtype}", op=op.id, node=op.name)
    group = int(op.attr("group", 1))
    if len(w.shape) != len(x.shape) or group < 1 or x.shape[1] != w.shape[0] or x.shape[1] % group:
        raise KernelError(
            f"input {list(x.shape)}, weight {list(w.shape)} and group {group} contradict each other",
            op=op.id,
            node=op.name,
        )
    n, extents, taps = x.shape[0], x.shape[2:], w.shape[2:]
    if tuple(op.attr("kernel_shape") or taps) != taps:
        raise KernelError(
            f"kernel_shape {list(op.attr('kernel_shape'))} is not the weight's {list(taps)}",
            op=op.id,
            node=op.name,
            operand="kernel_shape",
        )
    geometry = _geometry(op, extents, taps)
    maps = w.shape[1] * group
    if b is not None and b.shape != (maps,):
        raise KernelError(
            f"bias of shape {list(b.shape)} for {maps} maps", op=op.id, node=op.name, operand="B"
        )
    # A transposed convolution is the gradient of the convolution that maps its output extents to its input's.
    forward = Window(
        geometry.outputs,
        taps,
        geometry.strides,
        geometry.dilations,
        geometry.begins,
        geometry.begins,
        extents,
    )
    pairs = [axis_taps(forward, axis) for axis in range(len(taps))]
    output = TensorSpec(x.dtype, (n, maps, *geometry.outputs))
    inner = x.shape[1] // group
    spots = w.shape[1] * prod(taps)
    parts: tuple[Part, ...] = (((group, spots, prod(extents)), x.dtype),)
    if output.size == 0 or x.size == 0:
        parts = ()
    tiles = group == 1 and is_gathered(xp, (spots, inner), (inner, prod(extents)), x.dtype)
    keep = Keeper()
    planar = xp is np and len(taps) == 2

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        y = outputs[0]
        bias = None
        if len(inputs) > 2 and inputs[2] is not None:
            bias = inputs[2].reshape(maps, *(1,) * len(taps))
        start = xp.zeros((), x.dtype) if bias is None else bias
        copyto, add = xp.copyto, xp.add
        if not parts:
            return lambda: copyto(y, start)
        (columns,) = carve(workspace, *parts)
        weights = inputs[1].reshape(group, inner, spots).swapaxes(1, 2)
        if tiles and is_constant(inputs[1]):
            turned = weights
            weights = keep("turned", (inputs[1],), lambda: np.ascontiguousarray(turned))
        sources = inputs[0].reshape(n, group, inner, prod(extents))
        multiply = [bind_matrices(xp, weights, source, columns) for source in sources]
        spread = columns.reshape(maps, *taps, *extents)
        if planar:
            shift = np.zeros(maps, x.dtype) if bias is None else inputs[2]
            function = fold.variant(shift, parallel=output.size >= PARALLEL_ELEMENTS)
            steps = (*geometry.strides, *geometry.dilations, *geometry.begins)
            folds = [bound(function, spread, shift, y[i], *steps) for i in range(n)]
            return in_turn([call for pair in zip(multiply, folds, strict=True) for call in pair])
        landings = []
        for spot in product(*(range(k) for k in taps)):
            chosen = [pairs[axis][k] for axis, k in enumerate(spot)]
            if all(read.stop for _, read in chosen):
                here = spread[(slice(None), *spot, *(kept for kept, _ in chosen))]
                landings.append(((slice(None), *(read for _, read in chosen)), here))
        jobs = [(multiply[i], y[i], [(y[i][where], here) for where, here in landings]) for i in range(n)]

        def call() -> None:
            for product_of_one, target, sums in jobs:
                product_of_one()
                copyto(target, start)
                for part, here in sums:
                    add(part, here, out=part)

        return call

    return computed((output,), bind, contiguous=(0, 1, 2), workspace_bytes=carved_bytes(*parts))


def _fold_numpy(
    columns: Array, bias: Array, y: Array, sh: int, sw: int, dh: int, dw: int, top: int, left: int
) -> None:
    kh, kw, height, width = columns.shape[1:]
    window = Window(y.shape[1:], (kh, kw), (sh, sw), (dh, dw), (top, left), (top, left), (height, width))
    y[...] = bias[:, None, None]
    rows, across = (axis_taps(window, axis) for axis in range(2))
    for i, (kept_r, read_r) in enumerate(rows):
        for j, (kept_q, read_q) in enumerate(across):
            y[:, read_r, read_q] += columns[:, i, j, kept_r, kept_q]


@jit(
    "f4[5], f4[1], f4[3]!, i8, i8, i8, i8, i8, i8",
    "f8[5], f8[1], f8[3]!, i8, i8, i8, i8, i8, i8",
    twin=_fold_numpy,
)
def fold(
    columns: Array, bias: Array, y: Array, sh: int, sw: int, dh: int, dw: int, top: int, left: int
) -> None:
    """Add each tap's share, columns (M, kh, kw, H, W), to y (M, OH, OW) where it lands, over the bias (M)."""
    kh, kw, height, width = columns.shape[1], columns.shape[2], columns.shape[3], columns.shape[4]
    for m in prange(y.shape[0]):
        start = bias[m]
        plane = y[m]
        plane[:, :] = start
        for i in range(kh):
            for r in range(height):
                at = r * sh + i * dh - top
                if at < 0 or at >= y.shape[1]:
                    continue
                line = plane[at]
                for j in range(kw):
                    shift = j * dw - left
                    lo = min(max(0, -(shift // sw)), width)
                    hi = max(lo, min(width, (y.shape[2] - 1 - shift) // sw + 1))
                    if hi == lo:
                        continue
                    part = columns[m, i, j, r, lo:hi]
                    run = line[lo * sw + shift :]
                    if sw == 1:
                        for q in range(hi - lo):
                            run[q] += part[q]
                    else:
                        for q in range(hi - lo):
                            run[q * sw] += part[q]
