"""Failover: the partitions of a child that is lost move, as they are, to another provider; all others stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hetero.errors import UnsupportedNodeError
from hetero.model.model import Model
from hetero.planner.placement import Candidate, Placed, judge
from hetero.planner.plan import Placement, Plan, Rejection
from hetero.planner.planner import assemble, graph_of
from hetero.program.program import Dispatch, Program
from hetero.providers.base import ProviderConfig

_MOVABLE = frozenset({"cpu", "sim"})
"""Kinds of which a machine has as many instances as one likes; the number of another kind's names a device."""


def stand_in(plan: Plan, config: ProviderConfig) -> ProviderConfig | None:
    """One more instance of this provider, which the plan does not have yet; None where there can be none."""
    kind = config.name.split(":")[0]
    if kind not in _MOVABLE:
        return None
    names = {p.name for p in plan.providers}
    number = next(n for n in range(len(names) + 1) if f"{kind}:{n}" not in names)
    return replace(config, name=f"{kind}:{number}")


def moved(model: Model, plan: Plan, child: int, provider: Candidate) -> Plan:
    """`plan`, which was made of `model`, with the partitions of `child` on `provider`. Partitions, parcels and weights
    are the same, so that steps in flight and the journal of those before still fit.

    Raises: UnsupportedNodeError where the provider does not take a node.
    """
    graph = graph_of(model)
    children = [0] * len(graph.nodes)
    for partition in plan.partitions:
        for index in partition.node_indices:
            children[index] = partition.child
    verdicts = judge(graph, [provider])
    dispatch = dict(_dispatch(p.program for p in plan.partitions))
    lost, fresh = plan.providers[child].name, {}
    for index, verdict in enumerate(verdicts):
        if children[index] != child:
            continue
        op = graph.nodes[index].op
        if verdict.match is None and verdict.allowed is None:
            why = verdict.rejected[0].reason if verdict.rejected else "forbidden"
            raise UnsupportedNodeError(
                f"{provider.name} cannot take it over from {lost}: {why}",
                op=op.id,
                node=op.name,
                device=provider.name,
            )
        dispatch[op.name] = Dispatch.HOST if verdict.match is None else verdict.match.dispatch
        for inner, match in zip(
            verdict.inner, verdict.inner_matches[0] if verdict.inner else (), strict=True
        ):
            dispatch[inner.op.name] = match.dispatch
        fresh[index] = "shape arithmetic" if verdict.match is None else verdict.match.reason
    placements = [
        _replaced(p, fresh[p.node_index], provider.name, lost) if p.provider == lost else p
        for p in plan.placements
    ]
    configs = [provider.config if k == child else p for k, p in enumerate(plan.providers)]
    return assemble(
        graph,
        Placed(children, dispatch, placements),
        configs,
        name=plan.model,
        digest=plan.model_digest,
        opsets=model.opsets,
    )


def _replaced(placement: Placement, reason: str, name: str, lost: str) -> Placement:
    why = Rejection(lost, "it was lost while the model ran")
    return replace(placement, provider=name, reason=reason, rejected=(*placement.rejected, why))


def _dispatch(programs: Iterable[Program]) -> Iterator[tuple[str, Dispatch]]:
    """How each operation is dispatched, those inside bodies included, by the node's name."""
    for program in programs:
        for instruction in program.instructions:
            yield instruction.op.name, instruction.dispatch
            for value in instruction.op.attributes.values():
                if isinstance(value, Program):
                    yield from _dispatch([value])
                elif isinstance(value, tuple):
                    yield from _dispatch(v for v in value if isinstance(v, Program))
