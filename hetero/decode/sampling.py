"""From logits to a token: the greatest, or one drawn by temperature, top-k and top-p."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hetero.decode.draws import Purpose, uniform
from hetero.errors import KernelError, OptionError
from hetero.types import HostArray


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen.

    temperature: logits are divided by it; 0 takes the greatest logit (of equal ones the first), whatever the rest says.
    top_k: keep the k greatest logits (of equal ones the first); None keeps all.
    top_p: of these, keep the fewest greatest whose probabilities sum to at least this; 1 keeps all.
    seed: together with a token's place in its sequence and the sequence's place in the batch it decides every draw.

    Raises: OptionError.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise OptionError(
                f"temperature must be 0 or more, not {self.temperature!r}", operand="temperature"
            )
        if self.top_k is not None and not (isinstance(self.top_k, int | np.integer) and self.top_k >= 1):
            raise OptionError(f"top_k must be at least 1 or None, not {self.top_k!r}", operand="top_k")
        if not 0 < self.top_p <= 1:
            raise OptionError(f"top_p must be above 0 and at most 1, not {self.top_p!r}", operand="top_p")
        if not (isinstance(self.seed, int | np.integer) and 0 <= self.seed < 1 << 64):
            raise OptionError(f"seed must be a 64-bit unsigned number, not {self.seed!r}", operand="seed")

    @property
    def greedy(self) -> bool:
        """Whether the greatest logit is taken."""
        return self.temperature == 0


GREEDY = Sampling(temperature=0.0)


def greatest(logits: HostArray) -> HostArray:
    """Index of the greatest logit, int64 (…,) of floats (…, vocab). Raises: KernelError where a row holds none."""
    return np.asarray(_checked(logits).argmax(axis=-1), np.int64)


def probabilities(logits: HostArray, sampling: Sampling) -> HostArray:
    """float64 (…, vocab), each row summing to 1, of float logits (…, vocab); sampling must not be greedy.

    Raises: KernelError for a row that has no finite greatest logit.
    """
    wide = _checked(logits).astype(np.float64)
    vocab = wide.shape[-1]
    with np.errstate(over="ignore", under="ignore"):
        chances = np.exp((wide - wide.max(axis=-1, keepdims=True)) / sampling.temperature)
    if sampling.top_p < 1 or (sampling.top_k or vocab) < vocab:
        for row, ranks in zip(chances.reshape(-1, vocab), wide.reshape(-1, vocab), strict=True):
            _filter(row, ranks, sampling)
    return np.asarray(chances / chances.sum(axis=-1, keepdims=True))


def _filter(row: HostArray, logits: HostArray, sampling: Sampling) -> None:
    """Set to 0 what top_k and top_p drop of unnormalised probabilities (vocab,) of these logits."""
    order = np.argsort(-logits, kind="stable")[: sampling.top_k]
    mass = np.cumsum(row[order])
    kept = order[: int(np.searchsorted(mass, sampling.top_p * mass[-1], side="left")) + 1]
    chosen = row[kept]
    row[...] = 0
    row[kept] = chosen


def drawn(chances: HostArray, point: float) -> int:
    """The token that `point`, in [0, 1), falls on, never one of chance 0.

    chances: (vocab,), not negative; they need not sum to 1.

    Raises: KernelError where no token has a chance.
    """
    able = np.flatnonzero(chances)
    if able.size == 0:
        raise KernelError("no token has a chance to be drawn", operand="logits")
    edges = np.cumsum(chances[able])
    place = int(np.searchsorted(edges, point * edges[-1], side="right"))
    return int(able[min(place, able.size - 1)])  # the product may round up to the last edge


def choose(logits: HostArray, sampling: Sampling, step: int, purpose: Purpose = Purpose.TOKEN) -> HostArray:
    """The next token of each sequence, int64 (batch,), of logits (batch, vocab), as the `step`-th new one."""
    if sampling.greedy:
        return greatest(logits)
    return drawn_rows(probabilities(logits, sampling), sampling, step, purpose)


def drawn_rows(chances: HostArray, sampling: Sampling, step: int, purpose: Purpose) -> HostArray:
    """A token for each row, int64 (batch,), of probabilities (batch, vocab)."""
    points = (uniform(sampling.seed, step, k, purpose) for k in range(len(chances)))
    return np.array([drawn(row, point) for row, point in zip(chances, points, strict=True)], np.int64)


def _checked(logits: HostArray) -> HostArray:
    """The logits, in float32 where they are narrower."""
    wide = logits if logits.dtype.itemsize >= 4 else logits.astype(np.float32)
    if not np.isfinite(wide.max(axis=-1)).all():  # the maximum of a row with a NaN is NaN
        raise KernelError(
            "a row of logits holds NaN, infinity, or no number above -infinity", operand="logits"
        )
    return wide
