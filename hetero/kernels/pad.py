"""Pad: the interior is copied once, then each axis' borders are filled from views of what is already there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.limits import bounded
from hetero.kernels.operands import axes_of, fail, known_ints, zero_of
from hetero.program.operation import Operation
from hetero.types import Spec

SMALL_BYTES = 32 << 10
"""Outputs up to this size are filled whole: one call costs less than a call per border."""

Run = tuple[int, int, int, int]
"""(border position, source index, step along the source: -1, 0 or 1, count). Position 0 is the first real element."""


def runs(start: int, stop: int, extent: int, mode: str) -> Iterator[Run]:
    """What stands at positions [start, stop) when an axis of `extent` (≥ 1) elements goes on for ever.

    `mode` is edge, wrap or reflect (which does not repeat the outermost element). Every run is one slice.
    """
    if start >= stop:
        return
    if mode == "edge" or extent == 1:
        yield start, 0 if start < 0 else extent - 1, 0, stop - start
        return
    period = extent if mode == "wrap" else 2 * (extent - 1)
    at = start
    while at < stop:
        phase = at % period
        if mode == "wrap":
            source, step, count = phase, 1, extent - phase
        elif phase < extent - 1:
            source, step, count = phase, 1, extent - 1 - phase
        else:
            source, step, count = period - phase, -1, period - phase
        count = min(count, stop - at)
        yield at, source, step, count
        at += count


def _along(axis: int, rank: int, picked: slice, interior: Sequence[slice]) -> tuple[slice, ...]:
    """`picked` on `axis`; the whole extent of the axes before it (already filled), the interior of those after."""
    return (*(slice(None),) * axis, picked, *interior[axis + 1 : rank])


@kernel("Pad", versions=(2, 11, 13, 18, 19, 21, 23, 24, 25), values=(1, 3))
def pad(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Pad (or crop, where a pad is negative) each axis.

    Pads and value are attributes before version 11, inputs since; `axes` since 18; wrap since 19. Cropping comes
    first: the borders continue what is left.
    """
    x = tensor(op, specs, 0)
    rank = len(x.shape)
    mode = op.attr("mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap")[: 4 if op.version >= 19 else 3]:
        fail(op, f"{mode!r} is no padding mode", "mode")
    pads = op.attr("pads") if op.version < 11 else known_ints(op, specs, 1, "pads")
    named = known_ints(op, specs, 3, "axes") if op.version >= 18 else None
    axes = axes_of(op, range(rank) if named is None else named, rank)
    if pads is None or len(pads) != 2 * len(axes):
        fail(op, f"{0 if pads is None else len(pads)} pads for {len(axes)} axes", "pads")
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[len(axes) + i]
    kept, interior, shape = [], [], []
    for axis, extent in enumerate(x.shape):
        low, high = max(0, -before[axis]), extent - max(0, -after[axis])
        front, back = max(0, before[axis]), max(0, after[axis])
        left = max(0, high - low)
        if high - low + front + back < 0 or (high < low and (low > extent or high < 0)):
            fail(op, f"cannot crop axis {axis} of extent {extent} by {low} and {extent - high}", "pads")
        if left == 0 and mode != "constant" and front + back:
            fail(op, f"axis {axis} has nothing left to continue in mode {mode}", "pads")
        kept.append(slice(low, low + left))
        interior.append(slice(front, front + left))
        shape.append(front + left + back)
    out = bounded(op, x.dtype, shape)
    fill_spec = given(specs, 2) if op.version >= 11 else None
    if fill_spec is not None and fill_spec.size != 1:
        fail(op, f"must hold one element, has shape {list(fill_spec.shape)}", "constant_value")
    padded = [a for a in range(rank) if shape[a] != interior[a].stop - interior[a].start]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, target = inputs[0], outputs[0]
        steps = [partial(xp.copyto, target[tuple(interior)], source[tuple(kept)])]
        if mode == "constant":
            value: Any = zero_of(x.dtype) if op.version >= 11 else x.dtype.type(op.attr("value", 0.0))
            if fill_spec is not None:
                value = inputs[2].reshape(())
            if padded and out.nbytes <= SMALL_BYTES:
                steps.insert(0, partial(xp.copyto, target, value))
            else:
                for axis in padded:
                    for border in (slice(0, interior[axis].start), slice(interior[axis].stop, shape[axis])):
                        if border.start != border.stop:
                            steps.append(
                                partial(xp.copyto, target[_along(axis, rank, border, interior)], value)
                            )
        else:
            for axis in padded:
                front, left = interior[axis].start, interior[axis].stop - interior[axis].start
                borders = ((-front, 0), (left, shape[axis] - front))
                for low, high in borders:
                    for at, first, step, count in runs(low, high, left, mode):
                        into = slice(front + at, front + at + count)
                        begin = front + first
                        stop = begin + (step or 1) * (count if step else 1)
                        taken = slice(begin, None if stop < 0 else stop, step or 1)
                        steps.append(
                            partial(
                                xp.copyto,
                                target[_along(axis, rank, into, interior)],
                                target[_along(axis, rank, taken, interior)],
                            )
                        )
        if len(steps) == 1:
            return steps[0]

        def call() -> None:
            for step in steps:
                step()

        return call

    return computed([out], bind)
