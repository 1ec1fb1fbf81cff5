"""Failover: the partitions of a child that is lost move, as they are, to another provider; all others stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hetero.errors import PlanError, UnsupportedNodeError
from hetero.model.model import Model
from hetero.planner.graph import PlanGraph
from hetero.planner.placement import Candidate, Placed, Verdict, judge
from hetero.planner.plan import LOST, Placement, Plan, Rejection
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
    """`plan`, which was made of `model`, with the partitions of `child` on `provider`, those of shape classes included.
    Partitions, parcels and weights are the same, so that steps in flight and the journal of those before still fit.

    Raises: UnsupportedNodeError where the provider does not take a node; PlanError where it has less memory than the
    weights of the child's stages take.
    """
    lost = plan.providers[child].name
    if any(s.child == child for section in plan.sections for s in section.stages):
        limit, needed = provider.memory_limit_bytes, sum(model.weights[n].nbytes for n in plan.weights[child])
        if limit is not None and needed > limit:
            raise PlanError(
                f"{provider.name} cannot take over from {lost}: the weights of its stages take {needed} bytes,"
                f" {limit} bytes are available",
                device=provider.name,
            )
    graph = graph_of(model)
    verdicts = judge(graph, [provider])
    base, *others = [
        _moved(model, graph, verdicts, section, child, provider)
        for section in (replace(plan, variants=()), *(v.plan for v in plan.variants))
    ]
    variants = tuple(replace(v, plan=p) for v, p in zip(plan.variants, others, strict=True))
    return replace(base, weights=plan.weights, variants=variants)


def _moved(
    model: Model, graph: PlanGraph, verdicts: Sequence[Verdict], plan: Plan, child: int, provider: Candidate
) -> Plan:
    """As `moved`, for a plan without variants."""
    children = [0] * len(graph.nodes)
    for partition in plan.partitions:
        for index in partition.node_indices:
            children[index] = partition.child
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
    made = assemble(
        graph,
        Placed(children, dispatch, placements),
        [provider.config if k == child else p for k, p in enumerate(plan.providers)],
        name=plan.model,
        digest=plan.model_digest,
        opsets=model.opsets,
        stages=plan.stages,
    )
    if made.parcels != plan.parcels or _outline(made) != _outline(plan):
        raise PlanError(f"the partitions of {lost} would be others on {provider.name}", device=provider.name)
    return made


def _outline(plan: Plan) -> list[tuple[int, tuple[int, ...]]]:
    return [(p.child, p.node_indices) for p in plan.partitions]


def _replaced(placement: Placement, reason: str, name: str, lost: str) -> Placement:
    why = Rejection(lost, LOST)
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
