"""Decoding with real decoders, in every form: drafts, batches, going back, and executors that are closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hetero import HeterogeneousExecutor
from hetero.decode import Decoder, Sampling
from hetero.decode.context import Context
from hetero.decode.roles import roles_of
from hetero.decode.state import KeptState
from hetero.errors import ClosedError, InputError, OptionError, StateError
from tests.models.decoder import FORMS, SMALL, Config, Form, build, prompt

TINY = Config(layers=1, seed=9)
PROMPT = prompt()[0]
SPLIT: list[Any] = [("sim:0", {"except_ops": ["Softmax", "Sigmoid"]}), "cpu"]


@pytest.fixture(scope="module", params=FORMS)
def made(request: pytest.FixtureRequest) -> Iterator[HeterogeneousExecutor]:
    with HeterogeneousExecutor(build(SMALL, request.param), ["cpu"], children="inline") as ex:
        yield ex


@pytest.fixture
def ex(made: HeterogeneousExecutor) -> HeterogeneousExecutor:
    made.bind_state({})  # whatever the test before has bound
    return made


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
    bound = Decoder(ex)
    with pytest.raises(OptionError, match="cannot draft for itself"):
        bound.generate(PROMPT, max_new_tokens=40, draft=bound)
    ex.bind_state({})
    decoder = Decoder(ex, bound=False)
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
    roles = roles_of(ex.plan)
    sequence = Context(ex, roles, KeptState(roles, 1))
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("providers", [["cpu"], SPLIT], ids=["cpu", "split"])
def test_bound_caches_give_the_tokens_of_kept_ones_and_copy_nothing(form: Form, providers: list[Any]) -> None:
    with HeterogeneousExecutor(build(SMALL, form), providers, children="inline") as ex:
        kept = list(Decoder(ex, bound=False).generate(PROMPT, max_new_tokens=40))
        decoder = Decoder(ex)
        for draft_tokens in (None, 3):
            with HeterogeneousExecutor(build(TINY, form), ["cpu"], children="inline") as small:
                draft = None if draft_tokens is None else Decoder(small)
                got = list(
                    decoder.generate(PROMPT, max_new_tokens=40, draft=draft, draft_tokens=draft_tokens or 1)
                )
            assert got == kept
        children = ex.stats()["children"].values()
        assert sum(c["state_bytes"] for c in children) > 0
        assert sum(c["state_bytes_copied"] for c in children) == 0


def test_a_generation_that_lost_its_caches_to_a_newer_one_says_so(ex: HeterogeneousExecutor) -> None:
    decoder = Decoder(ex)
    older = decoder.generate(PROMPT, max_new_tokens=5)
    tokens = [next(older), next(older)]
    assert list(decoder.generate(PROMPT, max_new_tokens=2)) == tokens
    with pytest.raises(StateError, match="another generation"):
        next(older)


def test_a_closed_executor_ends_the_generation_with_its_error() -> None:
    with HeterogeneousExecutor(build(TINY, "plain"), ["cpu"], children="inline") as ex:
        stream = Decoder(ex).generate(PROMPT, max_new_tokens=5)
        next(stream)
    with pytest.raises(ClosedError):
        next(stream)
