"""Pad: the interior is copied once, then each axis' borders are filled from views of what is there."""

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
"""(border position, source index, source step -1, 0 or 1, count). Position 0 is the first real element."""


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


def _borders(
    shape: Sequence[int], interior: Sequence[slice], mode: str
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """(border, what it repeats) selections of the output, axis by axis; constants repeat nothing.

    Each covers the whole of the axes before its own (filled by then) and the interior of those after.
    """
    for axis, extent in enumerate(shape):
        front, stop = interior[axis].start, interior[axis].stop
        full, rest = (slice(None),) * axis, interior[axis + 1 :]
        for low, high in ((-front, 0), (stop - front, extent - front)):
            if mode == "constant":
                if low < high:
                    border = (*full, slice(front + low, front + high), *rest)
                    yield border, border
                continue
            for at, source, step, count in runs(low, high, stop - front, mode):
                begin = front + source
                end = begin + (step * count or 1)
                taken = slice(begin, None if end < 0 else end, step or 1)
                yield (*full, slice(front + at, front + at + count), *rest), (*full, taken, *rest)


@kernel("Pad", versions=(2, 11, 13, 18, 19, 21, 23, 24, 25), values=(1, 3), strided=True)
def pad(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Pad (or crop, where a pad is negative) each axis.

    Pads and value are attributes before version 11, inputs since; `axes` since 18; wrap since 19. Cropping
    comes first: the borders continue what is left.
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
    fill = given(specs, 2) if op.version >= 11 else None
    if fill is not None and fill.size != 1:
        fail(op, f"must hold one element, has shape {list(fill.shape)}", "constant_value")

    kept, interior = [slice(None)] * rank, [slice(0, extent) for extent in x.shape]
    shape = list(x.shape)
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[len(axes) + i]
        low, high = max(0, -before), x.shape[axis] + min(0, after)
        front, left = max(0, before), high - low
        if left < 0:
            fail(op, f"cannot crop axis {axis} of extent {x.shape[axis]} by {before} and {after}", "pads")
        shape[axis] = front + left + max(0, after)
        if left == 0 and mode != "constant" and shape[axis]:
            fail(op, f"axis {axis} has nothing left to continue in mode {mode}", "pads")
        kept[axis], interior[axis] = slice(low, high), slice(front, front + left)
    out = bounded(op, x.dtype, shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        target = outputs[0]
        place = partial(xp.copyto, target[tuple(interior)], inputs[0][tuple(kept)])
        if out.shape == tuple(s.stop - s.start for s in interior):
            return place
        if mode == "constant":
            value: Any = zero_of(x.dtype) if op.version >= 11 else x.dtype.type(op.attr("value", 0.0))
            if fill is not None:
                value = inputs[2].reshape(())
            if out.nbytes <= SMALL_BYTES:
                steps = [partial(xp.copyto, target, value), place]
            else:
                borders = _borders(shape, interior, mode)
                steps = [place, *(partial(xp.copyto, target[border], value) for border, _ in borders)]
        else:
            borders = _borders(shape, interior, mode)
            steps = [place, *(partial(xp.copyto, target[into], target[taken]) for into, taken in borders)]

        def call() -> None:
            for step in steps:
                step()

        return call

    return computed([out], bind)
