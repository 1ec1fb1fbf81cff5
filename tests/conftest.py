"""Shared by every test: environment overrides off, kernels loaded once."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from hetero.kernels import load_all

# How long an example takes is the machine's affair: the first one may load compiled code, and others share the cores.
# Each run tries the same examples, so that a change is what makes a difference; HETERO_EXPLORE=1 tries others.
settings.register_profile(
    "hetero", deadline=None, derandomize=not os.environ.get("HETERO_EXPLORE"), database=None
)
settings.load_profile("hetero")


def pytest_collection_finish() -> None:
    """Many tests look for garbage; what was collected to run, thousands of tests, is none and need not be searched."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    load_all()


@pytest.fixture(autouse=True)
def _no_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's HETERO_* settings must not change what a test sees."""
    for variable in [v for v in os.environ if v.startswith("HETERO_")]:
        monkeypatch.delenv(variable)


@pytest.fixture(scope="module")
def overwrites_all() -> Iterator[None]:
    """Dying operands are overwritten however small they are, as the large ones of real models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hetero.runtime.builder.WORTH_OVERWRITING_BYTES", 0)
        yield
