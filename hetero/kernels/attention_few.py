"""Which attention goes to the compiled loops for a few queries, and how it is bound to them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.kernels import attention_few_loops as words_at
from hetero.kernels.attention_few_loops import attend_few
from hetero.kernels.base import Call
from hetero.kernels.fused import in_turn
from hetero.kernels.jit import enabled
from hetero.kernels.jit_call import bound
from hetero.kernels.workspace import ALIGNMENT_BYTES
from hetero.types import Array

if TYPE_CHECKING:
    from hetero.kernels.attention import Attention, Extras

MOST_QUERIES, MOST_ROWS = 4, 16
"""Queries of a head, and query heads times queries of a kv head, up to which these loops are used: they multiply
one row after the other, and BLAS has blocks of rows."""
PARALLEL_PRODUCTS = 1 << 21
"""Multiplications from which on threads pay."""
_FLOAT32 = np.dtype(np.float32)
_ANYTHING: Array = np.zeros((0, 0), np.int64)


def is_few(sizes: Attention, xp: Any) -> bool:
    """Whether this attention is of a few queries. By its sizes alone, so that equal shapes give equal bits."""
    few = 1 <= sizes.queries <= MOST_QUERIES and sizes.heads // sizes.kv_heads * sizes.queries <= MOST_ROWS
    return xp is np and few and sizes.dtype == _FLOAT32 and enabled()


def takes(extras: Extras) -> bool:
    """Whether the loops know these extras: they show no scores."""
    return not extras.taps and all(bias.dtype == _FLOAT32 for bias in extras.biases)


def scratch_floats(sizes: Attention) -> int:
    """float32 of scratch that `bind_few` needs."""
    return sizes.batch * sizes.kv_heads * _task_bytes(sizes) // 4


def _task_bytes(sizes: Attention) -> int:
    """Scratch of one kv head: scaled queries, scores, sums of values, and sums of weights."""
    rows = sizes.heads // sizes.kv_heads * sizes.queries
    floats = rows * (sizes.size + sizes.keys + sizes.value_size + 1)
    return -(-4 * floats // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def bind_few(
    sizes: Attention, queries: Array, keys: Array, values: Array, out: Array, scratch: Array, extras: Extras
) -> Call:
    """The call that attends, for operands as `Attention.bind` has them; `scratch`: `scratch_floats` float32.

    Only the rows of the operands (their last axis) must be dense, and what lies behind the keys that are seen is not
    read: a part of a larger buffer is used where it lies.
    """
    calls: list[Call] = []
    b, n, s, t = sizes.batch, sizes.heads, sizes.queries, sizes.keys
    arrays = [_dense(x, calls) for x in (queries, keys, values)]
    biases = [np.broadcast_to(_dense(x, calls), (b, n, s, t)) for x in extras.biases]
    sink = None if extras.sink is None else _dense(extras.sink, calls)
    words = np.zeros(words_at.BIAS + 4 * len(biases), np.int64)
    words[: words_at.SCRATCH] = b, sizes.kv_heads, n // sizes.kv_heads, s, t, sizes.size, sizes.value_size
    words[words_at.SCRATCH] = _address(scratch)
    words[words_at.SCRATCH_BYTES] = _task_bytes(sizes)
    words[words_at.SINK] = 0 if sink is None else _address(sink)
    words[words_at.ZERO_EMPTY] = extras.zero_empty
    words[words_at.BIASES] = len(biases)
    places = (words_at.Q, words_at.K, words_at.V, words_at.OUT)
    for at, array in zip(places, (*arrays, out), strict=True):
        words[at : at + 4] = _address(array), *array.strides[:3]
    for i, bias in enumerate(biases):
        at = words_at.BIAS + 4 * i
        words[at : at + 4] = _address(bias), *bias.strides[:3]
    reach = extras.reach
    last = _ANYTHING if reach is None else reach.last
    first = _ANYTHING if reach is None or reach.first is None else reach.first
    masked = -np.inf if reach is None else reach.masked
    numbers = np.array([sizes.scale, sizes.softcap, masked], np.float32)
    work = b * n * s * t * (sizes.size + sizes.value_size)
    call = bound(
        attend_few.variant(words, last, first, numbers, parallel=work >= PARALLEL_PRODUCTS),
        words,
        last,
        first,
        numbers,
    )
    call.__dict__["operands"] = arrays, out, scratch, biases, sink  # the words are only numbers
    return in_turn([*calls, call])


def _address(array: Array) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def _dense(array: Array, calls: list[Call]) -> Array:
    """The array, or where its rows are not dense and aligned a copy that each call makes anew."""
    if array.flags.aligned and (array.shape[-1] == 1 or array.strides[-1] == array.itemsize):
        return array
    copy = np.empty(array.shape, array.dtype)
    calls.append(partial(np.copyto, copy, array))
    return copy
