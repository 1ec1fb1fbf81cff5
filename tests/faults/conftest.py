"""One local Ray for all tests of faults, and what they ask of executors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors import chaos
from actors.cluster import RayLease, ensure_ray

STORE_BYTES = 128 << 20


@pytest.fixture(scope="session", autouse=True)
def _chaos() -> Iterator[None]:
    with chaos.enabled():
        yield


@pytest.fixture(scope="package")
def local_ray() -> Iterator[RayLease]:
    lease = ensure_ray(store_bytes=STORE_BYTES)
    yield lease
    lease.release()
