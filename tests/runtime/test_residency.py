"""Which weights stay under a budget: what fits, what shares memory, and how much is copied."""

from __future__ import annotations

from itertools import chain, combinations, pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hetero.errors import MemoryLimitError
from hetero.runtime.residency import Residency, plan_residency

NAMES = "abcdef"
SIZES = st.fixed_dictionaries({n: st.integers(0, 20) for n in NAMES})
STEPS = st.lists(st.lists(st.sampled_from(NAMES), max_size=3, unique=True), max_size=12)


def copied(steps: list[list[str]], plan: Residency, sizes: dict[str, int]) -> int:
    """Bytes that a step copies once the first one is over, counted anew."""
    inside: dict[int, str] = {}
    total = 0
    for _ in range(2):
        total = 0
        for w in chain.from_iterable(steps):
            if w not in plan.resident and inside.get(plan.placed[w]) != w:
                inside[plan.placed[w]] = w
                total += sizes[w]
    return total


@given(STEPS, SIZES, st.sets(st.sampled_from(NAMES), max_size=2), st.integers(0, 80), st.booleans())
def test_every_plan_is_within_the_budget_and_right(
    steps: list[list[str]], sizes: dict[str, int], pinned: set[str], budget: int, spare: bool
) -> None:
    try:
        plan = plan_residency(steps, sizes, pinned, budget, spare=spare)
    except MemoryLimitError:
        return
    assert sum(sizes[w] for w in plan.resident) + sum(plan.buffers) <= budget
    assert pinned <= plan.resident
    for step in steps:
        paged = [w for w in step if w not in plan.resident]
        assert len({plan.placed[w] for w in paged}) == len(paged)
        assert all(sizes[w] <= plan.buffers[plan.placed[w]] for w in paged)
    assert plan.step_bytes == copied(steps, plan, sizes)


@given(STEPS, SIZES, st.sets(st.sampled_from(NAMES), max_size=2), st.integers(0, 80))
def test_a_budget_is_too_small_only_where_an_instruction_and_what_is_pinned_do_not_fit_or_buffers_collide(
    steps: list[list[str]], sizes: dict[str, int], pinned: set[str], budget: int
) -> None:
    at_once = max((sum(sizes[w] for w in {*pinned, *step}) for step in steps), default=0)
    must = max(at_once, sum(sizes[w] for w in pinned))
    everything = sum(sizes[w] for w in {*pinned, *chain.from_iterable(steps)})
    try:
        plan_residency(steps, sizes, pinned, budget)
    except MemoryLimitError:
        assert budget < everything
        if all(len(set(step) - pinned) <= 1 for step in steps):
            assert budget < must
    else:
        assert budget >= must


@given(
    st.permutations("abcdef"), SIZES.map(lambda sizes: {n: 1 + size for n, size in sizes.items()}), st.data()
)
def test_weights_read_once_each_leave_at_most_one_of_the_largest_more_to_copy_than_the_best_choice(
    reads: list[str], sizes: dict[str, int], data: st.DataObject
) -> None:
    steps = [[w] for w in reads]
    total = sum(sizes.values())
    budget = data.draw(st.integers(max(sizes.values()), total))
    cost = plan_residency(steps, sizes, (), budget, copy_bytes=0).step_bytes
    best = min(
        total - sum(map(sizes.__getitem__, kept))
        for r in range(len(reads) + 1)
        for kept in combinations(reads, r)
        if sum(map(sizes.__getitem__, kept)) + max((sizes[w] for w in reads if w not in kept), default=0)
        <= budget
    )
    assert best <= cost < best + max(sizes.values())


def test_a_budget_for_everything_pages_nothing() -> None:
    plan = plan_residency([["a"], ["b"]], {"a": 3, "b": 4}, (), 7)
    assert (plan.resident, plan.buffers, plan.placed) == ({"a", "b"}, (), {})


def test_one_large_weight_stays_rather_than_have_everything_share_its_memory() -> None:
    sizes = {"big": 10, **dict.fromkeys("abcd", 1)}
    plan = plan_residency([[w] for w in sizes], sizes, (), 12)
    assert "big" in plan.resident
    assert plan.step_bytes == 3


def test_a_few_large_copies_are_better_than_many_small_ones() -> None:
    sizes = {"big": 10 << 20, "bigger": 11 << 20, **{f"w{k}": 1024 for k in range(2000)}}
    plan = plan_residency([[w] for w in sizes], sizes, (), sum(sizes.values()) - (1 << 20))
    assert set(plan.placed) == {"big", "bigger"}
    assert (plan.step_copies, plan.step_bytes) == (2, 21 << 20)


def test_what_is_read_most_often_stays() -> None:
    plan = plan_residency([["a"], ["b"], ["a"], ["c"], ["a"], ["d"]], dict.fromkeys("abcd", 5), (), 10)
    assert plan.resident == {"a"}
    assert plan.step_bytes == 15


def test_of_two_buffers_the_one_whose_weight_is_read_again_last_makes_room() -> None:
    # p and q are read together, so there are two buffers; r comes when p is wanted again soon, q never.
    steps = [["p", "q"], ["r"], ["p"], ["r"], ["p"]]
    plan = plan_residency(steps, dict.fromkeys("pqr", 4), (), 8)
    assert plan.placed["r"] == plan.placed["q"]
    assert plan.step_bytes == 8


def test_with_a_spare_buffer_neighbours_do_not_share_one() -> None:
    sizes = dict.fromkeys("abcd", 4)
    steps = [[w] for w in "abcd"]
    plan = plan_residency(steps, sizes, (), 12, spare=True)
    order = [w for w in "abcd" if w in plan.placed]
    assert len(plan.buffers) == 2
    assert all(plan.placed[a] != plan.placed[b] for a, b in pairwise(order))


def test_without_room_for_a_spare_buffer_there_is_none() -> None:
    assert plan_residency([["a"], ["b"]], {"a": 4, "b": 4}, (), 4, spare=True).buffers == (4,)


def test_a_weight_that_does_not_fit_is_named_with_what_must_be_beside_it() -> None:
    with pytest.raises(MemoryLimitError, match=r"'b' \(9 bytes\) needs 3 bytes .* budget is 11") as caught:
        plan_residency([["a"], ["b"]], {"a": 3, "b": 9}, {"a"}, 11)
    assert caught.value.operand == "b"


def test_pinned_weights_alone_may_be_too_much() -> None:
    with pytest.raises(MemoryLimitError, match="'a'"):
        plan_residency([["a"], ["b"]], {"a": 9, "b": 0}, {"a"}, 8)


def test_two_small_weights_do_not_share_the_buffer_of_a_large_one_and_the_error_says_what_is_needed() -> None:
    steps, sizes = [["a", "b"], ["c"]], {"a": 4, "b": 4, "c": 8}
    with pytest.raises(MemoryLimitError, match=r"with which 12 bytes .* budget is 8") as caught:
        plan_residency(steps, sizes, (), 8)
    assert caught.value.operand == "c"
    assert plan_residency(steps, sizes, (), 12).step_bytes <= 12


def test_thousands_of_weights_are_planned_in_a_few_passes() -> None:
    sizes = {f"w{k}": 1 + k % 7 for k in range(20_000)}
    plan = plan_residency([[w] for w in sizes], sizes, (), 10_000)
    assert 10_000 - 7 < sum(sizes[w] for w in plan.resident) + sum(plan.buffers) <= 10_000
