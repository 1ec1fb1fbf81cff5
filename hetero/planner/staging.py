"""Dealing a graph to stages: who takes part, what is pinned, where the chain is cut, and what each stage came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetero.errors import PlanError
from hetero.planner.annotations import Mark
from hetero.planner.costs import Costs
from hetero.planner.explain import bytes_text
from hetero.planner.graph import PlanGraph
from hetero.planner.placement import Candidate, Placed, Staged, Verdict, ask, assign
from hetero.planner.plan import Stage
from hetero.planner.stages import Chain, Device, deal, fill
from hetero.providers.base import Match, forbidden


def peers_of(providers: Sequence[Candidate]) -> tuple[int, ...]:
    """The instances of the first provider's kind, in the order given."""
    kind = providers[0].name.split(":")[0]
    return tuple(c for c, p in enumerate(providers) if p.name.split(":")[0] == kind)


def deal_stages(
    graph: PlanGraph, providers: Sequence[Candidate], verdicts: Sequence[Verdict], costs: Costs
) -> Staged:
    """Assign the nodes that every instance of the first provider's kind takes to these instances, as contiguous stages
    in the graph's order (see `stages.deal`); changes `verdicts`.

    A node stays where it is if it was assigned already, or if the user's filters keep it off an instance. Such nodes
    count: their time, their weights, and what they bring.
    Raises: PlanError where no such stages fit the memory of the devices, with the bytes that each would need.
    """
    peers = peers_of(providers)
    items: list[int] = []
    matches: dict[int, list[Match]] = {}
    resident: dict[int, list[int]] = {c: [] for c in peers}
    for index, verdict in enumerate(verdicts):
        if verdict.child not in resident or verdict.match is None:
            continue
        if not verdict.assigned:
            node, native = graph.nodes[index], verdict.match.native
            asked = [ask(verdict, node.op, graph.operand_types(node), c, providers[c]) for c in peers]
            if all(m.ok and m.native == native for m in asked):
                items.append(index)
                matches[index] = asked
                continue
        resident[verdict.child].append(index)
    numbers = _Numbers(graph, costs)
    chain = numbers.chain(items)
    devices = [numbers.device(resident[c], providers[c].memory_limit_bytes) for c in peers]
    cuts = deal(chain, devices)
    if cuts is None:
        raise _does_not_fit(graph, [providers[c] for c in peers], items, chain, devices)
    of_child: dict[int, int] = {}
    last_of: dict[int, int] = {}
    for k, child in enumerate(peers):
        mine = items[cuts[k] : cuts[k + 1]]
        if mine or resident[child]:
            of_child[child] = len(of_child)
        for index in mine:
            assign(verdicts[index], child, matches[index][k])
            last_of[index] = of_child[child]
    return Staged(
        frozenset(peers), of_child, {}, _bound_shapes(graph, providers, verdicts, of_child, last_of)
    )


def _bound_shapes(
    graph: PlanGraph,
    providers: Sequence[Candidate],
    verdicts: Sequence[Verdict],
    of_child: Mapping[int, int],
    stage_of: Mapping[int, int],
) -> dict[int, int]:
    """For shape arithmetic the last stage that it may go to: that of the next node that was dealt. Later ones are
    struck from what is allowed to it."""
    latest: dict[int, int] = {}
    stage = max(of_child.values(), default=0)
    for index in reversed(range(len(verdicts))):
        stage = stage_of.get(index, stage)
        verdict = verdicts[index]
        if verdict.allowed is None or verdict.assigned:
            continue
        if all(forbidden(providers[c].config, graph.nodes[index].op) is None for c in of_child):
            verdict.allowed = [c for c in verdict.allowed if of_child.get(c, -1) <= stage]
            latest[index] = stage
    return latest


def mark_stages(
    graph: PlanGraph, providers: Sequence[Candidate], verdicts: Sequence[Verdict], marks: Mapping[int, Mark]
) -> Staged:
    """Assign nodes as they are annotated (`Mark.device` is a child here); changes `verdicts`.

    A node that its device does not take falls back as if it were not annotated, and is in no stage.
    """
    of_node: dict[int, int] = {}
    for index, mark in marks.items():
        verdict, node, child = verdicts[index], graph.nodes[index], mark.device
        if verdict.assigned:
            continue
        if verdict.allowed is not None:
            if child not in verdict.allowed:
                continue
            verdict.allowed = [child]
        elif verdict.child != child:
            match = ask(verdict, node.op, graph.operand_types(node), child, providers[child])
            if not match.ok:
                continue
            assign(verdict, child, match)
        if mark.stage is not None:
            of_node[index] = mark.stage
    return Staged(frozenset(peers_of(providers)) if of_node else frozenset({0}), {}, of_node)


