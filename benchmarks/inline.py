"""One process against onnxruntime: a chain of 1,000 tiny Adds, and an encoder at 128 tokens."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numba
import numpy as np
import onnx
import onnxruntime
from threadpoolctl import threadpool_limits

from benchmarks.measure import Pair, paired
from benchmarks.models import add_chain, encoder
from hetero import HeterogeneousExecutor, RuntimeOptions


def session(model: onnx.ModelProto, threads: int, *, optimise: bool) -> onnxruntime.InferenceSession:
    """An onnxruntime session on the CPU with as many threads as asked."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@contextmanager
def threads_of(n: int) -> Iterator[None]:
    """BLAS and compiled loops run on `n` threads."""
    before = numba.get_num_threads()
    numba.set_num_threads(min(n, before))
    try:
        with threadpool_limits(n, user_api="blas"):
            yield
    finally:
        numba.set_num_threads(before)


def chain(n: int = 1000, options: RuntimeOptions | None = None) -> Pair:
    """Steady state of a chain of tiny Adds; onnxruntime: one thread, optimisations off."""
    model = add_chain(n)
    theirs = session(model, 1, optimise=False)
    feeds = {"v0": np.zeros(8, np.float32)}
    with HeterogeneousExecutor(model, ["cpu"], children="inline", options=options) as ours:
        name = f"v{n}"
        assert np.array_equal(ours.run(feeds)[name], theirs.run(None, feeds)[0])
        return paired(lambda: ours.run(feeds), lambda: theirs.run(None, feeds), runs=31, inner=10)


def encoder_apart(threads: int, rounds: int = 5) -> Pair:
    """As `encoder_step`, each side in a process of its own, in turn: onnxruntime's threads go on spinning for a while
    after each run, on the cores that the other side's threads need."""
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(rounds):
        for side, seconds in times.items():
            command = [sys.executable, "-m", "benchmarks.inline", side, str(threads)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds.append(float(done.stdout))
    ratios = sorted(a / b for a, b in zip(times["ours"], times["theirs"], strict=True))
    medians = [statistics.median(t) for t in times.values()]
    return Pair(medians[0], medians[1], statistics.median(ratios), ratios[1], ratios[-2])


def _alone(side: str, threads: int) -> float:
    """Median seconds of an encoder step on one side."""
    model = encoder()
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 128, 384)).astype(np.float32)}
    if side == "theirs":
        theirs = session(model, threads, optimise=True)
        return _median(lambda: theirs.run(None, feeds))
    with threads_of(threads), HeterogeneousExecutor(model, ["cpu"], children="inline") as ours:
        return _median(lambda: ours.run(feeds))


def _median(call: Callable[[], object], runs: int = 41) -> float:
    times = []
    for _ in range(runs + 5):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times[5:])


def encoder_step(threads: int) -> Pair:
    """Encoder of 6 layers, hidden 384, 128 tokens; both with `threads` threads, in one process."""
    model = encoder()
    theirs = session(model, threads, optimise=True)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 128, 384)).astype(np.float32)}
    with (
        threads_of(threads),
        HeterogeneousExecutor(model, ["cpu"], children="inline") as ours,
    ):
        (got,), (want,) = ours.run(feeds).values(), theirs.run(None, feeds)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
        return paired(lambda: ours.run(feeds), lambda: theirs.run(None, feeds), runs=25)


if __name__ == "__main__":
    print(_alone(sys.argv[1], int(sys.argv[2])))
