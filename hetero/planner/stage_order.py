"""Keeping stages in order: shape arithmetic, placed last, never makes a value go from a stage to an earlier one."""

from __future__ import annotations

from collections.abc import Mapping

from hetero.planner.graph import PlanGraph


def hold_order(
    graph: PlanGraph, latest: Mapping[int, int], children: list[int | None], of_child: Mapping[int, int]
) -> None:
    """Move nodes in `children` that sit in an earlier stage than what they read, directly or through others.

    `latest`: the nodes that may be moved, and the last stage each may go to (no reader of it is in an earlier one).
    `of_child`: the stage of each child that has one. Linear.
    """
    if not latest:
        return
    child_of = {stage: child for child, stage in of_child.items()}
    made_in: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        needed = max((made_in.get(name, -1) for name in node.inputs), default=-1)
        child = children[index]
        own = -1 if child is None else of_child.get(child, -1)
        if index in latest and 0 <= own < needed <= latest[index]:
            children[index], own = child_of[needed], needed
        made_in.update(dict.fromkeys(node.outputs, max(own, needed)))
