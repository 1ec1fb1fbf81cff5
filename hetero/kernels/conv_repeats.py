"""Filters that are equal are convolved once: cheaper where many are, and their maps are equal to the bit.

Pruned models have many filters of zeros. A product of matrices sums each row in an order that depends on where the row
lies (OpenBLAS's AVX2 kernels do), so equal filters would give maps that differ in the last bit. The choice depends on
the weights' values alone, constant or not, so that a model split differently gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero.kernels.base import Bind, Call
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.widen import is_constant
from hetero.kernels.workspace import Part, carved_bytes
from hetero.types import Array, HostArray

FEWEST_MAPS = 8
Route = Callable[[ConvShape], tuple[tuple[Part, ...], Bind]]
"""The workspace parts and the bind of a convolution of this shape."""


def repeats_serve(shape: ConvShape, xp: Any) -> bool:
    """Whether filters may repeat and looking for it is cheap: on the host, in one group."""
    return xp is np and shape.group == 1 and shape.maps >= FEWEST_MAPS and not shape.empty and shape.depth > 0


def bind_once_each(shape: ConvShape, dtype: np.dtype[Any], bind_all: Bind, route: Route) -> Bind:
    """`bind_all`, but where at most half of the filters differ from each other: then `route` for those alone."""

    looked_at: list[tuple[HostArray, tuple[HostArray, HostArray] | None]] = []
    """The latest constant weights and what was found in them, for steps that bind anew in each run."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        w = inputs[1]
        if is_constant(w):
            if not looked_at or looked_at[0][0] is not w:
                looked_at[:] = [(w, _distinct(w))]
            found = looked_at[0][1]
            return bind_all(inputs, outputs, workspace) if found is None else _few(inputs, outputs[0], *found)
        every = bind_all(inputs, outputs, workspace)

        def call() -> None:
            found = _distinct(w)  # as a rule, a look at one number of each filter
            (every if found is None else _few(inputs, outputs[0], *found))()

        return call

    def _few(inputs: Sequence[Any], y: Array, filters: HostArray, which: HostArray) -> Call:
        fewer = replace(shape, maps=len(filters))
        parts, bind_few = route(fewer)
        maps = np.empty((shape.batch, len(filters), *shape.window.outputs), dtype)
        few = bind_few([inputs[0], filters], [maps], np.empty(carved_bytes(*parts), np.uint8))
        bias = inputs[2] if len(inputs) > 2 else None
        if bias is not None:
            bias = bias.reshape(-1, *[1] * len(shape.window.outputs))

        def call() -> None:
            few()
            np.take(maps, which, axis=1, out=y, mode="clip")  # in bounds: the default would buffer
            if bias is not None:
                np.add(y, bias, out=y)

        return call

    return bind


def _distinct(w: HostArray) -> tuple[HostArray, HostArray] | None:
    """The different filters of w (M, …) and which of them each map has, where they are at most half; else None."""
    rows = w.reshape(len(w), -1)
    if 2 * len(np.unique(rows[:, rows.shape[1] // 2])) > len(rows):
        return None
    bits = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
    _, first, which = np.unique(bits, return_index=True, return_inverse=True)
    if 2 * len(first) > len(rows):
        return None
    filters = w[first]
    filters.flags.writeable = False
    return filters, which
