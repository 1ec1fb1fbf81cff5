"""One local Ray for all tests of children on actors, as small as it may be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.cluster import RayLease, ensure_ray


@pytest.fixture(scope="session")
def local_ray() -> Iterator[RayLease]:
    lease = ensure_ray(store_bytes=512 << 20)
    yield lease
    lease.release()
