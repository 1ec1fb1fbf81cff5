"""When a sequence ends: at an end-of-sequence token, or when the caller says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from hetero.types import HostArray

Stop = Callable[[Sequence[int]], bool]
"""Whether a sequence ends here, given its new tokens so far."""


def until_stopped(
    steps: Iterator[HostArray], batch: int, eos_ids: Collection[int], stop: Stop | None
) -> Iterator[HostArray]:
    """`steps` of tokens (batch,), int64, until every sequence has ended.

    The token that ends a sequence is given out; the sequence repeats it while others go on.
    """
    told: list[list[int]] = [[] for _ in range(batch)]
    ended = np.zeros(batch, bool)
    for tokens in steps:
        shown = tokens.copy()
        for k, tokens_so_far in enumerate(told):
            if ended[k]:
                shown[k] = tokens_so_far[-1]
                continue
            tokens_so_far.append(int(tokens[k]))
            ended[k] = tokens_so_far[-1] in eos_ids or (stop is not None and stop(tokens_so_far))
        yield shown
        if ended.all():
            return
