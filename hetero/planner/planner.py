"""From a model and providers to a plan: lower, place, partition, find the transfers, assemble the programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hetero.errors import OptionError, PlanError, ProviderError
from hetero.extensions.declare import declare_types
from hetero.model.functions import inline
from hetero.model.inference import value_type
from hetero.model.model import Model
from hetero.planner.annotations import Mark, children_of, configuration_of, marks_of
from hetero.planner.check import constants_of
from hetero.planner.costs import costs_of
from hetero.planner.graph import PlanGraph
from hetero.planner.options import pack_option
from hetero.planner.overrides import pinned
from hetero.planner.partition import partition_nodes
from hetero.planner.placement import Candidate, Placed, Staged, Verdict, ask, assign, judge, settle_all
from hetero.planner.plan import Partition, Plan, Stage
from hetero.planner.shape_math import LIMIT, elements
from hetero.planner.staging import deal_stages, mark_stages, stage_table
from hetero.planner.transfers import boundaries, plan_transfers
from hetero.program.assemble import build_program, default_dispatch
from hetero.program.lower import Lowering
from hetero.program.operation import Operation
from hetero.program.program import NO_SLOT, Dispatch, Port
from hetero.providers.base import ProviderConfig, forbidden
from hetero.types import ValueType


@dataclass(frozen=True, slots=True)
class Wishes:
    """What may decide where nodes go before the order of the providers does.

    `stages`: "auto" deals nodes to the instances of the first provider's kind as balanced contiguous stages; "model"
    puts them where the model's own device configuration says, `configuration` naming which (which implies "model").
    `overrides`: node-name pattern -> provider name (see `overrides.pinned`); they beat stages. `times_s`: measured
    seconds by node name, instead of estimates. `extents`: what symbols stand for, to estimate with. `devices`: names of
    the providers that annotations are about, where some are not there any more: nodes of these are as not annotated.
    """

    stages: str | None = None
    configuration: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    times_s: Mapping[str, float] = field(default_factory=dict)
    extents: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.stages not in (None, "auto", "model"):
            raise OptionError(
                f'stages must be None, "auto" or "model", not {self.stages!r}', operand="stages"
            )
        if self.configuration is not None and self.stages == "auto":
            raise OptionError('configuration goes with stages="model"', operand="configuration")

    @property
    def annotated(self) -> bool:
        """Whether the model's annotations are to be followed."""
        return self.stages == "model" or self.configuration is not None


def plan_model(
    model: Model, providers: Sequence[Candidate], *, strict: bool = False, wishes: Wishes | None = None
) -> Plan:
    """Split `model` over `providers` (best first) into a plan.

    Calls of functions that no provider has a kernel for are inlined, in `model` itself, until none is left; what a
    provider claims whole is kept. Inputs with a default (`Model.optional_inputs`) are constants like other
    initializers: old exporters list every weight as an input, and none of them may travel in every step. A graph
    without nodes gives a plan without partitions. Linear in nodes.

    Raises: UnsupportedNodeError where nobody takes a node; PlanError with `strict` where one is not on the first
    provider, and for wishes that cannot be had; OptionError for provider options that are not plain data; ProviderError
    for no providers, or two of one name; ModelError for what lowering or inlining refuses.
    """
    check_providers([p.config for p in providers])
    wishes = wishes or Wishes()
    if wishes.annotated:  # before functions are inlined, in which an annotation cannot be honoured
        _marks(model, providers, wishes)
    while True:
        declare_types(model)
        graph = graph_of(model)
        verdicts = judge(graph, providers)
        if not _inline(model, graph, verdicts):
            break
    _pin(graph, providers, verdicts, wishes.overrides)
    staged: Staged | None = None
    stages: tuple[Stage, ...] = ()
    costs = None
    if wishes.annotated or wishes.stages is not None:
        inside = [inner.op.name for v in verdicts for inner in v.inner]
        costs = costs_of(graph, wishes.times_s, inside, wishes.extents)
        if wishes.annotated:
            marks = _marks(model, providers, wishes)
            at = {index: marks[n.op.name] for index, n in enumerate(graph.nodes) if n.op.name in marks}
            staged = mark_stages(graph, providers, verdicts, at)
        else:
            staged = deal_stages(graph, providers, verdicts, costs)
    placed = settle_all(graph, providers, verdicts, strict=strict, staged=staged)
    if costs is not None:
        stages = stage_table(graph, providers, placed, costs)
    return assemble(
        graph,
        placed,
        [p.config for p in providers],
        name=model.name,
        digest=model.digest,
        opsets=model.opsets,
        stages=stages,
    )


def _marks(model: Model, providers: Sequence[Candidate], wishes: Wishes) -> dict[str, Mark]:
    """How the model annotates its nodes, by name, with the providers' places as devices. Raises: PlanError."""
    configuration = configuration_of(model, wishes.configuration)
    there = [p.name for p in providers]
    names = wishes.devices or there
    devices = [names[k] for k in children_of(configuration, names)]
    return {
        name: replace(mark, device=there.index(devices[mark.device]))
        for name, mark in marks_of(model, configuration).items()
        if devices[mark.device] in there
    }


