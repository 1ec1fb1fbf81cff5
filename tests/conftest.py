"""Shared by every test: environment overrides off, kernels loaded once."""

from __future__ import annotations

import os

import pytest

from hetero.kernels import load_all


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    load_all()


@pytest.fixture(autouse=True)
def _no_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's HETERO_* settings must not change what a test sees."""
    for variable in [v for v in os.environ if v.startswith("HETERO_")]:
        monkeypatch.delenv(variable)
