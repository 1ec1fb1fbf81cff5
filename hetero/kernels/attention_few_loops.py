"""Attention of a few queries, compiled: one pass over the keys and one over the values, where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.kernels.elementary import exp_exact, tanh_exact
from hetero.kernels.jit import floats_at, inline, jit, prange
from hetero.kernels.jit_lanes import add_weighted_at, dots_at, max_at, sum_at
from hetero.types import Array

(BATCH, KV_HEADS, GROUP, QUERIES, KEYS, SIZE, VALUE_SIZE, SCRATCH, SCRATCH_BYTES, SINK, ZERO_EMPTY, Q, K, V,
 OUT, BIASES, BIAS) = (*range(12), 15, 19, 23, 27, 28)  # fmt: skip
"""Places of the words: sizes, addresses, flags. From Q, K, V, OUT and every BIAS on: an address, and the bytes from one
batch entry, one head and one step to the next."""
SCALE, SOFTCAP, MASKED = range(3)
"""Places of the numbers."""
_BLOCK = 64
"""Keys whose values are added up before they join the sum: they stay in the first cache for all rows, and a long
sum keeps its precision."""
_LOWEST, _TINY = np.finfo(np.float32).min, np.finfo(np.float32).tiny
_NONE, _ZERO = np.float32(-np.inf), np.float32(0)


def _array(words: Any, at: int, shape: tuple[int, ...]) -> Array:
    """The array (batch, heads, steps, n) whose address and strides stand at `at`."""
    steps = [int(w) for w in words[at + 1 : at + 4]]
    extent = 1 + sum((n - 1) * step // 4 for n, step in zip(shape, (*steps, 4), strict=True))
    flat = floats_at(int(words[at]), extent)
    return np.lib.stride_tricks.as_strided(flat, shape, (*steps, 4))


def _few_numpy(words: Any, last: Any, first: Any, numbers: Any) -> None:
    """The compiled function's result, by whole arrays."""
    b, kv, group, s, t, size, value_size = (int(w) for w in words[:SCRATCH])
    n = kv * group
    q, out = _array(words, Q, (b, n, s, size)), _array(words, OUT, (b, n, s, value_size))
    k, v = (_array(words, at, (b, kv, t, d)) for at, d in ((K, size), (V, value_size)))
    scores = ((q * numbers[SCALE]).reshape(b, kv, group * s, size) @ k.swapaxes(-1, -2)).reshape(b, n, s, t)
    if numbers[SOFTCAP]:
        scores = np.tanh(scores / numbers[SOFTCAP]) * numbers[SOFTCAP]
    for i in range(int(words[BIASES])):
        scores = scores + _array(words, BIAS + 4 * i, scores.shape)
    seen = np.ones((1, 1, 1, t), bool)
    if last.size:
        seen = seen & (np.arange(t) <= last[:, None, :, None])
    if first.size:
        seen = seen & (np.arange(t) >= first[:, None, :, None])
    scores = np.where(seen, scores, numbers[MASKED])
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    sink = floats_at(int(words[SINK]), n).reshape(-1, 1, 1) if words[SINK] else None
    if sink is not None:
        top = np.maximum(top, sink)
    elif words[ZERO_EMPTY]:
        top = np.maximum(top, _LOWEST)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        if sink is not None:
            total = total + np.exp(sink - top)
        elif words[ZERO_EMPTY]:
            total = np.maximum(total, _TINY)
        # What no query sees may be anything.
        values = np.where((seen | (numbers[MASKED] != _NONE)).any(axis=(1, 2))[:, None, :, None], v, _ZERO)
        found = (weights.reshape(b, kv, group * s, t) @ values).reshape(out.shape) / total
    out[...] = found


@inline
def _seen(words: Any, last: Any, first: Any, b: int, s: int) -> Any:
    """The keys from which and up to which query `s` of entry `b` sees some."""
    start, stop = 0, words[KEYS]
    if last.size:
        stop = min(stop, max(last[b % last.shape[0], s % last.shape[1]] + 1, 0))
    if first.size:
        start = min(max(first[b % first.shape[0], s % first.shape[1]], 0), stop)
    return start, stop


