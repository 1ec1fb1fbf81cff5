"""How many threads the libraries of one child may use: set on purpose, since children share a machine."""

from __future__ import annotations

import os
import sys

from threadpoolctl import threadpool_info, threadpool_limits


def set_threads(count: int) -> None:
    """Let BLAS, OpenMP and Numba use `count` threads in this process. Numba's setting holds for the calling thread.

    Ray sets OMP_NUM_THREADS to a worker's CPU share, which is 1 for a share below one CPU, and only for libraries that
    load after the worker has started; so nothing that was set before is relied on.
    """
    os.environ["OMP_NUM_THREADS"] = str(count)
    threadpool_limits(count)
    numba = sys.modules.get("numba")
    if numba is None:
        os.environ["NUMBA_NUM_THREADS"] = str(count)
    else:
        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))


def thread_counts() -> dict[str, int]:
    """Threads of each library pool that is loaded in this process, by the library's name."""
    return {str(pool["internal_api"]): int(pool["num_threads"]) for pool in threadpool_info()}
