"""The numbers that decoding draws."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hetero.decode.draws import Purpose, uniform

WORDS = st.integers(0, 2**64 - 1)


@given(WORDS, WORDS, WORDS, st.sampled_from(Purpose))
def test_a_number_depends_on_its_key_alone(seed: int, step: int, sequence: int, purpose: Purpose) -> None:
    first = uniform(seed, step, sequence, purpose)
    uniform(seed, step + 1 if step < 2**64 - 1 else 0, sequence, purpose)
    assert uniform(seed, step, sequence, purpose) == first
    assert 0 <= first < 1


def test_numbers_of_neighbouring_keys_differ() -> None:
    keys = [(seed, step, k, p) for seed in range(4) for step in range(6) for k in range(4) for p in Purpose]
    assert len({uniform(*key) for key in keys}) == len(keys)


def test_the_numbers_of_successive_steps_are_spread_evenly() -> None:
    counts, _ = np.histogram([uniform(1, step, 0, Purpose.TOKEN) for step in range(4000)], 16, (0, 1))
    assert ((counts - 250) ** 2 / 250).sum() < 37.7  # chi-square, 15 degrees of freedom, 0.1 %
