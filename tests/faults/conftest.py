"""One local Ray for all tests of faults, and what they ask of executors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors import chaos
from tests.actors.conftest import local_ray as local_ray


@pytest.fixture(scope="session", autouse=True)
def _chaos() -> Iterator[None]:
    with chaos.enabled():
        yield
