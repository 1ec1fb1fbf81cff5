"""One local Ray for all tests of children on actors, as small as it may be; gone when they are over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.cluster import RayLease, ensure_ray

STORE_BYTES = 128 << 20
"""So small that what is too much for a store is quickly made."""


@pytest.fixture(scope="package")
def local_ray() -> Iterator[RayLease]:
    lease = ensure_ray(store_bytes=STORE_BYTES)
    yield lease
    lease.release()
