"""Sliding windows: kernel, strides, dilations and pads of Conv and the pools, and the extents they yield."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import tensor
from hetero.kernels.limits import bounded, bounded_steps
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

MAX_EXTENT = 1 << 40
"""Kernels, strides, dilations and pads beyond it fit no tensor, and would overflow positions computed in int64."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window over `extents` (the spatial axes). Output o reads input o*stride - begin + k*dilation.

    `outputs` are the output extents; `ends` are the declared pads behind, which with ceil_mode may end before
    the last window does.
    """

    extents: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def taps(self) -> int:
        """Positions in the kernel."""
        return math.prod(self.kernel)

    @property
    def positions(self) -> int:
        """Windows per plane."""
        return math.prod(self.outputs)

    @property
    def reach(self) -> tuple[int, ...]:
        """Extents of a padded plane that holds every window whole."""
        return tuple(
            max((o - 1) * s + (k - 1) * d + 1, b + e)
            for o, s, k, d, b, e in zip(
                self.outputs,
                self.strides,
                self.kernel,
                self.dilations,
                self.begins,
                self.extents,
                strict=True,
            )
        )

    @property
    def padded(self) -> bool:
        """Whether some window leaves the input."""
        return any(self.begins) or self.reach != self.extents


def window_of(
    op: Operation,
    extents: Sequence[int],
    kernel: Sequence[int],
    *,
    ceil_mode: bool = False,
    dilate: bool = True,
) -> Window:
    """The window that the attributes strides, dilations (if `dilate`), pads and auto_pad describe.

    With `ceil_mode` a last, partial window is kept only where it starts inside the input or the pad in front.
    Raises: KernelError where an attribute contradicts the rank or is no legal extent.
    """
    rank = len(kernel)
    if len(extents) != rank:
        raise KernelError(
            f"a kernel of rank {rank} does not fit {len(extents)} spatial axes", op=op.id, node=op.name
        )
    kernel = _positive(op, "kernel_shape", kernel, rank)
    bounded_steps(op, sum(kernel), "kernel_shape")
    strides = _positive(op, "strides", op.attr("strides") or (1,) * rank, rank)
    dilations = _positive(op, "dilations", (op.attr("dilations") if dilate else None) or (1,) * rank, rank)
    effective = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto_pad = auto_pad_of(op)
    begins, ends = [0] * rank, [0] * rank
    outputs = []
    if auto_pad == "NOTSET":
        pads = tuple(int(p) for p in (op.attr("pads") or (0,) * (2 * rank)))
        if len(pads) != 2 * rank:
            raise KernelError(
                f"pads {list(pads)} must have {2 * rank} entries", op=op.id, node=op.name, operand="pads"
            )
        if min(pads, default=0) < 0:
            raise UnsupportedError(f"negative pads {list(pads)}", op=op.id, node=op.name, operand="pads")
        if max(pads, default=0) > MAX_EXTENT:
            raise KernelError(
                f"pads {list(pads)} pass the bound {MAX_EXTENT}", op=op.id, node=op.name, operand="pads"
            )
        begins, ends = list(pads[:rank]), list(pads[rank:])
    for axis in range(rank):
        extent, stride = extents[axis], strides[axis]
        if auto_pad.startswith("SAME"):
            outputs.append(-(-extent // stride))
            total = max((outputs[-1] - 1) * stride + effective[axis] - extent, 0)
            begins[axis] = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            ends[axis] = total - begins[axis]
            continue
        room = extent + begins[axis] + ends[axis] - effective[axis]
        if room < 0:
            if extent == 0:
                outputs.append(0)
                continue
            raise KernelError(
                f"a window of {effective[axis]} does not fit spatial axis {axis} of {extent} with pads"
                f" {begins[axis]} and {ends[axis]}",
                op=op.id,
                node=op.name,
            )
        count = (-(-room // stride) if ceil_mode else room // stride) + 1
        if ceil_mode and (count - 1) * stride >= extent + begins[axis]:
            count -= 1
        outputs.append(count)
    bounded(op, np.dtype(np.int8), outputs)  # before anything is worked out per position
    return Window(tuple(extents), kernel, strides, dilations, tuple(begins), tuple(ends), tuple(outputs))


def auto_pad_of(op: Operation) -> str:
    """The auto_pad attribute as text. Raises: KernelError for an unknown one."""
    value = op.attr("auto_pad", "NOTSET")
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    text = text or "NOTSET"
    if text not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise KernelError(f"unknown auto_pad {text!r}", op=op.id, node=op.name, operand="auto_pad")
    return text


def _positive(op: Operation, name: str, values: Sequence[int], rank: int) -> tuple[int, ...]:
    result = tuple(int(v) for v in values)
    if len(result) != rank or min(result, default=1) < 1 or max(result, default=1) > MAX_EXTENT:
        raise KernelError(
            f"{name} {list(result)} must be {rank} positive extents of at most {MAX_EXTENT}",
            op=op.id,
            node=op.name,
            operand=name,
        )
    return result


def spatial(op: Operation, specs: Sequence[Spec], index: int = 0) -> TensorSpec:
    """specs[index] as (batch, channels, spatial axes…). Raises: KernelError for a lower rank."""
    spec = tensor(op, specs, index)
    if len(spec.shape) < 3:
        raise KernelError(
            f"input {index} of shape {list(spec.shape)} has no spatial axis after batch and channels",
            op=op.id,
            node=op.name,
        )
    return spec


def interior(padded: Array, window: Window) -> Array:
    """The part of planes (…, *window.reach) that the input itself fills."""
    spots = tuple(slice(b, b + e) for b, e in zip(window.begins, window.extents, strict=True))
    return padded[(..., *spots)]


def windows(xp: Any, planes: Array, window: Window) -> Array:
    """A view (…, *kernel, *outputs) of planes (…, *window.reach) with pads already in place."""
    rank = len(window.kernel)
    lead, steps = planes.strides[:-rank], planes.strides[-rank:]
    return xp.lib.stride_tricks.as_strided(
        planes,
        (*planes.shape[:-rank], *window.kernel, *window.outputs),
        (
            *lead,
            *(s * d for s, d in zip(steps, window.dilations, strict=True)),
            *(s * t for s, t in zip(steps, window.strides, strict=True)),
        ),
    )


def axis_taps(window: Window, axis: int) -> list[tuple[slice, slice]]:
    """Per tap of the kernel along one axis: which outputs it serves, and the inputs that they read; clipped to the
    input, so pads need no copy. A tap that only ever falls on pads has an empty pair."""
    stride, extent, count = window.strides[axis], window.extents[axis], window.outputs[axis]
    pairs = []
    for k in range(window.kernel[axis]):
        shift = k * window.dilations[axis] - window.begins[axis]
        lo = min(max(0, -(shift // stride)), count)
        hi = max(lo, min(count, (extent - 1 - shift) // stride + 1))
        if lo == hi:
            pairs.append((slice(0, 0), slice(0, 0)))
        else:
            pairs.append((slice(lo, hi), slice(lo * stride + shift, (hi - 1) * stride + shift + 1, stride)))
    return pairs
