"""A whole decoder: the tokens of every form, whole and split, are onnxruntime's."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import onnx
import pytest

from hetero import HeterogeneousExecutor
from hetero.decode import Decoder
from tests.dealing import shuffled
from tests.models.decoder import FORMS, SMALL, Config, Form, Peer, build, prompt
from tests.models.decoder_buffered import contrib
from tests.models.decoder_parts import Array
from tests.models.decoder_plain import plain

COUNT = 256
ROUNDING = 1e-4
"""By which logits, of deviation 4, may differ between forms; some 3e-5 was seen."""


@cache
def peer(
    form: Form = "plain", config: Config = SMALL, batch: int = 1, count: int = COUNT
) -> tuple[list[list[int]], Array]:
    """onnxruntime's tokens by sequence, and the logits (count, batch, vocab) that each is the greatest of."""
    steps = list(itertools.islice(Peer(config, form).greedy(prompt(config, batch=batch)), count))
    return np.stack([t for t, _ in steps], axis=1).tolist(), np.stack([logits for _, logits in steps])


def margin(logits: Array) -> float:
    """The least distance between the two greatest logits of a row."""
    ordered = np.sort(logits, axis=-1)
    return float((ordered[..., -1] - ordered[..., -2]).min())


def tokens_of(model: onnx.ModelProto, count: int, batch: int = 1, providers: object = ("cpu",)) -> object:
    """Our greedy tokens by sequence."""
    with HeterogeneousExecutor(model, providers, children="inline") as ex:  # type: ignore[arg-type]
        steps = Decoder(ex).generate_batch(prompt(batch=batch), max_new_tokens=count)
        return np.stack(list(steps), axis=1).tolist()


def test_the_decoder_says_many_things_and_is_sure_of_them() -> None:
    tokens, logits = peer()
    assert len(set(tokens[0])) > 100
    assert margin(logits) > 50 * ROUNDING


@pytest.mark.parametrize("form", ["contrib", "scatter"])
def test_the_forms_of_the_decoder_are_one_model(form: Form) -> None:
    tokens, logits = peer(form)
    assert tokens == peer()[0]
    np.testing.assert_allclose(logits, peer()[1], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("form", FORMS)
def test_256_greedy_tokens_are_onnxruntimes(form: Form) -> None:
    assert tokens_of(build(SMALL, form), COUNT) == peer()[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_decoder_split_over_three_devices_has_the_same_tokens(form: Form) -> None:
    model = build(SMALL, form)
    assert tokens_of(model, 32, providers=shuffled(model)) == [peer()[0][0][:32]]


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_has_the_tokens_of_each_of_its_prompts(form: Form) -> None:
    want, logits = peer(batch=3, count=48)
    assert margin(logits) > 1e-3
    assert tokens_of(build(SMALL, form), 48, batch=3) == want


def test_lengths_that_follow_from_the_mask_make_no_difference() -> None:
    assert tokens_of(contrib(SMALL, lengths=False), 48) == [peer()[0][0][:48]]


@pytest.mark.parametrize("opset", [18, 21])
def test_a_later_opset_makes_no_difference(opset: int) -> None:
    assert tokens_of(plain(SMALL, opset), 48) == [peer()[0][0][:48]]


@pytest.mark.parametrize("form", FORMS)
def test_a_tied_head_reads_the_embeddings(form: Form) -> None:
    config = Config(tied=True)
    want, logits = peer(config=config, count=48)
    assert margin(logits) > 5e-3
    assert tokens_of(build(config, form), 48) == want
