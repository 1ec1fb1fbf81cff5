"""From logits to a token."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hetero.decode import GREEDY, Sampling
from hetero.decode.draws import Purpose
from hetero.decode.sampling import choose, drawn, greatest, probabilities
from hetero.errors import KernelError, OptionError
from tests.decode.fake import Array

ROWS = arrays(np.float32, (2, 9), elements=st.floats(-20, 20, width=32))
TEMPERATURES = st.floats(0.05, 5)


@given(ROWS, TEMPERATURES)
def test_probabilities_are_the_softmax_of_logits_over_temperature(logits: Array, temperature: float) -> None:
    got = probabilities(logits, Sampling(temperature))
    want = np.exp(logits.astype(np.float64) / temperature)
    np.testing.assert_allclose(got, want / want.sum(axis=1, keepdims=True), rtol=1e-9)


@given(ROWS, TEMPERATURES, st.integers(1, 12))
def test_top_k_keeps_k_tokens_none_of_which_is_below_a_dropped_one(
    logits: Array, temperature: float, k: int
) -> None:
    for row, chances in zip(logits, probabilities(logits, Sampling(temperature, top_k=k)), strict=True):
        kept = chances > 0
        assert kept.sum() <= min(k, 9)  # fewer where a chance is too small for a float
        assert row[kept].min() >= row[~kept].max(initial=-np.inf)
        np.testing.assert_allclose(chances.sum(), 1)


@given(ROWS, TEMPERATURES, st.floats(0.01, 1))
def test_top_p_keeps_the_fewest_tokens_that_reach_the_mass(
    logits: Array, temperature: float, top_p: float
) -> None:
    whole = probabilities(logits, Sampling(temperature))
    for chances, kept in zip(
        whole, probabilities(logits, Sampling(temperature, top_p=top_p)) > 0, strict=True
    ):
        assert chances[kept].sum() >= top_p - 1e-9
        assert chances[kept].sum() - chances[kept].min() < top_p + 1e-9


def test_top_p_counts_the_mass_of_what_top_k_left() -> None:
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]]))
    got = probabilities(logits, Sampling(top_k=2, top_p=0.5))
    np.testing.assert_allclose(got, [[1, 0, 0, 0]])  # 0.4 of 0.7


def test_of_equal_logits_the_first_are_kept() -> None:
    logits = np.zeros((1, 4))
    np.testing.assert_allclose(probabilities(logits, Sampling(top_k=2)), [[0.5, 0.5, 0, 0]])
    assert greatest(logits).tolist() == [0]


@given(ROWS, st.integers(0, 9), st.integers(1, 12), st.floats(0.01, 1))
def test_temperature_0_takes_the_greatest_whatever_the_rest(
    logits: Array, step: int, k: int, top_p: float
) -> None:
    got = choose(logits, Sampling(0, top_k=k, top_p=top_p, seed=step), step)
    assert got.tolist() == logits.argmax(axis=1).tolist()


@given(ROWS, st.integers(0, 2**64 - 1), st.integers(0, 100))
def test_the_same_seed_step_and_place_give_the_same_token(logits: Array, seed: int, step: int) -> None:
    sampling = Sampling(seed=seed)
    both = choose(logits, sampling, step)
    assert choose(logits, sampling, step).tolist() == both.tolist()
    assert choose(logits[:1], sampling, step).tolist() == both[:1].tolist()


def test_drawn_tokens_have_the_distribution() -> None:
    logits = np.log(np.array([[0.05, 0.4, 0.25, 0.2, 0.1]]))
    sampling = Sampling(temperature=0.7, top_k=4, seed=11)
    chances = probabilities(logits, sampling)[0]
    counts = np.bincount([int(choose(logits, sampling, step)[0]) for step in range(4000)], minlength=5)
    assert counts[chances == 0].tolist() == [0]
    want = chances[chances > 0] * 4000
    assert ((counts[chances > 0] - want) ** 2 / want).sum() < 16.3  # 3 degrees of freedom, 0.1 %


@given(
    arrays(np.float64, 6, elements=st.floats(0, 1)).filter(lambda c: c.any()),
    st.floats(0, 1, exclude_max=True),
)
def test_no_token_without_a_chance_is_drawn(chances: Array, point: float) -> None:
    assert chances[drawn(chances, point)] > 0


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_logits_may_be_of_any_float_dtype(dtype: type) -> None:
    logits = np.array([[0.5, 2.0, -1.0]]).astype(dtype)
    assert greatest(logits).tolist() == [1]
    np.testing.assert_allclose(probabilities(logits, Sampling()).sum(), 1)


def test_float64_logits_are_compared_as_such() -> None:
    assert greatest(np.array([[1.0, 1.0 + 1e-12]])).tolist() == [1]


def test_a_tiny_temperature_is_as_good_as_greedy() -> None:
    chances = probabilities(np.array([[1.0, 3.0, 2.0]]), Sampling(temperature=1e-310))
    assert chances.tolist() == [[0, 1, 0]]


def test_a_token_of_logit_minus_infinity_is_never_drawn() -> None:
    chances = probabilities(np.array([[0.0, -np.inf]]), Sampling())
    assert chances.tolist() == [[1, 0]]


@pytest.mark.parametrize("bad", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
def test_logits_that_say_nothing_are_an_error(bad: list[float], sampling: Sampling) -> None:
    with pytest.raises(KernelError, match="logits"):
        choose(np.array([[0.0, 1.0], bad]), sampling, 0)


def test_a_draw_without_chances_is_an_error() -> None:
    with pytest.raises(KernelError, match="no token"):
        drawn(np.zeros(3), 0.5)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"temperature": -1.0}, "temperature must be 0 or more, not -1.0"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 0}, "top_k must be at least 1 or None, not 0"),
        ({"top_k": 2.5}, "top_k must be at least 1 or None, not 2.5"),
        ({"seed": 0.5}, "seed must be a 64-bit unsigned number, not 0.5"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, not 0.0"),
        ({"top_p": 1.5}, "top_p"),
        ({"seed": -1}, "seed must be a 64-bit unsigned number, not -1"),
    ],
)
def test_a_sampling_that_cannot_be_meant_is_refused(given_: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Sampling(**given_)  # type: ignore[arg-type]


def test_a_draft_and_its_target_draw_other_numbers() -> None:
    logits = np.zeros((1, 1000))
    tokens = {int(choose(logits, Sampling(), 0, purpose)[0]) for purpose in Purpose}
    assert len(tokens) == 3
