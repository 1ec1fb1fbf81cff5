"""Which of a draft's tokens stand: the rule of speculative decoding, for one sequence and for a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hetero.decode.draws import Purpose
from hetero.decode.sampling import drawn
from hetero.types import HostArray


class Verdict(NamedTuple):
    """So many drafted tokens stand, and `token` follows them: what the target has in place of the first that does not,
    or after the last where all do."""

    accepted: int
    token: int


def agreeing(drafted: HostArray, wanted: HostArray) -> Verdict:
    """Greedy: drafted (k,) stand as far as they are the target's own, wanted (k + 1,)."""
    different = np.flatnonzero(drafted != wanted[:-1])
    accepted = int(different[0]) if different.size else len(drafted)
    return Verdict(accepted, int(wanted[accepted]))


def weighed(
    drafted: HostArray, guessed: HostArray, wanted: HostArray, points: Callable[[int, Purpose], float]
) -> Verdict:
    """Sampling: the outcome has the target's distribution, whatever the draft's is.

    A token of probability q in the draft and p in the target stands with probability min(1, p / q); the one in its
    place is drawn from max(p - q, 0) (Leviathan et al. 2023, "Fast inference from transformers via speculative
    decoding", algorithm 1).

    drafted: (k,), drawn from guessed (k, vocab). wanted: (k + 1, vocab). points: the number in [0, 1) for the n-th
    place and a purpose.
    """
    for n, (token, q, p) in enumerate(zip(drafted.tolist(), guessed, wanted[:-1], strict=True)):
        if points(n, Purpose.ACCEPT) * q[token] < p[token]:
            continue
        rest = np.maximum(p - q, 0)
        # rounding alone can turn a token down where p and q are as good as equal
        return Verdict(n, drawn(rest if rest.any() else p, points(n, Purpose.TOKEN)))
    return Verdict(len(drafted), drawn(wanted[-1], points(len(drafted), Purpose.TOKEN)))


def together(drafted: HostArray, verdicts: Sequence[Verdict]) -> HostArray:
    """The tokens that every sequence of a batch has now, int64 (batch, n + 1), where n is the fewest that stand.

    drafted: (batch, k). A sequence with more than n has its own drafted token at the end: the lengths stay equal.
    """
    n = min(v.accepted for v in verdicts)
    last = [v.token if v.accepted == n else row[n] for v, row in zip(verdicts, drafted, strict=True)]
    return np.concatenate([drafted[:, :n], np.array(last, np.int64)[:, None]], axis=1)
