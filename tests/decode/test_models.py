"""Decoding with real decoders, in every form: drafts, batches, going back, and executors that are closed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hetero import HeterogeneousExecutor
from hetero.decode import Decoder, Sampling
from hetero.decode.context import Context
from hetero.decode.roles import roles_of
from hetero.errors import ClosedError, InputError
from tests.models.decoder import FORMS, SMALL, Config, Form, build, prompt

TINY = Config(layers=1, seed=9)
PROMPT = prompt()[0]


@pytest.fixture(scope="module", params=FORMS)
def ex(request: pytest.FixtureRequest) -> Iterator[HeterogeneousExecutor]:
    with HeterogeneousExecutor(build(SMALL, request.param), ["cpu"], children="inline") as made:
        yield made


@pytest.fixture(scope="module")
def tiny() -> Iterator[Decoder]:
    with HeterogeneousExecutor(build(TINY, "plain"), ["cpu"], children="inline") as made:
        yield Decoder(made)


@pytest.fixture(scope="module")
def target() -> Iterator[HeterogeneousExecutor]:
    with HeterogeneousExecutor(build(SMALL, "plain"), ["cpu"], children="inline") as made:
        yield made


def test_greedy_tokens_with_another_model_as_draft_are_those_without(
    ex: HeterogeneousExecutor, tiny: Decoder
) -> None:
    decoder = Decoder(ex)
    alone = list(decoder.generate(PROMPT, max_new_tokens=40))
    assert list(decoder.generate(PROMPT, max_new_tokens=40, draft=tiny)) == alone


def test_greedy_tokens_with_the_model_as_its_own_draft_are_those_without(ex: HeterogeneousExecutor) -> None:
    decoder = Decoder(ex)
    alone = list(decoder.generate(PROMPT, max_new_tokens=40))
    before = ex.stats()["steps"]
    assert list(decoder.generate(PROMPT, max_new_tokens=40, draft=decoder, draft_tokens=4)) == alone
    # the prompt twice, then 8 rounds of a verifying step and 4 steps of the draft less one in the last, for 39 tokens
    assert ex.stats()["steps"] - before == 2 + 8 * 5 - 1 - 1


def test_a_batch_with_a_draft_has_the_tokens_of_each_of_its_prompts(
    ex: HeterogeneousExecutor, tiny: Decoder
) -> None:
    decoder, prompts = Decoder(ex), prompt(batch=2)
    alone = [list(decoder.generate(p, max_new_tokens=16)) for p in prompts]
    got = np.stack(list(decoder.generate_batch(prompts, max_new_tokens=16, draft=tiny)), axis=1)
    assert got.tolist() == alone


def test_sampled_tokens_are_the_same_for_the_same_seed(ex: HeterogeneousExecutor) -> None:
    def tokens(seed: int) -> list[int]:
        sampling = Sampling(temperature=0.8, top_k=50, top_p=0.95, seed=seed)
        return list(Decoder(ex).generate(PROMPT, max_new_tokens=24, sampling=sampling))

    assert tokens(7) == tokens(7)
    assert tokens(7) != tokens(8)


def test_going_back_and_on_gives_the_logits_of_the_first_time(ex: HeterogeneousExecutor) -> None:
    sequence = Context(ex, roles_of(ex.plan), 1)
    sequence.run(PROMPT[None], "prefill")
    first = [sequence.run(np.array([[token]]), "primary") for token in (5, 6, 7)]
    sequence.rewind(len(PROMPT))
    sequence.run(np.array([[400, 401, 402, 403]]), "verify")
    sequence.rewind(len(PROMPT))
    for want, token in zip(first, (5, 6, 7), strict=True):
        np.testing.assert_array_equal(sequence.run(np.array([[token]]), "primary"), want)


def test_caches_are_not_written_once_they_are_given_out(target: HeterogeneousExecutor) -> None:
    roles = roles_of(target.plan)
    feeds = {
        **roles.feeds(PROMPT[None], 0),
        **{c.past: np.zeros((1, c.heads, 0, c.size), c.dtype) for c in roles.caches},
    }
    outputs = target.run(feeds)
    kept = {name: value.copy() for name, value in outputs.items()}
    caches = {c.past: outputs[c.present] for c in roles.caches}
    target.run({**roles.feeds(np.array([[1]]), len(PROMPT)), **caches})
    for name, value in outputs.items():
        np.testing.assert_array_equal(value, kept[name])


@pytest.mark.parametrize("form", ["contrib", "scatter"])
def test_a_buffer_bounds_the_sequence(form: Form) -> None:
    config = Config(max_length=16, layers=1)
    with HeterogeneousExecutor(build(config, form), ["cpu"], children="inline") as ex:
        decoder = Decoder(ex)
        assert len(list(decoder.generate(PROMPT, max_new_tokens=9))) == 9
        with pytest.raises(InputError, match="7 tokens and 10 new ones are more than the 16"):
            decoder.generate(PROMPT, max_new_tokens=10)


def test_a_closed_executor_ends_the_generation_with_its_error() -> None:
    with HeterogeneousExecutor(build(TINY, "plain"), ["cpu"], children="inline") as ex:
        stream = Decoder(ex).generate(PROMPT, max_new_tokens=5)
        next(stream)
    with pytest.raises(ClosedError):
        next(stream)
