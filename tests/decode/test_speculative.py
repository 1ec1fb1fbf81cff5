"""Decoding with a draft, on a decoder without weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.decode import GREEDY, Decoder, Sampling
from hetero.decode.sampling import probabilities
from tests.decode.fake import FakeExecutor, Logits, mixed, rolled

VOCAB = 6
TARGET = mixed(VOCAB, seed=1)
CAPACITIES = pytest.mark.parametrize("capacity", [None, 40], ids=["growing", "buffer"])


def sometimes(tokens: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Right at two of three lengths."""
    return np.asarray(TARGET(tokens) if len(tokens) % 3 else rolled(TARGET, 2)(tokens))


DRAFTS = {"right": TARGET, "wrong": rolled(TARGET, 1), "sometimes": sometimes, "other": mixed(VOCAB, seed=2)}


def tokens_of(
    capacity: int | None,
    draft: Logits | None,
    sampling: Sampling = GREEDY,
    *,
    count: int = 20,
    ahead: int = 4,
) -> tuple[list[int], FakeExecutor, FakeExecutor]:
    target = FakeExecutor(TARGET, VOCAB, capacity)
    helper = FakeExecutor(draft or TARGET, VOCAB, capacity)
    got = Decoder(target, bound=False).generate(
        [3, 1, 4],
        max_new_tokens=count,
        sampling=sampling,
        draft=None if draft is None else Decoder(helper, bound=False),
        draft_tokens=ahead,
    )
    return list(got), target, helper


@CAPACITIES
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("ahead", [1, 2, 4, 30])
def test_greedy_tokens_do_not_depend_on_the_draft(capacity: int | None, draft: str, ahead: int) -> None:
    alone, _, _ = tokens_of(capacity, None)
    assert tokens_of(capacity, DRAFTS[draft], ahead=ahead)[0] == alone


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 100))
def test_greedy_tokens_do_not_depend_on_how_many_are_drafted(count: int, ahead: int, seed: int) -> None:
    alone, _, _ = tokens_of(None, None, count=count)
    assert tokens_of(None, mixed(VOCAB, seed=seed), count=count, ahead=ahead)[0] == alone


def test_a_right_draft_costs_one_run_for_all_its_tokens_and_one() -> None:
    _, target, draft = tokens_of(None, TARGET, count=11)
    assert target.steps == [("prefill", 3), ("verify", 5), ("verify", 5)]
    assert draft.steps == [("prefill", 4), *[("primary", 1)] * 3, ("catch_up", 2), *[("primary", 1)] * 3]


def test_a_wrong_draft_costs_a_run_for_each_token() -> None:
    _, target, draft = tokens_of(None, rolled(TARGET, 1), count=4, ahead=2)
    assert target.steps == [("prefill", 3), ("verify", 3), ("verify", 2), ("primary", 1)]
    assert draft.steps == [("prefill", 4), ("primary", 1), ("primary", 1)]


def test_the_last_token_is_not_drafted_for() -> None:
    _, target, draft = tokens_of(None, TARGET, count=2)
    assert target.steps == [("prefill", 3), ("primary", 1)]
    assert draft.steps == []


@CAPACITIES
def test_the_same_seed_gives_the_same_tokens(capacity: int | None) -> None:
    draft = mixed(VOCAB, seed=2)
    first, _, _ = tokens_of(capacity, draft, Sampling(seed=5))
    assert tokens_of(capacity, draft, Sampling(seed=5))[0] == first
    assert tokens_of(capacity, draft, Sampling(seed=6))[0] != first
    assert tokens_of(None, draft, Sampling(seed=5))[0] == first


@pytest.mark.parametrize("ahead", [1, 2])
def test_sampled_tokens_keep_the_targets_distribution(ahead: int) -> None:
    """Four tokens of a vocabulary of 3, counted over many seeds, against the product of the target's probabilities."""
    target, runs = mixed(3, seed=5, scale=0.5), 4000
    want = np.empty((3, 3, 3, 3))
    for tokens in np.ndindex(want.shape):
        before = [target((0, *tokens[:n]))[None] for n in range(4)]
        want[tokens] = np.prod(
            [probabilities(b, Sampling())[0, t] for b, t in zip(before, tokens, strict=True)]
        )
    decoder, draft = (Decoder(FakeExecutor(f, 3), bound=False) for f in (target, mixed(3, seed=6, scale=1.5)))
    counts = np.zeros(want.shape)
    for seed in range(runs):
        got = decoder.generate(
            [0], max_new_tokens=4, sampling=Sampling(seed=seed), draft=draft, draft_tokens=ahead
        )
        counts[tuple(got)] += 1
    want *= runs
    assert ((counts - want) ** 2 / want).sum() < 124.8  # chi-square, 80 degrees of freedom, 0.1 %


@CAPACITIES
@pytest.mark.parametrize("draft", DRAFTS)
def test_each_sequence_of_a_batch_has_the_tokens_it_has_alone(capacity: int | None, draft: str) -> None:
    prompts = [[3, 1, 4], [1, 5, 2], [0, 0, 0]]
    decoder, helper = (
        Decoder(FakeExecutor(f, VOCAB, capacity), bound=False) for f in (TARGET, DRAFTS[draft])
    )
    alone = [list(decoder.generate(p, max_new_tokens=15)) for p in prompts]
    got = np.stack(list(decoder.generate_batch(prompts, max_new_tokens=15, draft=helper)), axis=1)
    assert got.tolist() == alone


@CAPACITIES
def test_tokens_come_as_soon_as_they_are_known(capacity: int | None) -> None:
    target, draft = FakeExecutor(TARGET, VOCAB, capacity), FakeExecutor(TARGET, VOCAB, capacity)
    stream = Decoder(target, bound=False).generate([1], max_new_tokens=20, draft=Decoder(draft, bound=False))
    next(stream)
    assert len(target.steps) == 1
    next(stream)
    assert len(target.steps) == 2
    for _ in range(4):
        next(stream)
    assert len(target.steps) == 2
