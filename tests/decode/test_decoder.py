"""Generating tokens, on a decoder without weights."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from hetero.decode import Decoder, Sampling
from hetero.errors import InputError, KernelError, OptionError
from tests.decode.fake import FakeExecutor, mixed

VOCAB = 9
LOGITS = mixed(VOCAB)
CAPACITIES = pytest.mark.parametrize("capacity", [None, 24], ids=["growing", "buffer"])


def by_hand(prompt: list[int], count: int) -> list[int]:
    tokens = tuple(prompt)
    for _ in range(count):
        tokens += (int(LOGITS(tokens).argmax()),)
    return list(tokens[len(prompt) :])


def decoder(capacity: int | None = None) -> Decoder:
    return Decoder(FakeExecutor(LOGITS, VOCAB, capacity), bound=False)


@CAPACITIES
def test_each_token_is_the_greatest_after_all_before_it(capacity: int | None) -> None:
    assert list(decoder(capacity).generate([1, 2], max_new_tokens=12)) == by_hand([1, 2], 12)


@CAPACITIES
def test_the_prompt_is_run_at_once_and_then_a_token_per_step(capacity: int | None) -> None:
    ex = FakeExecutor(LOGITS, VOCAB, capacity)
    list(Decoder(ex, bound=False).generate([1, 2, 3], max_new_tokens=3))
    assert ex.steps == [("prefill", 3), ("primary", 1), ("primary", 1)]


def test_nothing_runs_before_the_first_token_is_asked_for() -> None:
    ex = FakeExecutor(LOGITS, VOCAB)
    stream = Decoder(ex, bound=False).generate([1], max_new_tokens=3)
    assert ex.steps == []
    next(stream)
    assert len(ex.steps) == 1


@CAPACITIES
def test_generations_of_one_decoder_do_not_disturb_each_other(capacity: int | None) -> None:
    shared = decoder(capacity)
    both = zip(shared.generate([1], max_new_tokens=8), shared.generate([2, 3], max_new_tokens=8), strict=True)
    first, second = map(list, zip(*both, strict=True))
    assert (first, second) == (by_hand([1], 8), by_hand([2, 3], 8))


def test_an_end_token_is_the_last() -> None:
    whole = by_hand([1, 2], 12)
    eos = whole[5]
    got = list(decoder().generate([1, 2], max_new_tokens=12, eos_ids={eos}))
    assert got == whole[: whole.index(eos) + 1]


def test_an_end_token_among_accepted_ones_ends_the_sequence() -> None:
    whole = by_hand([1, 2], 12)
    for eos in set(whole):
        got = list(decoder().generate([1, 2], max_new_tokens=12, eos_ids={eos}, draft=decoder()))
        assert got == whole[: whole.index(eos) + 1]


def test_the_caller_may_end_a_sequence_by_what_it_holds() -> None:
    seen: list[list[int]] = []

    def stop(tokens: Any) -> bool:
        seen.append(list(tokens))
        return len(tokens) == 3

    got = list(decoder().generate([1, 2], max_new_tokens=12, stop=stop))
    assert got == by_hand([1, 2], 3)
    assert seen == [got[:1], got[:2], got]


def test_a_sequence_of_a_batch_that_has_ended_repeats_its_last_token() -> None:
    prompts, eos = [[1, 2], [4, 1]], 8
    rows = [by_hand(p, 10) for p in prompts]
    got = np.stack(list(decoder().generate_batch(prompts, max_new_tokens=10, eos_ids=[eos])), axis=1)
    ends = [row.index(eos) + 1 for row in rows]
    want = [(row[:end] + [eos] * 10)[: max(ends)] for row, end in zip(rows, ends, strict=True)]
    assert got.tolist() == want
    assert ends[0] != ends[1]


def test_sequences_of_a_batch_draw_numbers_of_their_own() -> None:
    sampling = Sampling(seed=4)
    got = np.stack(
        list(decoder().generate_batch([[1], [1]], max_new_tokens=20, sampling=sampling)), axis=1
    ).tolist()
    assert got[0] != got[1]
    assert list(decoder().generate([1], max_new_tokens=20, sampling=sampling)) == got[0]


def test_a_new_iterator_begins_anew_after_one_was_dropped() -> None:
    shared = decoder()
    list(itertools.islice(shared.generate([4], max_new_tokens=9), 3))
    assert list(shared.generate([4], max_new_tokens=9)) == by_hand([4], 9)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], r"one or more integers \(length,\), not float64\[0\]"),
        ([[1, 2]], r"\(length,\), not int64\[1, 2\]"),
        ([1.5], r"integers"),
        ([[1], [1, 2]], r"prompt_ids must be integers"),
        ([1, VOCAB], f"from 0 to {VOCAB - 1}, not from 1 to {VOCAB}"),
        ([-1], "not from -1"),
    ],
)
def test_a_prompt_that_is_no_row_of_token_ids_is_refused(prompt: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        decoder().generate(prompt, max_new_tokens=1)


def test_prompts_of_different_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="all of one length"):
        decoder().generate_batch([[1], [1, 2]], max_new_tokens=1)


def test_more_tokens_than_a_sequence_may_have_are_refused_before_anything_runs() -> None:
    assert len(list(decoder(24).generate([1] * 4, max_new_tokens=20))) == 20
    with pytest.raises(InputError, match="4 tokens and 21 new ones are more than the 24"):
        decoder(24).generate([1] * 4, max_new_tokens=21)
    with pytest.raises(InputError, match="more than the 9"):
        Decoder(FakeExecutor(LOGITS, VOCAB), max_length=9, bound=False).generate([1], max_new_tokens=9)
    with pytest.raises(InputError, match="more than the 24"):
        decoder().generate([1] * 4, max_new_tokens=21, draft=decoder(24))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, not 0"),
        ({"max_new_tokens": 2.0}, "max_new_tokens must be at least 1, not 2.0"),
        ({"draft": decoder(), "draft_tokens": 0}, "draft_tokens must be at least 1, not 0"),
        ({"draft": Decoder(FakeExecutor(mixed(3), 3), bound=False)}, "the draft has 3 tokens, .* for 9"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        decoder().generate([1], **{"max_new_tokens": 4, **options})


def test_logits_of_the_last_token_alone_are_an_error() -> None:
    class LastOnly(FakeExecutor):
        def run(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            outputs = super().run(*args, **kwargs)
            return outputs | {"logits": outputs["logits"][:, -1:]}

    with pytest.raises(KernelError, match=r"shape \[1, 1, 9\], expected one row for each of \[1, 2\] tokens"):
        list(Decoder(LastOnly(LOGITS, VOCAB), bound=False).generate([1, 2], max_new_tokens=1))
