"""Arrays as kernels want them: gathered from the run's table, contiguous where asked for; and a kernel run once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hetero.kernels.base import Compiled, Run
from hetero.providers.base import Provider
from hetero.runtime.elements import arrived
from hetero.types import Array, SequenceValue, TensorSpec

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


def make_contiguous(provider: Provider, compiled: Compiled, inputs: list[Any]) -> None:
    """Replace each operand that does not lie as the kernel wants it by a fresh contiguous copy."""
    for k in compiled.contiguous:
        if k < len(inputs) and inputs[k] is not None and not provider.is_contiguous(inputs[k]):
            inputs[k] = contiguous_copy(provider, inputs[k])
    for k in compiled.blocks:
        if (
            k < len(inputs)
            and inputs[k] is not None
            and not has_blocks(provider, inputs[k], k in compiled.turned)
        ):
            inputs[k] = contiguous_copy(provider, inputs[k])


def has_blocks(provider: Provider, array: Array, turned: bool = False) -> bool:
    """Whether the matrices of the array (or, `turned`, their transposes) are contiguous, wherever each of them lies;
    for the host."""
    if provider.is_contiguous(array):
        return True
    if array.ndim < 3 or array.size == 0:
        return False
    matrix = array[(0,) * (array.ndim - 2)]
    return provider.is_contiguous(matrix) or (turned and provider.is_contiguous(matrix.T))


def contiguous_copy(provider: Provider, array: Array) -> Array:
    """A fresh contiguous copy."""
    copy = provider.empty(TensorSpec(array.dtype, tuple(array.shape)))
    provider.copy(array, copy)()
    return copy


def run_once(provider: Provider, compiled: Compiled, inputs: list[Any]) -> tuple[Any, ...]:
    """Run a compiled kernel over `inputs` into fresh outputs."""
    if compiled.reads is not None and compiled.run is not None:
        return _handle(provider, compiled.run, compiled.reads, inputs)
    inputs = [
        x if type(x) is np.ndarray or not isinstance(x, SequenceValue) else arrived(provider, x)
        for x in inputs
    ]
    make_contiguous(provider, compiled, inputs)
    if compiled.run is not None:
        return provider.run(compiled, inputs)
    outputs = [provider.empty(s) if isinstance(s, TensorSpec) else None for s in compiled.outputs]
    workspace = None
    if compiled.workspace_bytes:
        workspace = provider.empty(TensorSpec(UINT8, (compiled.workspace_bytes,)))
    provider.bind(compiled, inputs, outputs, workspace)()
    return tuple(outputs)


def _handle(provider: Provider, run: Run, reads: frozenset[int], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Run a kernel that moves handles; what it picks out of a sequence is brought here."""
    given = [provider.download(x) if k in reads and x is not None else x for k, x in enumerate(inputs)]
    results = run(given)
    return tuple(r if isinstance(r, SequenceValue) else arrived(provider, r) for r in results)
