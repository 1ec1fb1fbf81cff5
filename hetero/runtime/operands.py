"""Arrays as kernels want them: gathered from the run's table, contiguous where asked for; and a kernel run once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hetero.kernels.base import Compiled
from hetero.providers.base import Provider
from hetero.types import Array, TensorSpec

UINT8 = np.dtype(np.uint8)
Gather: TypeAlias = Callable[[], list[Any]]
"""Lists an instruction's operands of the current run."""


def gatherer(fixed: Sequence[Any], moving: Sequence[tuple[int, int]], table: list[Any]) -> Gather:
    """Operands that are `fixed` for good, but for `moving`: (position, slot) pairs read from `table` in each run."""
    if not moving:
        return partial(list, fixed)

    def gather() -> list[Any]:
        inputs = list(fixed)
        for k, s in moving:
            inputs[k] = table[s]
        return inputs

    return gather


def make_contiguous(provider: Provider, inputs: list[Any], wanted: Iterable[int]) -> None:
    """Replace each of the `wanted` operands that is strided by a fresh contiguous copy."""
    for k in wanted:
        if k < len(inputs) and inputs[k] is not None and not provider.is_contiguous(inputs[k]):
            inputs[k] = contiguous_copy(provider, inputs[k])


def contiguous_copy(provider: Provider, array: Array) -> Array:
    """A fresh contiguous copy."""
    copy = provider.empty(TensorSpec(array.dtype, tuple(array.shape)))
    provider.copy(array, copy)()
    return copy


def run_once(provider: Provider, compiled: Compiled, inputs: list[Any]) -> tuple[Any, ...]:
    """Run a compiled kernel over `inputs` into fresh outputs."""
    make_contiguous(provider, inputs, compiled.contiguous)
    if compiled.run is not None:
        return provider.run(compiled, inputs)
    outputs = [provider.empty(s) if isinstance(s, TensorSpec) else None for s in compiled.outputs]
    workspace = None
    if compiled.workspace_bytes:
        workspace = provider.empty(TensorSpec(UINT8, (compiled.workspace_bytes,)))
    provider.bind(compiled, inputs, outputs, workspace)()
    return tuple(outputs)
