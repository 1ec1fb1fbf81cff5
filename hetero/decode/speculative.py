"""Speculative decoding: a draft proposes some tokens, and one run of the target says which of them stand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hetero.decode.acceptance import Verdict, agreeing, together, weighed
from hetero.decode.context import Context
from hetero.decode.draws import Purpose, uniform
from hetero.decode.sampling import Sampling, choose, drawn_rows, greatest, probabilities
from hetero.types import HostArray


def speculated(
    target: Context, draft: Context, prompts: HostArray, count: int, sampling: Sampling, draft_tokens: int
) -> Iterator[HostArray]:
    """`count` tokens (batch,), int64, after prompts (batch, length); both contexts are empty.

    Greedy tokens are those of the target alone; sampled ones have its distribution. The target runs the prompt on graph
    slot "prefill", a token and its drafted successors on "verify", a single token on "primary".
    """
    tokens = prompts
    new = choose(target.run(tokens, "prefill")[:, -1], sampling, 0)[:, None]
    step = 0
    while True:
        yield from new.T
        step += new.shape[1]
        tokens = np.concatenate([tokens, new], axis=1)
        if step == count:
            return
        ahead = min(draft_tokens, count - step - 1)
        drafted, guessed = _proposed(draft, tokens, ahead, sampling, step)
        run = np.concatenate([tokens[:, -1:], drafted], axis=1)
        logits = target.run(run, "verify" if ahead else "primary")
        new = together(drafted, _verdicts(drafted, guessed, logits, sampling, step))
        seen = tokens.shape[1] + new.shape[1] - 1  # the last one is still to be run
        target.rewind(seen)
        draft.rewind(seen)


def _proposed(
    draft: Context, tokens: HostArray, ahead: int, sampling: Sampling, step: int
) -> tuple[HostArray, list[HostArray]]:
    """Tokens (batch, ahead) that the draft would append, and the distributions (batch, vocab) that each is drawn from.

    The draft first runs what it has not seen: the prompt, then one token, or two where all that it proposed stood.
    """
    batch = len(tokens)
    drafted = np.empty((batch, ahead), np.int64)
    guessed: list[HostArray] = []
    unseen = tokens[:, draft.length :]
    slot = "prefill" if draft.length == 0 else "primary" if unseen.shape[1] == 1 else "catch_up"
    for n in range(ahead):
        logits = draft.run(unseen, slot)[:, -1]
        if sampling.greedy:
            drafted[:, n] = greatest(logits)
        else:
            guessed.append(probabilities(logits, sampling))
            drafted[:, n] = drawn_rows(guessed[n], sampling, step + n, Purpose.DRAFT)
        unseen, slot = drafted[:, n : n + 1], "primary"
    return drafted, guessed


def _verdicts(
    drafted: HostArray, guessed: list[HostArray], logits: HostArray, sampling: Sampling, step: int
) -> list[Verdict]:
    """One verdict per sequence, from the target's logits (batch, ahead + 1, vocab)."""
    if sampling.greedy:
        return [agreeing(d, w) for d, w in zip(drafted, greatest(logits), strict=True)]
    wanted = probabilities(logits, sampling)
    no_guess = np.empty((0, logits.shape[-1]))

    def verdict(k: int) -> Verdict:
        guesses = np.stack([g[k] for g in guessed]) if guessed else no_guess
        return weighed(
            drafted[k], guesses, wanted[k], lambda n, purpose: uniform(sampling.seed, step + n, k, purpose)
        )

    return [verdict(k) for k in range(len(drafted))]