@inline
def _weights(words: Any, numbers: Any, row: int, b: int, h: int, s: int, seen: Any, span: Any) -> Any:
    """Turn the products of one query at `row` into weights, but for their sum, which is returned."""
    start, stop = span
    scores = floats_at(row, words[KEYS])
    cap = numbers[SOFTCAP]
    if cap != _ZERO:
        for t in range(start, stop):
            scores[t] = tanh_exact(scores[t] / cap) * cap
    for i in range(words[BIASES]):
        at = BIAS + 4 * i
        address = words[at] + b * words[at + 1] + h * words[at + 2] + s * words[at + 3]
        bias = floats_at(address, words[KEYS])
        for t in range(start, stop):
            scores[t] += bias[t]
    for t in range(start, seen[0]):
        scores[t] = numbers[MASKED]
    for t in range(seen[1], stop):
        scores[t] = numbers[MASKED]
    top = max_at(row + 4 * start, stop - start)
    sink = _ZERO
    if words[SINK]:
        sink = floats_at(words[SINK], words[KV_HEADS] * words[GROUP])[h]
        top = max(top, sink)
    elif words[ZERO_EMPTY]:
        top = max(top, _LOWEST)
    for t in range(start, stop):
        scores[t] = exp_exact(scores[t] - top)
    total = sum_at(row + 4 * start, stop - start)
    if words[SINK]:
        total += exp_exact(sink - top)
    elif words[ZERO_EMPTY] and total < _TINY:
        total = _TINY
    return total


@jit("i8[1], i8[2], i8[2], f4[1]", twin=_few_numpy, exact=True)
def attend_few(words: Array, last: Array, first: Array, numbers: Array) -> None:
    """Attention as `words` and `numbers` say (see `attention_few`). `last` and `first` (batch or 1, queries or 1), or
    empty: the last and the first key that each query sees. Keys and values that nobody sees are not read."""
    kv_heads, group, queries, keys = words[KV_HEADS], words[GROUP], words[QUERIES], words[KEYS]
    size, width = words[SIZE], words[VALUE_SIZE]
    rows = group * queries
    for task in prange(words[BATCH] * kv_heads):
        b, h = task // kv_heads, task % kv_heads
        scaled = words[SCRATCH] + task * words[SCRATCH_BYTES]
        scores = scaled + 4 * rows * size
        sums = scores + 4 * rows * keys
        totals = floats_at(sums + 4 * rows * width, rows)
        key, value = (
            words[K] + b * words[K + 1] + h * words[K + 2],
            words[V] + b * words[V + 1] + h * words[V + 2],
        )
        everything = numbers[MASKED] != _NONE
        start, stop = keys, 0
        for r in range(rows):
            n, s = h * group + r // queries, r % queries
            q = floats_at(words[Q] + b * words[Q + 1] + n * words[Q + 2] + s * words[Q + 3], size)
            target = floats_at(scaled + 4 * r * size, size)
            for j in range(size):
                target[j] = q[j] * numbers[SCALE]
            own = floats_at(sums + 4 * r * width, width)
            for j in range(width):
                own[j] = _ZERO
            seen = _seen(words, last, first, b, s)
            start, stop = min(start, seen[0]), max(stop, seen[1])
        if everything:
            start, stop = 0, keys
        for block in range(start, stop, _BLOCK):
            count = min(block + _BLOCK, stop) - block
            for r in range(rows):
                target_at = scores + 4 * (r * keys + block)
                dots_at(
                    scaled + 4 * r * size, key + block * words[K + 3], words[K + 3], target_at, size, count
                )
        for r in range(rows):
            s = r % queries
            seen = _seen(words, last, first, b, s)
            span = (0, keys) if everything else seen
            totals[r] = _weights(
                words, numbers, scores + 4 * r * keys, b, h * group + r // queries, s, seen, span
            )
        for block in range(start // _BLOCK * _BLOCK, stop, _BLOCK):
            for r in range(rows):
                seen = _seen(words, last, first, b, r % queries)
                span = (0, keys) if everything else seen
                at, until = max(block, span[0]), min(block + _BLOCK, span[1])
                if at < until:
                    weights, own_at = scores + 4 * (r * keys + at), sums + 4 * r * width
                    add_weighted_at(
                        weights, value + at * words[V + 3], words[V + 3], own_at, width, until - at
                    )
        for r in range(rows):
            n, s = h * group + r // queries, r % queries
            out = floats_at(words[OUT] + b * words[OUT + 1] + n * words[OUT + 2] + s * words[OUT + 3], width)
            own = floats_at(sums + 4 * r * width, width)
            total = totals[r]
            for j in range(width):
                out[j] = own[j] / total
