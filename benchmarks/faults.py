"""What a lost child costs: time to the next good result against Ray's own start of an actor, recovery of a decoder's
state, and what checkpoints take of a step."""

from __future__ import annotations

import compileall
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray

from actors import chaos
from actors.cluster import ensure_ray
from benchmarks.bare import Bare
from benchmarks.measure import Pair
from benchmarks.roads import PROVIDERS, relu_neg
from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.decode.context import Context
from hetero.decode.roles import roles_of
from hetero.decode.state import BoundState, Tenancy
from tests.models.decoder import Config, build

EVERY = 32
"""Steps between two checkpoints."""
AT = 200
"""The step in which a decoder's child is lost."""
MIDDLE = Config(layers=6, hidden=512, heads=8, kv_heads=4, inner=1376, vocab=2000, max_length=512)
"""Some milliseconds a step."""


@contextmanager
def local_ray() -> Iterator[None]:
    """A Ray for the while. Our sources have their bytecode beside them, as installed packages have."""
    for package in ("hetero", "actors"):
        compileall.compile_dir(package, quiet=1)
    lease = ensure_ray()
    try:
        yield
    finally:
        lease.release()


def bare_start(runs: int = 5) -> float:
    """Seconds until a fresh actor of Ray's has answered: the median."""
    remote: Any = ray.remote(Bare)
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        actor = remote.options(num_cpus=0).remote()
        ray.get(actor.answer.remote())
        times.append(time.perf_counter() - started)
        ray.kill(actor)
    return statistics.median(times)


def next_result(standbys: int, runs: int = 5) -> Pair:
    """From the death of a child to the next good result, against a bare actor's start."""
    x = np.arange(1024, dtype=np.float32)
    with local_ray():
        theirs = bare_start()
        with HeterogeneousExecutor(
            relu_neg(), PROVIDERS, ray_options={"standbys": standbys} if standbys else None
        ) as ex:
            ours = []
            for _ in range(runs):
                for _ in range(5):
                    want = ex.run({"x": x})["y"]
                time.sleep(6 if standbys else 0)  # a standby is ready again
                started = time.perf_counter()
                chaos.kill("cpu:1", ex)
                got = ex.run({"x": x})["y"]
                ours.append(time.perf_counter() - started)
                assert got.tobytes() == want.tobytes()
        ratios = sorted(t / theirs for t in ours)
        return Pair(statistics.median(ours), theirs, statistics.median(ratios), ratios[1], ratios[-2])


@contextmanager
def decoding(every: int) -> Iterator[tuple[HeterogeneousExecutor, Context]]:
    """A decoder on an actor, its cache bound, after a prompt of 8 tokens."""
    model = build(MIDDLE)
    options = RuntimeOptions(checkpoint_every=every)
    with HeterogeneousExecutor(model, ["cpu"], options=options) as ex:
        roles = roles_of(ex.plan)
        context = Context(ex, roles, BoundState(Tenancy(ex, roles), roles))
        context.run(np.arange(8)[None], "prefill")
        yield ex, context


def stateful_recovery() -> Pair:
    """A decoder's child is lost in step 200; against a bare actor's start and 32 steps."""
    with local_ray():
        theirs = bare_start()
        with decoding(EVERY) as (ex, context):
            times = []
            for k in range(AT):
                started = time.perf_counter()
                context.run(np.array([[k % 97]]), "primary")
                times.append(time.perf_counter() - started)
            started = time.perf_counter()
            chaos.kill("cpu", ex)
            context.run(np.array([[5]]), "primary")
            ours = time.perf_counter() - started
    against = theirs + EVERY * statistics.median(times[-50:])
    return Pair(ours, against, ours / against, ours / against, ours / against)


def checkpoint_cost(rounds: int = 5) -> Pair:
    """32 steps of a decoder with checkpoints, one of which falls among them, against 32 without; in turn."""
    with local_ray(), decoding(EVERY) as (_, ours), decoding(0) as (_, theirs):
        times: dict[int, list[float]] = {0: [], 1: []}
        for _ in range(rounds):
            for k, context in enumerate((ours, theirs)):
                started = time.perf_counter()
                for token in range(EVERY):
                    context.run(np.array([[token]]), "primary")
                times[k].append(time.perf_counter() - started)
    ratios = sorted(a / b for a, b in zip(times[0], times[1], strict=True))
    low, high = ratios[1], ratios[-2]
    medians = [statistics.median(t) / EVERY for t in times.values()]
    return Pair(medians[0], medians[1], statistics.median(ratios), low, high)


def main() -> None:
    """Measure and print all."""
    for name, pair in (
        ("next result, fresh actor / bare actor's start (<= 1.5)", next_result(0)),
        ("next result, warm standby / bare actor's start (<= 0.2)", next_result(1)),
        (f"decoder lost in step {AT} / (bare start + {EVERY} steps) (<= 1.5)", stateful_recovery()),
        (f"steps with a checkpoint in {EVERY} / without (<= 1.03)", checkpoint_cost()),
    ):
        print(
            f"{name}: {pair.ours_s * 1e3:.1f} ms / {pair.theirs_s * 1e3:.1f} ms = {pair.ratio:.2f}"
            f" (middle half {pair.low:.2f}-{pair.high:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
