"""com.microsoft's helpers of text decoding on the host: NGramRepeatBlock and DynamicTimeWarping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, dynamic, kernel, tensor
from hetero.kernels.broadcasting import one_dtype
from hetero.kernels.operands import fail
from hetero.program.operation import Operation
from hetero.types import FLOATS, HostArray, Spec, TensorSpec

MICROSOFT = "com.microsoft"
DIAGONAL, UP, LEFT = 0, 1, 2


@kernel("NGramRepeatBlock", domain=MICROSOFT, versions=(1,), portable=False)
def ngram_repeat_block(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """input_ids (batch, length), scores (batch, vocabulary) -> scores, -inf where a token would repeat an n-gram.

    Raises when called: KernelError where such a token is outside the vocabulary.
    """
    ids, scores = tensor(op, specs, 0), tensor(op, specs, 1)
    one_dtype(op, (scores,), FLOATS)
    size = int(op.attr("ngram_size", 0))
    if size < 1:
        fail(op, f"{size} is not positive", "ngram_size")
    if len(ids.shape) != 2 or len(scores.shape) != 2 or ids.shape[0] != scores.shape[0]:
        fail(op, f"input_ids {list(ids.shape)} and scores {list(scores.shape)} are not of one batch")
    length, vocabulary = ids.shape[1], scores.shape[1]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        tokens, given_scores, out = *inputs, outputs[0]

        def call() -> None:
            out[...] = given_scores
            if length < size:
                return
            grams = np.lib.stride_tricks.sliding_window_view(tokens, size, axis=1)
            start = tokens[:, None, length - size + 1 :]  # the last size - 1 tokens
            rows, places = (grams[..., : size - 1] == start).all(-1).nonzero()
            banned = grams[rows, places, -1]
            if banned.size and not 0 <= banned.min() <= banned.max() < vocabulary:
                fail(op, f"token outside a vocabulary of {vocabulary}", "input_ids")
            out[rows, banned] = -np.inf

        return call

    return computed((TensorSpec(scores.dtype, scores.shape),), bind)


def warping_path(cost: HostArray) -> HostArray:
    """The cheapest path through `cost` (M, N) from its first element to its last, as rows and columns (2, length).

    Each step goes down, right or both. Of equal choices a step right comes first, then both, where a step both ways
    is strictly cheaper than either only then.
    """
    m, n = cost.shape
    total = np.full((m + 1, n + 1), np.inf, cost.dtype)
    total[0, 0] = 0
    trace = np.full((m + 1, n + 1), -1, np.int8)
    for diagonal in range(2, m + n + 1):  # no element depends on another of its anti-diagonal
        i = np.arange(max(1, diagonal - n), min(m, diagonal - 1) + 1)
        j = diagonal - i
        both, up, left = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        way = np.where((both < up) & (both < left), DIAGONAL, np.where((up < both) & (up < left), UP, LEFT))
        trace[i, j] = way
        total[i, j] = cost[i - 1, j - 1] + np.choose(way, (both, up, left))
    path: list[tuple[int, int]] = []
    i, j = m, n
    while i > 0 and j > 0:
        path.append((i - 1, j - 1))
        way = trace[i, j]
        i, j = i - (way != LEFT), j - (way != UP)
    return np.array(path[::-1], np.int32).reshape(-1, 2).T.copy()


@kernel("DynamicTimeWarping", domain=MICROSOFT, versions=(1,), portable=False)
def dynamic_time_warping(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Costs (M, N) or (1, M, N) -> the cheapest path from corner to corner, int32 (2, length)."""
    x = tensor(op, specs, 0)
    one_dtype(op, (x,), FLOATS)
    if len(x.shape) not in (2, 3) or (len(x.shape) == 3 and x.shape[0] != 1):
        fail(op, f"must be a matrix, has shape {list(x.shape)}", "input")

    def run(inputs: Sequence[Any]) -> tuple[HostArray]:
        return (warping_path(inputs[0].reshape(x.shape[-2:])),)

    return dynamic(run)
