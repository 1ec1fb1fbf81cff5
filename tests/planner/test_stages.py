"""Cuts are the best there are: held against every cut of small chains, and against the clock on large ones."""

from __future__ import annotations

import itertools
import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.planner.stages import Chain, Device, deal, fill


@st.composite
def problems(draw: st.DrawFn) -> tuple[Chain, list[Device]]:
    n = draw(st.integers(0, 7))
    n_weights = draw(st.integers(0, 4))
    n_inputs = draw(st.integers(0, 2))
    some_weights = st.lists(st.integers(0, n_weights - 1), max_size=3) if n_weights else st.just([])
    reads = [
        draw(st.lists(st.integers(0, n_inputs + k - 1), max_size=3)) if n_inputs + k else [] for k in range(n)
    ]
    chain = Chain(
        draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)),
        [draw(some_weights) for _ in range(n)],
        reads,
        [[n_inputs + k] for k in range(n)],
        draw(st.lists(st.integers(0, 5), min_size=n_weights, max_size=n_weights)),
        draw(st.lists(st.integers(0, 9), min_size=n_inputs + n + 1, max_size=n_inputs + n + 1)),
    )
    values = (
        st.frozensets(st.integers(0, n_inputs + n - 1), max_size=2) if n_inputs + n else st.just(frozenset())
    )
    extra = frozenset({n_inputs + n})  # a value of a node that is not dealt
    devices = [
        Device(
            draw(st.none() | st.integers(0, 12)),
            draw(st.integers(0, 6)),
            frozenset(draw(some_weights)),
            draw(values) | (extra if draw(st.booleans()) else frozenset()),
            extra if draw(st.booleans()) else frozenset(),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    return chain, devices


def score(chain: Chain, devices: list[Device], cuts: tuple[int, ...]) -> tuple[int, int] | None:
    """(slowest device, bytes brought) counted from the definition; None where a device cannot hold its weights."""
    slowest = moved = 0
    for d, device in enumerate(devices):
        items = range(cuts[d], cuts[d + 1])
        held = device.held.union(*(chain.weights[k] for k in items))
        if device.limit_bytes is not None and sum(chain.weight_bytes[w] for w in held) > device.limit_bytes:
            return None
        slowest = max(slowest, device.time + sum(chain.times[k] for k in items))
        made = device.made.union(*(chain.makes[k] for k in items))
        read = device.arrives.union(*(chain.reads[k] for k in items))
        moved += sum(chain.value_bytes[v] for v in read - made)
    return slowest, moved


def every_cut(n: int, count: int) -> list[tuple[int, ...]]:
    return [(0, *inner, n) for inner in itertools.combinations_with_replacement(range(n + 1), count - 1)]


@settings(max_examples=600, deadline=None)
@given(problems())
def test_no_cut_is_better_than_the_one_that_is_found(problem: tuple[Chain, list[Device]]) -> None:
    chain, devices = problem
    scores = [score(chain, devices, cuts) for cuts in every_cut(len(chain.times), len(devices))]
    possible = [s for s in scores if s is not None]
    found = deal(chain, devices)
    if found is None:
        assert not possible
        assert any(
            d.limit_bytes is not None and needed > d.limit_bytes
            for d, (needed, _) in zip(devices, fill(chain, devices), strict=True)
        )
    else:
        assert found == sorted(found)
        assert score(chain, devices, tuple(found)) == min(possible)
        assert deal(chain, devices) == found


def line(times: list[int], sizes: list[int] | None = None) -> Chain:
    """Each item reads what the one before made; item k reads weight k."""
    n = len(times)
    return Chain(
        times,
        [[k] for k in range(n)],
        [[k] for k in range(n)],
        [[k + 1] for k in range(n)],
        sizes or [1] * n,
        [1] * (n + 1),
    )


def test_the_slowest_stage_counts_before_what_is_moved() -> None:
    assert deal(line([4, 1, 1, 1, 1]), [Device(), Device()]) == [0, 1, 5]


def test_of_equally_slow_cuts_the_one_that_moves_least_is_taken() -> None:
    chain = Chain([3, 1, 1, 3], [[]] * 4, [[0], [1], [2], [3]], [[1], [2], [3], [4]], [], [1, 9, 2, 9, 1])
    assert deal(chain, [Device(), Device()]) == [0, 2, 4]
    slack = Chain([1, 1, 1, 6], [[]] * 4, [[0], [1], [2], [3]], [[1], [2], [3], [4]], [], [1, 2, 9, 9, 1])
    assert deal(slack, [Device(), Device(), Device()]) == [
        0,
        3,
        4,
        4,
    ]  # no third piece: it would cost bytes only


def test_a_greedy_fill_is_not_good_enough() -> None:
    """Filling up to the mean time (9 of 27 each) puts 8, 7, 12 here; the best is 10, 8, 9."""
    times = [4, 4, 2, 5, 3, 9]
    cuts = deal(line(times), [Device()] * 3)
    assert cuts is not None
    assert max(sum(times[a:b]) for a, b in itertools.pairwise(cuts)) == 10


def test_a_weight_that_two_stages_read_counts_in_both() -> None:
    shared = Chain([1, 1], [[0], [0]], [[0], [1]], [[1], [2]], [10], [1, 1, 1])
    assert deal(shared, [Device(10), Device(10)]) == [0, 1, 2]
    assert deal(shared, [Device(10), Device(9)]) == [0, 2, 2]
    assert deal(shared, [Device(9), Device(9)]) is None


def test_a_limit_moves_the_cut_to_where_the_weights_fit() -> None:
    chain = line([1, 1, 1, 1], [8, 1, 1, 1])
    assert deal(chain, [Device(), Device()]) == [0, 2, 4]
    assert deal(chain, [Device(8), Device(None)]) == [0, 1, 4]
    assert deal(chain, [Device(0), Device(11)]) == [0, 0, 4]


def test_what_does_not_fit_is_said_device_by_device() -> None:
    chain = line([1, 1, 1, 1], [8, 4, 3, 3])
    devices = [Device(12), Device(5)]
    assert deal(chain, devices) is None
    assert fill(chain, devices) == [(12, 0), (6, 2)]


def test_ten_thousand_nodes_over_eight_devices_take_a_moment_only() -> None:
    rng = random.Random(7)
    n = 10_000
    chain = Chain(
        [rng.randrange(1, 10**9) for _ in range(n)],
        [[rng.randrange(2000)] if k % 3 == 0 else [] for k in range(n)],
        [[max(0, k - rng.randrange(1, 20)), k] for k in range(n)],
        [[k + 1] for k in range(n)],
        [rng.randrange(1, 10**6) for _ in range(2000)],
        [rng.randrange(1, 10**6) for _ in range(n + 1)],
    )
    started = time.process_time()
    cuts = deal(chain, [Device(10**9 // 2 + d) for d in range(8)])
    assert cuts is not None
    assert time.process_time() - started < 20  # 1 s here: a bound on the growth, no benchmark
