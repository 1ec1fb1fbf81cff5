"""Partitions are convex, ordered, complete and as large as can be, checked apart on random graphs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.planner import partition
from hetero.planner.partition import partition_nodes

Graph = tuple[list[list[int]], list[int]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    n = draw(st.integers(0, 24))
    predecessors = [draw(st.lists(st.integers(0, v - 1), max_size=3)) if v else [] for v in range(n)]
    n_children = draw(st.integers(1, 4))
    return predecessors, [draw(st.integers(0, n_children - 1)) for _ in range(n)]


def reachable(predecessors: list[list[int]]) -> list[set[int]]:
    """For each node all nodes with a path to it."""
    above: list[set[int]] = []
    for before in predecessors:
        above.append(set(before).union(*(above[p] for p in before)))
    return above


def quotient_has_cycle(predecessors: list[list[int]], group_of: dict[int, int]) -> bool:
    edges = {
        (group_of[p], group_of[v])
        for v, before in enumerate(predecessors)
        for p in before
        if group_of[p] != group_of[v]
    }
    left = set(group_of.values())
    while left:
        free = {g for g in left if not any(b == g and a in left for a, b in edges)}
        if not free:
            return True
        left -= free
    return False


@settings(max_examples=250, deadline=None)
@given(graphs())
def test_partitions_are_complete_pure_convex_ordered_and_maximal(graph: Graph) -> None:
    predecessors, children = graph
    groups = partition_nodes(predecessors, children)
    assert sorted(v for g in groups for v in g) == list(range(len(children)))
    group_of = {v: i for i, g in enumerate(groups) for v in g}
    above = reachable(predecessors)
    for group in groups:
        assert group == sorted(group)
        assert len({children[v] for v in group}) == 1
        inside = set(group)
        for a in group:
            for b in group:
                between = {k for k in above[b] if a in above[k]}
                assert between <= inside, f"{between} lies between {a} and {b}"
    assert all(group_of[p] <= group_of[v] for v, before in enumerate(predecessors) for p in before)
    assert not quotient_has_cycle(predecessors, group_of)
    for i in range(len(groups)):
        for j in range(i):
            if children[groups[i][0]] == children[groups[j][0]]:
                merged = {v: j if g == i else g for v, g in group_of.items()}
                assert quotient_has_cycle(predecessors, merged), f"{groups[i]} and {groups[j]} could be one"


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_windows_keep_partitions_convex_and_ordered(graph: Graph) -> None:
    predecessors, children = graph
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "EXACT_GROUPS", 3)
        patch.setattr(partition, "WINDOW", 3)
        groups = partition_nodes(predecessors, children)
    group_of = {v: i for i, g in enumerate(groups) for v in g}
    assert sorted(group_of) == list(range(len(children)))
    assert not quotient_has_cycle(predecessors, group_of)
    assert all(group_of[p] <= group_of[v] for v, before in enumerate(predecessors) for p in before)


def test_no_nodes_give_no_partitions() -> None:
    assert partition_nodes([], []) == []


def test_one_child_gives_one_partition() -> None:
    assert partition_nodes([[], [0], [0], [1, 2], []], [0] * 5) == [[0, 1, 2, 3, 4]]


def test_a_diamond_through_another_child_splits_the_first_child_in_two() -> None:
    assert partition_nodes([[], [0], [0], [1, 2]], [0, 1, 0, 0]) == [[0, 2], [1], [3]]


def test_work_ready_elsewhere_goes_first_so_that_the_preferred_child_is_whole() -> None:
    assert partition_nodes([[], [], [1]], [0, 1, 0]) == [[1], [0, 2]]


def test_a_node_that_is_read_twice_by_one_node_counts_once() -> None:
    assert partition_nodes([[], [0, 0]], [0, 1]) == [[0], [1]]


def test_thousands_of_alternating_nodes_give_one_partition_each_in_order() -> None:
    n = 6000
    predecessors = [[v - 1] if v else [] for v in range(n)]
    assert partition_nodes(predecessors, [v % 2 for v in range(n)]) == [[v] for v in range(n)]


def test_the_same_graph_gives_the_same_partitions() -> None:
    rng = random.Random(5)
    predecessors = [rng.sample(range(v), min(v, 2)) for v in range(500)]
    children = [rng.randrange(3) for _ in range(500)]
    again = [list(reversed(p)) for p in predecessors]
    assert partition_nodes(predecessors, children) == partition_nodes(again, children)
