"""The suite's random cases: what they draw has the right shape, dtype and distribution, and is new in every run.
What Dropout draws with a seed in the first run has onnx's values, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.backend.test.loader import load_model_tests

import hetero.backend
from tests.conformance.suite import DEVICES, DRAWN, cases, same_bits
from tests.dealing import shuffled

RUNS = 400
cases()  # loads what load_model_tests hands out, its warnings silenced
MODELS = {case.name: case for case in load_model_tests(kind="node") if case.name in DRAWN}


def draws(name: str, device: str) -> tuple[list[Any], list[Any], list[tuple[Any, ...]]]:
    """(inputs, expected outputs, outputs of each run) of a case."""
    ((inputs, expected),) = MODELS[name].data_sets
    with hetero.backend.prepare(MODELS[name].model, device) as rep:
        runs = [rep.run(inputs) for _ in range(RUNS)]
    for run in runs:
        assert [(o.shape, o.dtype) for o in run] == [(e.shape, e.dtype) for e in expected]
    assert any(not np.array_equal(runs[0][0], run[0]) for run in runs[1:])
    return list(inputs), list(expected), runs


def assert_shares(hits: Any, expected: Any) -> None:
    """The share of hits over the runs (axis 0) is within five standard deviations of `expected`."""
    spread = np.sqrt(expected * (1 - expected) / len(hits))
    assert np.all(np.abs(np.mean(hits, 0) - expected) <= 5 * spread)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(n for n in DRAWN if "bernoulli" in n))
def test_bernoulli_draws_ones_with_the_given_probabilities(name: str, device: str) -> None:
    (probabilities,), _, runs = draws(name, device)
    ones = np.stack([run[0] for run in runs])
    assert np.all((ones == 0) | (ones == 1))
    # The function body that onnx gives Bernoulli has 1 where the draw is greater: with 1 - p, against its own text.
    assert_shares(ones, 1 - probabilities if "expanded" in name else probabilities)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(n for n in DRAWN if "dropout" in n))
def test_dropout_in_training_keeps_and_scales_with_the_given_ratio(name: str, device: str) -> None:
    (x, *given), expected, runs = draws(name, device)
    for got, want in zip(runs[0], expected, strict=True):  # the node has a seed, and onnx's numbers are known
        np.testing.assert_allclose(got, want, rtol=1e-6)
    ratio = 0.5 if "default" in name else float(given[0])
    results = np.stack([run[0] for run in runs])
    kept = results != 0
    np.testing.assert_allclose(results, np.where(kept, x / (1 - ratio), 0), rtol=1e-6)
    assert_shares(kept, 1 - ratio)
    for run, keeps in zip(runs, kept, strict=True):
        assert all(np.array_equal(mask, keeps) for mask in run[1:])


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_a_split_draws_what_the_whole_draws(name: str) -> None:
    ((inputs, _),), model = MODELS[name].data_sets, MODELS[name].model
    with (
        hetero.backend.prepare(model, "CPU") as whole,
        hetero.backend.prepare(model, providers=shuffled(model)) as split,
    ):
        for _ in range(3):
            assert same_bits(split.run(inputs), whole.run(inputs))