def _pin(
    graph: PlanGraph,
    providers: Sequence[Candidate],
    verdicts: Sequence[Verdict],
    overrides: Mapping[str, str],
) -> None:
    """Put the nodes that `overrides` name where it says. Raises: PlanError, OptionError."""
    if not overrides:
        return
    inside = [inner.op.name for v in verdicts for inner in v.inner]
    names = [node.op.name for node in graph.nodes]
    for index, (child, pattern) in pinned(overrides, names, inside, [p.name for p in providers]).items():
        node, verdict, provider = graph.nodes[index], verdicts[index], providers[child]
        match = None
        if verdict.allowed is not None:
            refused = forbidden(provider.config, node.op)
        else:
            match = ask(verdict, node.op, graph.operand_types(node), child, provider)
            refused = None if match.ok else match.reason
        if refused is not None:
            raise PlanError(
                f"override {pattern!r} puts a node on {provider.name}, which does not take it: {refused}",
                op=node.op.id,
                node=node.op.name,
                device=provider.name,
            )
        assign(verdict, child, match, f"override {pattern!r}")


def check_providers(configs: Sequence[ProviderConfig]) -> None:
    """Raises: ProviderError for no providers or two of one name; OptionError for options that are not plain data."""
    if not configs:
        raise ProviderError("the list of providers is empty")
    names = [config.name for config in configs]
    for name in names:
        if names.count(name) > 1:
            raise ProviderError(f"provider {name} is given twice", device=name)
    for config in configs:
        for key, value in config.options:
            try:
                pack_option(value)
            except OptionError as error:
                raise error.at(operand=key, device=config.name) from error.__cause__


def graph_of(model: Model) -> PlanGraph:
    """The model's graph as planning sees it; linear."""
    graph = model.ir.graph
    nodes = Lowering(model.opsets, value_type).operations(graph)
    fed = [v for v in graph.inputs if v.name not in graph.initializers]
    types: dict[str, ValueType | None] = {v.name or "": value_type(v) for v in fed}
    inputs = tuple(types)
    constants: dict[str, int] = {}
    for name, value in graph.initializers.items():
        if name not in types:
            types[name] = value_type(value)
            size = elements(types[name])
            constants[name] = LIMIT + 1 if size is None else size
    for node in nodes:
        types.update(zip(node.outputs, node.types, strict=True))
    types.pop("", None)
    return PlanGraph(nodes, inputs, tuple(v.name or "" for v in graph.outputs), constants, types)


def _inline(model: Model, graph: PlanGraph, verdicts: Sequence[Verdict]) -> bool:
    """Inline the calls that nobody has a kernel for; returns whether there were any."""
    kept: set[str] = set()
    for node, verdict in zip(graph.nodes, verdicts, strict=True):
        if verdict.native:
            kept.add(node.op.name)
            kept.update(inner.op.name for inner in verdict.inner)
    return not all(v.native for v in verdicts) and inline(model, lambda node: node.name in kept)


def assemble(
    graph: PlanGraph,
    placed: Placed,
    providers: Sequence[ProviderConfig],
    *,
    name: str,
    digest: str,
    opsets: Mapping[str, int],
    stages: tuple[Stage, ...] = (),
) -> Plan:
    """The plan for nodes that are placed: their partitions, programs and transfers."""
    groups = partition_nodes(graph.predecessors(), placed.children)
    bounds = boundaries(graph, groups, placed.children)

    def classify(op: Operation) -> Dispatch:
        found = placed.dispatch.get(op.name)
        return default_dispatch(op) if found is None else found

    partitions = tuple(
        Partition(
            number,
            bound.child,
            build_program(
                f"partition {number}",
                [graph.nodes[i] for i in group],
                [(n, graph.types.get(n)) for n in bound.inputs],
                bound.outputs,
                {n: graph.types.get(n) for n in bound.constants},
                classify,
                opsets=opsets,
            ),
        )
        for number, (group, bound) in enumerate(zip(groups, bounds, strict=True))
    )
    parcels, transfers = plan_transfers(bounds, graph.inputs, graph.outputs, graph.types)
    held: list[set[str]] = [set() for _ in providers]
    for partition in partitions:
        held[partition.child].update(constants_of(partition.program))
    return Plan(
        name,
        digest,
        tuple(providers),
        tuple(Port(n, NO_SLOT, graph.types.get(n)) for n in graph.inputs),
        tuple(Port(n, NO_SLOT, graph.types.get(n)) for n in graph.outputs),
        partitions,
        parcels,
        transfers,
        tuple(tuple(sorted(names)) for names in held),
        tuple(placed.placements),
        stages,
    )
