"""What attention operators do before they attend: heads as views, biased copies, keys and values with their past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.operands import fail
from hetero.program.operation import Operation
from hetero.types import Array, TensorSpec

LOWEST = float(np.finfo(np.float32).min)
"""The score of a key that may not be seen, as onnxruntime has it: a query that sees none sees all alike."""


def split_heads(array: Array, heads: int) -> Array:
    """(batch, sequence, heads * size) as a view (batch, heads, sequence, size)."""
    batch, length, hidden = array.shape
    return array.reshape(batch, length, heads, hidden // heads if heads else 0).transpose(0, 2, 1, 3)


def head_size(op: Operation, hidden: int, heads: int, operand: str) -> int:
    """The size of a head. Raises: KernelError where `hidden` is not that many heads."""
    if heads < 1 or hidden % heads:
        fail(op, f"a hidden size of {hidden} is not {heads} heads", operand)
    return hidden // heads


def scale_of(op: Operation, size: int) -> float:
    """The attribute `scale`; 0 and none are 1 / sqrt(size)."""
    scale = float(op.attr("scale", 0.0))
    return scale if scale else 1.0 / float(np.sqrt(max(size, 1)))


def placed(xp: Any, source: Array, bias: Array | None, target: Array) -> Call:
    """target = source + bias."""
    return partial(xp.copyto, target, source) if bias is None else partial(xp.add, source, bias, target)


@dataclass(frozen=True, slots=True)
class Cache:
    """The past of keys or values and what becomes of it: (batch, heads, length, size) arrays.

    `past` steps lie in front; `new` ones follow. The present has room for `capacity` steps: past + new of them where
    it grows, and as many as the past's own array where that is a buffer of fixed size, which the present continues
    (and which it may be: see `Compiled.overwrites`). What lies behind past + new in a buffer stays as it was.
    """

    past: int
    new: int
    capacity: int

    @property
    def total(self) -> int:
        """Steps that can be attended to."""
        return self.past + self.new

    def calls(
        self, xp: Any, past: Array | None, source: Array, bias: Array | None, present: Array
    ) -> list[Call]:
        """What makes `present` of the past (None: there is none) and of `source` + `bias`."""
        calls: list[Call] = []
        if past is not None and not xp.may_share_memory(past, present):
            kept = past.shape[2] if past.shape[2] == self.capacity else self.past
            calls.append(partial(xp.copyto, present[:, :, :kept], past[:, :, :kept]))
        calls.append(placed(xp, source, bias, present[:, :, self.past : self.total]))
        return calls


def cache_of(
    op: Operation, keys: TensorSpec | None, values: TensorSpec | None, new: int, length: int | None
) -> Cache:
    """The cache for past keys and values (batch, heads, steps, size), or none of both.

    `length`: how many steps of them are filled, for buffers of fixed size; None where all are.
    Raises: KernelError where only one is given, their steps differ, or the new steps do not fit.
    """
    if (keys is None) != (values is None):
        fail(op, "past keys and values come together", "past_key" if keys is None else "past_value")
    if keys is None or values is None:
        return Cache(0, new, new)
    if len(keys.shape) != 4 or len(values.shape) != 4 or keys.shape[:3] != values.shape[:3]:
        fail(op, f"keys {list(keys.shape)} and values {list(values.shape)} do not go together", "past_value")
    steps = keys.shape[2]
    if length is None:
        return Cache(steps, new, steps + new)
    if not 0 <= length <= steps - new:
        fail(op, f"{length} steps and {new} new ones in a buffer of {steps}", "past_sequence_length")
    return Cache(length, new, steps)


def check_shape(
    op: Operation,
    spec: TensorSpec | None,
    expected: Sequence[int],
    operand: str,
    *,
    loose: Sequence[int] = (),
) -> None:
    """Raises: KernelError unless the operand has that shape, with 1 allowed on the axes `loose`."""
    if spec is None:
        return
    fits = len(spec.shape) == len(expected) and all(
        have == want or (axis in loose and have == 1)
        for axis, (have, want) in enumerate(zip(spec.shape, expected, strict=True))
    )
    if not fits:
        fail(op, f"of shape {list(spec.shape)}, expected {list(expected)}", operand)
