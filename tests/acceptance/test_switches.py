"""Every switch has an environment override, and no switch changes a bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.errors import OptionError
from tests.acceptance.graphs import rich_models
from tests.acceptance.harness import executor
from tests.dealing import shuffled
from tests.properties.graphs import N, RandomModel

SWITCHES: dict[str, list[Any]] = {
    "fold_constants": [False],
    "fold_limit_bytes": [0],
    "in_place": [False],
    "fuse_elementwise": [False],
    "share_repeats": [False],
    "map_weights": [False],
    "reuse_buffers": [False],
    "release_dead": [False],
    "capture": [False],
    "stage_bytes": [0, 100],
    "decode_memo": [False],
    "verify_decode_memo": [True],
    "max_specializations": [1],
    "frame_bytes": [0, 100],
    "memo_if_bytes": [0],
    "inline_single_scan": [True],
    "kernel_cache_size": [1],
    "weight_budget_bytes": [1 << 20],
    "prefetch_nodes": [3],
    "trace": [True],
    "trace_ops": [True],
}
"""Optimisations and what watches them, with the values that they are tested with."""
LIMITS = {
    "max_in_flight",
    "max_value_bytes",
    "step_timeout_s",
    "start_timeout_s",
    "extensions",
    "recover",
    "max_restarts",
    "max_step_deaths",
    "checkpoint_every",
    "heartbeat_timeout_s",
    "seed",
}
"""What is no optimisation: bounds, deadlines, recovery (whose bits tests/faults compares), modules to load, and the
seed, which is there to change bits."""
OFF = {name: values[0] for name, values in SWITCHES.items()}
CASES = [(name, value) for name, values in SWITCHES.items() for value in values]
BATCHES = (2, 2, 2, 3, 4, 5, 6, 7, 2, 2)
"""Steps that are captured, that grow by one, and that come back."""


def test_every_option_is_listed_here() -> None:
    fields = {field.name for field in dataclasses.fields(RuntimeOptions)}
    assert fields == SWITCHES.keys() | LIMITS, "add a new switch to SWITCHES, so that its bits are compared"
    assert not SWITCHES.keys() & LIMITS
    usual = RuntimeOptions()
    assert all(getattr(usual, name) not in values for name, values in SWITCHES.items())


@pytest.mark.parametrize("field", dataclasses.fields(RuntimeOptions), ids=lambda f: f.name)
def test_every_option_has_an_environment_override(field: dataclasses.Field[Any]) -> None:
    kind = type(field.default)
    wanted = {bool: not field.default, int: 5, float: 2.5, str: "some.module"}[kind]
    text = {True: "1", False: "0"}[wanted] if kind is bool else str(wanted)
    changed = RuntimeOptions().with_environment({f"HETERO_{field.name.upper()}": text})
    assert getattr(changed, field.name) == wanted
    assert dataclasses.replace(changed, **{field.name: field.default}) == RuntimeOptions()
    if kind is not str:
        with pytest.raises(OptionError, match=field.name.upper()):
            RuntimeOptions().with_environment({f"HETERO_{field.name.upper()}": "perhaps"})


def test_the_environment_is_read_for_each_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[n] x) => (float[n] y) { y = Neg(x) }"
    for value in ("0", "1", "0"):
        monkeypatch.setenv("HETERO_CAPTURE", value)
        with executor(text) as ex:
            ex.run({"x": np.zeros(3, np.float32)})
            assert bool(ex.stats()["children"]["cpu"]["graph_slots"]) is (value == "1")


def feeds(batch: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal((batch, N, N)).astype(np.float32) for n in ("x", "y", "unused")}


def bits(results: dict[str, Any]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in results.items()}


def compare(model: RandomModel, split: bool, **switched: Any) -> None:
    """The same steps with the usual options on the CPU and with `switched`."""
    options = RuntimeOptions(**switched)
    providers: list[Any] = shuffled(model.proto) if split else ["cpu"]
    with (
        HeterogeneousExecutor(model.proto, ["cpu"], children="inline") as usual,
        HeterogeneousExecutor(model.proto, providers, children="inline", options=options) as other,
    ):
        for step, batch in enumerate(BATCHES):
            x = feeds(batch, step)
            assert bits(other.run(x)) == bits(usual.run(x)), (step, switched)


def slow(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(("name", "value"), CASES, ids=[f"{n}={v}" for n, v in CASES])
@slow(8)
@given(rich_models(max_steps=8), st.booleans())
def test_a_switch_changes_no_bit(name: str, value: Any, model: RandomModel, split: bool) -> None:
    compare(model, split, **{name: value})


@slow(20)
@given(rich_models(max_steps=10), st.sets(st.sampled_from(sorted(OFF))), st.booleans())
def test_no_set_of_switches_changes_a_bit(model: RandomModel, names: set[str], split: bool) -> None:
    compare(model, split, **{name: OFF[name] for name in names})


@slow(15)
@given(rich_models(max_steps=10), st.booleans())
def test_with_all_optimisations_off_the_bits_are_the_same(model: RandomModel, split: bool) -> None:
    compare(model, split, **OFF)
