"""The masks of com.microsoft's Attention and MultiHeadAttention, in all their forms, as scores to add."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.broadcasting import BOOL, INTEGERS
from hetero.kernels.operands import fail
from hetero.kernels.workspace import Part
from hetero.program.operation import Operation
from hetero.types import Array, TensorSpec


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask operand whose form was recognised.

    `form`: "ends" (entry b sees the keys before mask[b]), "ends and starts" (…, from mask[batch + b] on) or "keys"
    (1: seen), which is then read through `window`, its (queries or 1, keys) selection for every entry.
    """

    form: str
    batch: int
    queries: int
    keys: int
    value: float
    dtype: np.dtype[Any]
    window: tuple[slice, slice] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the scores to add: (batch, 1, queries or 1, keys)."""
        return self.batch, 1, self.queries, self.keys

    @property
    def parts(self) -> tuple[Part, ...]:
        """The scratch of `bind`: the scores to add, and flags."""
        flags: Part = (self.shape, BOOL)
        return (self.shape, self.dtype), flags, flags if self.form == "ends and starts" else ((0,), BOOL)

    def bind(self, xp: Any, mask: Array, scores: Array, flags: Array, more: Array) -> list[Call]:
        """The calls that write the scores to add: `value` for keys that are not seen, else 0."""
        calls: list[Call] = []
        if self.form == "keys":
            seen = mask.reshape(self.batch, 1, -1, mask.shape[-1])
            if self.window is not None:
                seen = seen[:, :, self.window[0], self.window[1]]
            calls.append(partial(xp.less_equal, seen, 0, flags))
        else:
            places = xp.arange(self.keys)
            limits = mask.reshape(-1)
            calls.append(partial(xp.greater_equal, places, limits[: self.batch].reshape(-1, 1, 1, 1), flags))
            if self.form == "ends and starts":
                starts = limits[self.batch : 2 * self.batch].reshape(-1, 1, 1, 1)
                calls.append(partial(xp.less, places, starts, more))
                calls.append(partial(xp.logical_or, flags, more, flags))
        calls.append(partial(scores.fill, 0))
        calls.append(partial(xp.copyto, scores, self.value, where=flags))
        return calls


def mask_of(
    op: Operation,
    spec: TensorSpec | None,
    *,
    batch: int,
    queries: int,
    past: int,
    keys: int,
    dtype: np.dtype[Any],
    operand: str,
) -> Mask | None:
    """What the operand means; None where there is none, or where it hides nothing.

    (batch,) and (3 * batch + 2,): lengths; (batch, keys); (batch, queries, keys). Attention and QAttention alone:
    (2 * batch,), ends, then starts; (batch or 1, 1), which hides nothing; (batch, 1, max, max), of all queries from
    the first of the past on, and all keys.
    Raises: KernelError for other shapes and dtypes.
    """
    if spec is None:
        return None
    if spec.dtype not in INTEGERS | {BOOL}:
        fail(op, f"is {spec.dtype}, not an integer", operand)
    value = float(op.attr("mask_filter_value", -10000.0))
    whole, shape = op.op_type in ("Attention", "QAttention"), spec.shape
    plain = partial(Mask, batch=batch, keys=keys, value=value, dtype=dtype)
    if shape in ((batch,), (3 * batch + 2,)):
        return plain("ends", queries=1)
    if whole and shape == (2 * batch,):
        return plain("ends and starts", queries=1)
    if shape == (batch, keys):
        return plain("keys", queries=1)
    if whole and shape in ((batch, 1), (1, 1)):
        return None
    if shape == (batch, queries, keys):
        return plain("keys", queries=queries)
    if whole and len(shape) == 4 and shape[:2] == (batch, 1) and shape[2] == shape[3] >= keys:
        return plain("keys", queries=queries, window=(slice(past, past + queries), slice(0, keys)))
    fail(op, f"of shape {list(shape)} for {batch} entries, {queries} queries and {keys} keys", operand)


def causal_last(xp: Any, queries: int, past: int, keys: int) -> Array:
    """(1, queries): the last key that each query sees, the first of the past being key 0.

    The last query sees all keys, as in onnxruntime, which matters only where keys are not past + queries.
    """
    last = xp.arange(past, past + queries).reshape(1, -1)
    last[:, -1:] = keys - 1
    return last
