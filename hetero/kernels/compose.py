"""Kernels after one another, seen as one: the second works on the first one's result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed
from hetero.kernels.fused import in_turn
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.types import TensorSpec


def followed_by(first: Compiled, second: Compiled) -> Compiled:
    """The kernel that runs `first` and then `second`, whose input 0 is the first one's only output.

    Both must have outputs that are known. Where the second may overwrite its input, both work in the output's memory.
    """
    bind_first, bind_second, middle = first.bind, second.bind, first.outputs[0]
    assert bind_first is not None
    assert bind_second is not None
    assert isinstance(middle, TensorSpec)
    in_place = (0, 0) in second.overwrites
    shared = max(first.workspace_bytes, second.workspace_bytes)  # they never work at the same time
    parts: tuple[Part, ...] = (((shared,), np.uint8), ((0,) if in_place else middle.shape, middle.dtype))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        scratch, between = carve(workspace, *parts)
        target = outputs[0] if in_place else between
        return in_turn(
            [
                bind_first(
                    inputs, (target,), scratch[: first.workspace_bytes] if first.workspace_bytes else None
                ),
                bind_second(
                    (target,), outputs, scratch[: second.workspace_bytes] if second.workspace_bytes else None
                ),
            ]
        )

    return computed(
        second.outputs,
        bind,
        contiguous=first.contiguous,
        workspace_bytes=carved_bytes(*parts),
        capture=first.capture or second.capture,
    )
