"""Chains of ufuncs over one array, run piece by piece so that what lies between two steps stays in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.kernels.base import Call, Compiled, computed
from hetero.kernels.quiet import Quiet
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.types import TensorSpec

PIECE_BYTES = 1 << 17
"""Bytes of input a piece holds: with the output and two scratch arrays half a megabyte, which a core's L2 holds.
Of 32 KiB to 512 KiB, 128 KiB and 256 KiB were measured fastest."""


def piece_elements(xp: Any, spec: TensorSpec) -> int:
    """Elements per piece. Other array modules run in one piece: their launches cost more than their memory."""
    return max(1, PIECE_BYTES // spec.dtype.itemsize) if xp is np else max(1, spec.size)


def in_turn(calls: Sequence[Call]) -> Call:
    """One call that makes all of these."""
    if len(calls) == 1:
        return calls[0]
    frozen = tuple(calls)

    def call() -> None:
        for each in frozen:
            each()

    return call


def chain(
    xp: Any,
    spec: TensorSpec,
    step: Callable[..., None],
    *,
    output: TensorSpec | None = None,
    scratch: Sequence[npt.DTypeLike] = (),
    in_place: bool = True,
) -> Compiled:
    """The kernel that runs `step(x, out, *scratch)` over flat pieces of input 0 and output 0, both of `spec`
    (the output of `output` where that is given, of the same shape).

    `step` writes every element of `out` by ufuncs with outputs; `scratch` are the dtypes of the arrays, as long as
    the piece, that it needs beside it. `in_place`: `out` may be `x`.
    """
    length = min(spec.size, piece_elements(xp, spec))
    parts: tuple[Part, ...] = tuple(((length,), dtype) for dtype in scratch)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        x, out = inputs[0].reshape(-1), outputs[0].reshape(-1)
        extra = carve(workspace, *parts)
        if 0 < spec.size <= length:
            return Quiet(partial(step, x, out, *extra))
        return Quiet(
            in_turn(
                [
                    partial(
                        step, x[i : i + length], out[i : i + length], *(e[: spec.size - i] for e in extra)
                    )
                    for i in range(0, spec.size, length or 1)
                ]
            )
        )

    return computed(
        (output or TensorSpec(spec.dtype, spec.shape),),
        bind,
        contiguous=(0,),
        overwrites=((0, 0),) if in_place else (),
        workspace_bytes=carved_bytes(*parts),
    )
