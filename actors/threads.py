"""How many threads the libraries of one child may use: set on purpose, since children share a machine."""

from __future__ import annotations

import os

from threadpoolctl import threadpool_info, threadpool_limits

from hetero.kernels.jit_runtime import limit_threads


def set_threads(count: int) -> None:
    """Let BLAS, OpenMP and compiled loops use `count` threads in this process; loops, where this thread starts them.

    Ray sets OMP_NUM_THREADS to a worker's CPU share, which is 1 for a share below one CPU, and only for libraries that
    load after the worker has started; so nothing that was set before is relied on.
    """
    os.environ["OMP_NUM_THREADS"] = str(count)
    threadpool_limits(count)
    limit_threads(count)


def thread_counts() -> dict[str, int]:
    """Threads of each library pool that is loaded in this process, by the library's name."""
    return {str(pool["internal_api"]): int(pool["num_threads"]) for pool in threadpool_info()}
