"""Partitions: maximal convex sets of nodes that sit on one child, in an order in which they can run."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence

EXACT_GROUPS = 4096
"""Up to this many groups the merging sees all of them at once, and the result is maximal."""
WINDOW = 512
"""Beyond it merging works on stretches of this many groups, which keeps the time linear in their number."""


def partition_nodes(predecessors: Sequence[Sequence[int]], children: Sequence[int]) -> list[list[int]]:
    """Split the nodes 0..n-1 into groups of one child each; a list of ascending node lists, in topological
    order.

    `predecessors[v]` are the nodes whose results v reads, all smaller than v; `children[v]` is v's child
    (smaller: preferred). Every group is convex (a path between two of its nodes stays inside it) and the
    graph of groups has no cycle. Up to EXACT_GROUPS groups no two groups of one child could be merged without
    making a cycle. Deterministic; linear in nodes and edges but for the merging of few groups, which is
    bounded.
    """
    groups = _drain(predecessors, children)
    edges = _quotient(predecessors, groups)
    labels = [children[group[0]] for group in groups]
    window = len(groups) if len(groups) <= EXACT_GROUPS else WINDOW
    merged_into = list(range(len(groups)))
    for start in range(0, len(groups), max(window, 1)):
        _merge(edges, labels, start, min(start + window, len(groups)), merged_into)
    joined: dict[int, list[int]] = {}
    for index, target in enumerate(merged_into):
        joined.setdefault(target, []).extend(groups[index])
    return _ordered(predecessors, [sorted(group) for group in joined.values()])


def _drain(predecessors: Sequence[Sequence[int]], children: Sequence[int]) -> list[list[int]]:
    """Kahn's algorithm that stays on one child until nothing of it is ready: few and large groups from the
    start.

    The least preferred child that has a ready node goes first, so that the preferred ones find more nodes
    ready when their turn comes.
    """
    successors: list[list[int]] = [[] for _ in predecessors]
    missing = [0] * len(predecessors)
    for node, before in enumerate(predecessors):
        distinct = set(before)
        missing[node] = len(distinct)
        for other in distinct:
            successors[other].append(node)
    ready: dict[int, deque[int]] = {child: deque() for child in sorted(set(children), reverse=True)}
    for node, count in enumerate(missing):
        if count == 0:
            ready[children[node]].append(node)
    groups: list[list[int]] = []
    placed = 0
    while placed < len(predecessors):
        queue = next(queue for queue in ready.values() if queue)
        group: list[int] = []
        while queue:
            node = queue.popleft()
            group.append(node)
            for after in successors[node]:
                missing[after] -= 1
                if missing[after] == 0:
                    ready[children[after]].append(after)
        placed += len(group)
        groups.append(group)
    return groups


def _quotient(predecessors: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each group the groups it reads from."""
    group_of = [0] * len(predecessors)
    for index, group in enumerate(groups):
        for node in group:
            group_of[node] = index
    edges: list[set[int]] = [set() for _ in groups]
    for node, before in enumerate(predecessors):
        own = group_of[node]
        edges[own].update(group_of[other] for other in before)
    for index, sources in enumerate(edges):
        sources.discard(index)
    return edges


def _merge(
    edges: Sequence[set[int]], labels: Sequence[int], start: int, stop: int, merged_into: list[int]
) -> None:
    """Merge groups start..stop-1 until no pair of one child is left that has no path through a third group.

    The groups are in topological order, so every path between two groups of the stretch lies in the stretch:
    what is proved here holds in the whole graph. Sets of groups are bits of integers. Fills `merged_into`
    (the smallest member).
    """
    count = stop - start
    before = [0] * count  # groups read from directly
    after = [0] * count
    above = [0] * count  # all groups with a path to this one
    below = [0] * count
    for j in range(count):
        for source in edges[start + j]:
            i = source - start
            if i >= 0:
                before[j] |= 1 << i
                after[i] |= 1 << j
                above[j] |= above[i] | 1 << i
    for i in reversed(range(count)):
        for j in _bits(after[i]):
            below[i] |= below[j] | 1 << j
    same: dict[int, int] = {}
    for i in range(count):
        same[labels[start + i]] = same.get(labels[start + i], 0) | 1 << i
    alive = (1 << count) - 1
    changed = True
    while changed:
        changed = False
        for i in range(count):
            if not alive >> i & 1:
                continue
            label = labels[start + i]
            while True:
                far = 0  # reached through a third group
                for k in _bits(after[i]):
                    far |= below[k]
                candidates = same[label] & ~(far | above[i] | 1 << i)
                if not candidates:
                    break
                j = (candidates & -candidates).bit_length() - 1
                _join(i, j, before, after, above, below)
                same[label] &= ~(1 << j)
                alive &= ~(1 << j)
                merged_into[start + j] = start + i
                changed = True
    for index in range(start, stop):  # a target may itself have been merged later
        target = index
        while merged_into[target] != target:
            target = merged_into[target]
        merged_into[index] = target


def _join(i: int, j: int, before: list[int], after: list[int], above: list[int], below: list[int]) -> None:
    """Make i the union of i and j, and forget j everywhere but in `above` and `below`, where its bit does no
    harm: a forgotten group has no children of its own to offer as candidates."""
    bit_i, bit_j = 1 << i, 1 << j
    for k in _bits(before[j]):
        after[k] = (after[k] & ~bit_j) | bit_i
    for k in _bits(after[j]):
        before[k] = (before[k] & ~bit_j) | bit_i
    both = ~(bit_i | bit_j)
    before[i] = (before[i] | before[j]) & both
    after[i] = (after[i] | after[j]) & both
    above[i] = (above[i] | above[j]) & both
    below[i] = (below[i] | below[j]) & both
    for k in _bits(above[i]):
        below[k] |= below[i] | bit_i
    for k in _bits(below[i]):
        above[k] |= above[i] | bit_i


def _bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _ordered(predecessors: Sequence[Sequence[int]], groups: list[list[int]]) -> list[list[int]]:
    """The groups in topological order; of those that could come next, the one with the smallest node."""
    edges = _quotient(predecessors, groups)
    successors: list[list[int]] = [[] for _ in groups]
    missing = [len(sources) for sources in edges]
    for index, sources in enumerate(edges):
        for source in sources:
            successors[source].append(index)
    heap = [(groups[index][0], index) for index, count in enumerate(missing) if count == 0]
    heapq.heapify(heap)
    result: list[list[int]] = []
    while heap:
        _, index = heapq.heappop(heap)
        result.append(groups[index])
        for after in successors[index]:
            missing[after] -= 1
            if missing[after] == 0:
                heapq.heappush(heap, (groups[after][0], after))
    return result
