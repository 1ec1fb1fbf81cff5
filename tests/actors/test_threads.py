"""Library threads are set on purpose, and said."""

from __future__ import annotations

import os

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from actors.threads import set_threads, thread_counts


@pytest.mark.parametrize("count", [1, 2])
def test_the_number_of_threads_is_set_and_reported(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.setenv(variable, "7")  # so that it is put back afterwards
    np.dot(np.ones(2), np.ones(2))
    with threadpool_limits():
        set_threads(count)
        assert thread_counts()["openblas"] == count
    assert os.environ["OMP_NUM_THREADS"] == str(count)