class _Numbers:
    """Weights and values by number, for the search."""

    def __init__(self, graph: PlanGraph, costs: Costs) -> None:
        self.graph = graph
        self.costs = costs
        self._weights = {name: k for k, name in enumerate(costs.weight_bytes)}
        self._values = {name: k for k, name in enumerate(costs.value_bytes)}

    def chain(self, items: Sequence[int]) -> Chain:
        return Chain(
            [self.costs.times_ps[i] for i in items],
            [self._of(self._weights, self.graph.nodes[i].inputs) for i in items],
            [self._of(self._values, self.graph.nodes[i].inputs) for i in items],
            [self._of(self._values, self.graph.nodes[i].outputs) for i in items],
            list(self.costs.weight_bytes.values()),
            list(self.costs.value_bytes.values()),
        )

    def device(self, resident: Sequence[int], limit_bytes: int | None) -> Device:
        nodes = [self.graph.nodes[i] for i in resident]
        return Device(
            limit_bytes,
            sum(self.costs.times_ps[i] for i in resident),
            frozenset(k for n in nodes for k in self._of(self._weights, n.inputs)),
            frozenset(k for n in nodes for k in self._of(self._values, n.inputs)),
            frozenset(k for n in nodes for k in self._of(self._values, n.outputs)),
        )

    @staticmethod
    def _of(numbers: Mapping[str, int], names: Sequence[str]) -> list[int]:
        return [numbers[name] for name in names if name in numbers]


def _does_not_fit(
    graph: PlanGraph,
    providers: Sequence[Candidate],
    items: Sequence[int],
    chain: Chain,
    devices: Sequence[Device],
) -> PlanError:
    lines = []
    for provider, device, (needed, start) in zip(providers, devices, fill(chain, devices), strict=True):
        limit = "no limit" if device.limit_bytes is None else f"{device.limit_bytes} bytes available"
        first = f", from node {graph.nodes[items[start]].op.name!r} on" if start < len(items) else ""
        lines.append(f"\n  {provider.name}: {needed} bytes needed, {limit}{first}")
    total = sum(chain.weight_bytes[w] for w in {w for row in chain.weights for w in row})
    return PlanError(
        f"the weights ({bytes_text(total)}) do not fit as contiguous stages, in the order of the providers; filling"
        f" one after the other gives:{''.join(lines)}",
        device=providers[-1].name,
    )


def stage_table(
    graph: PlanGraph, providers: Sequence[Candidate], placed: Placed, costs: Costs
) -> tuple[Stage, ...]:
    """What each stage came to. Raises: PlanError for a device whose stages' weights exceed its memory."""
    outer = [p for p in placed.placements if not p.path]
    times: dict[tuple[int, int], int] = {}
    weights: dict[tuple[int, int], set[str]] = {}
    held: dict[int, set[str]] = {}
    for index, (node, placement) in enumerate(zip(graph.nodes, outer, strict=True)):
        child, stage = placed.children[index], placement.stage
        reads = [name for name in node.inputs if name in costs.weight_bytes]
        held.setdefault(child, set()).update(reads)
        if stage is not None:
            times[stage, child] = times.get((stage, child), 0) + costs.times_ps[index]
            weights.setdefault((stage, child), set()).update(reads)
    for child in sorted({child for _, child in times}):
        limit, needed = providers[child].memory_limit_bytes, _total(held[child], costs)
        if limit is not None and needed > limit:
            raise PlanError(
                f"the weights of what is placed on it take {needed} bytes, {limit} bytes are available",
                device=providers[child].name,
            )
    return tuple(Stage(*key, times[key], _total(weights[key], costs)) for key in sorted(times))


def _total(names: set[str], costs: Costs) -> int:
    return sum(costs.weight_bytes[name] for name in names)
