"""Placement: each node to the first provider that takes it, and why; shape arithmetic beside its neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hetero.errors import PlanError, UnsupportedNodeError
from hetero.planner.bodies import InnerNode, inner_nodes, without_bodies
from hetero.planner.graph import PlanGraph
from hetero.planner.plan import Placement, Rejection
from hetero.planner.shape_math import settle, shape_arithmetic
from hetero.planner.stage_order import hold_order
from hetero.program.assemble import has_bodies
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.providers.base import Match, ProviderConfig, forbidden
from hetero.providers.lookup import is_control
from hetero.types import ValueType, host_kind

GOES_WITH = "goes with"
"""Starts the reason of a node in a body that a better provider would take, but not all that the body is part of."""
_LISTED = 10
"""Nodes that one error lists."""


class Candidate(Protocol):
    """What placement needs of a provider."""

    name: str
    config: ProviderConfig

    @property
    def memory_limit_bytes(self) -> int | None: ...

    def supports(self, op: Operation, types: Sequence[ValueType | None]) -> Match: ...


@dataclass(slots=True)
class Verdict:
    """What the providers say of one node: the child chosen (None: nobody takes it, or it is shape arithmetic, whose
    child the neighbours decide), that child's match, and why not those asked before it (all, where nobody takes it).

    `inner` are the nodes inside its bodies, with what each asked provider said of each.
    """

    child: int | None = None
    match: Match | None = None
    rejected: list[Rejection] = field(default_factory=list)
    allowed: list[int] | None = None
    """For shape arithmetic: the children that the user's filters leave to it."""
    inner: list[InnerNode] = field(default_factory=list)
    inner_matches: dict[int, list[Match]] = field(default_factory=dict)
    assigned: bool = False
    """Placed by something other than the order of the providers (a stage, an override): nobody else was wanted."""
    note: str = ""
    """What to say of that beside the reason."""

    @property
    def native(self) -> bool:
        """Whether a provider has kernels of its own for it."""
        return self.allowed is not None or (self.match is not None and self.match.native)


@dataclass(frozen=True, slots=True)
class Placed:
    """Per node its child (an index into the providers); how each operation is dispatched, those inside bodies included,
    by the node's name; and the placements for the plan."""

    children: list[int]
    dispatch: dict[str, Dispatch]
    placements: list[Placement]


@dataclass(frozen=True, slots=True)
class Staged:
    """How nodes are staged. `peers`: the children that stages are on, each as good as the first provider. `of_child`:
    the stage that everything on a child belongs to, in pipeline order; `of_node`: stages of single nodes, which come
    before that. `latest`: the last stage that shape arithmetic may go to without a value going backwards."""

    peers: frozenset[int]
    of_child: Mapping[int, int] = field(default_factory=dict)
    of_node: Mapping[int, int] = field(default_factory=dict)
    latest: Mapping[int, int] = field(default_factory=dict)


def place(graph: PlanGraph, providers: Sequence[Candidate], *, strict: bool = False) -> Placed:
    """Place every node on one of `providers` (best first): `judge`, then `settle_all`. Raises what they raise."""
    return settle_all(graph, providers, judge(graph, providers), strict=strict)


def judge(graph: PlanGraph, providers: Sequence[Candidate]) -> list[Verdict]:
    """Ask the providers, best first, about every node; linear in nodes.

    A provider that would run a node natively comes before any that would run it through onnx.reference. Shape
    arithmetic runs on the host inside whichever child it goes to, so nobody is asked about it: only the user's filters
    count (but for that of strings, which no device takes). A control-flow node is taken where everything inside it is.
    """
    shapes, bounds = shape_arithmetic(graph)
    verdicts: list[Verdict] = []
    for index, node in enumerate(graph.nodes):
        verdict = Verdict()
        verdicts.append(verdict)
        if index in shapes and not _held_by_host(graph.operand_types(node)):
            allowed = [c for c, p in enumerate(providers) if forbidden(p.config, node.op) is None]
            if allowed:
                verdict.allowed = allowed
                continue
        if node.op.attributes and has_bodies(node.op):
            verdict.inner = inner_nodes(node.op, node.inputs, bounds)
        _choose(verdict, node.op, graph.operand_types(node), providers)
    return verdicts


def ask(
    verdict: Verdict, op: Operation, types: Sequence[ValueType | None], child: int, provider: Candidate
) -> Match:
    """What one provider, child number `child`, says of a node that is no shape arithmetic."""
    if verdict.inner or is_control(op):
        return _match_whole(verdict, op, types, child, provider)
    return provider.supports(op, types)


def assign(verdict: Verdict, child: int, match: Match | None, note: str = "") -> None:
    """Put a node on a child that takes it (`match` says so; None for shape arithmetic), whatever was chosen before."""
    verdict.assigned, verdict.note = True, note
    if verdict.allowed is not None:
        verdict.allowed = [child]
    else:
        verdict.child, verdict.match, verdict.rejected = child, match, []


def settle_all(
    graph: PlanGraph,
    providers: Sequence[Candidate],
    verdicts: Sequence[Verdict],
    *,
    strict: bool = False,
    staged: Staged | None = None,
) -> Placed:
    """Turn verdicts into placements, shape arithmetic included.

    Raises: UnsupportedNodeError where no provider takes a node (the message lists every provider's reason, for up to
    ten such nodes); PlanError with `strict` where a node falls back from the first provider (or those staged with it).
    """
    staged = staged or Staged(frozenset({0}))
    shapes = {index for index, v in enumerate(verdicts) if v.allowed is not None}
    orphans = [i for i, v in enumerate(verdicts) if v.match is None and i not in shapes]
    if orphans:
        raise _unsupported(graph, orphans, verdicts)
    found = [v.child for v in verdicts]
    settle(graph, shapes, found, [v.allowed for v in verdicts if v.allowed is not None])
    hold_order(graph, staged.latest, found, staged.of_child)
    placed = Placed([0 if child is None else child for child in found], {}, [])
    for index, (node, verdict) in enumerate(zip(graph.nodes, verdicts, strict=True)):
        child = placed.children[index]
        name = providers[child].name
        stage = staged.of_node.get(index, staged.of_child.get(child))
        match = _on_host(name) if verdict.match is None else verdict.match
        rejected = verdict.rejected
        if verdict.match is None and not verdict.assigned and child not in staged.peers:
            why = f"shape arithmetic that belongs to nodes on {name}"
            rejected = [Rejection(p.name, forbidden(p.config, node.op) or why) for p in providers[:child]]
        reason = f"{match.reason}; {verdict.note}" if verdict.note else match.reason
        placed.dispatch[node.op.name] = match.dispatch
        placed.placements.append(
            Placement(node.index, node.op.name, node.op.id, name, reason, tuple(rejected), stage=stage)
        )
        for k, inner in enumerate(verdict.inner):
            chosen = verdict.inner_matches[child][k]
            placed.dispatch[inner.op.name] = chosen.dispatch
            reasons = tuple(
                Rejection(p.name, f"{GOES_WITH} {node.op.name!r}" if asked.ok else asked.reason)
                for p, asked in (
                    (p, verdict.inner_matches[c][k])
                    for c, p in enumerate(providers[:child])
                    if not verdict.assigned
                )
            )
            placed.placements.append(
                Placement(
                    inner.index, inner.op.name, inner.op.id, name, chosen.reason, reasons, inner.path, stage
                )
            )
    if strict:
        _check_strict(graph, placed, providers, staged.peers)
    return placed


def _on_host(provider: str) -> Match:
    return Match(True, f"shape arithmetic, on the host of {provider}", dispatch=Dispatch.HOST)


def _choose(
    verdict: Verdict, op: Operation, types: Sequence[ValueType | None], providers: Sequence[Candidate]
) -> None:
    last_resort: tuple[int, Match] | None = None
    for child, provider in enumerate(providers):
        match = ask(verdict, op, types, child, provider)
        if match.ok and match.native:
            verdict.child, verdict.match = child, match
            return
        if match.ok and last_resort is None:
            last_resort = (child, match)
        verdict.rejected.append(Rejection(provider.name, match.reason))
    if last_resort is not None:
        verdict.child, verdict.match = last_resort
        del verdict.rejected[verdict.child :]


def _match_whole(
    verdict: Verdict, op: Operation, types: Sequence[ValueType | None], child: int, provider: Candidate
) -> Match:
    """Whether the provider takes an operation with all that is inside its bodies; native where all of it is.

    The runtime runs control flow itself, so a provider is asked about each node apart; that lets shape arithmetic in
    a body run on the host where the device has no kernel for it.
    """
    matches = [_match_inner(inner, provider) for inner in verdict.inner]
    verdict.inner_matches[child] = matches
    if not is_control(op):
        return provider.supports(op, types)
    whole = provider.supports(without_bodies(op), types)
    if not whole.ok:
        return whole
    for inner, match in zip(verdict.inner, matches, strict=True):
        if not match.ok:
            where = "/".join(inner.path)
            return Match(False, f"{where}: node {inner.op.name!r} ({inner.op.id}): {match.reason}")
    native = whole.native and all(m.native for m in matches)
    return replace(whole, native=native, dispatch=Dispatch.CONTROL)


def _match_inner(inner: InnerNode, provider: Candidate) -> Match:
    if inner.host and not _held_by_host(inner.types) and forbidden(provider.config, inner.op) is None:
        return _on_host(provider.name)
    if is_control(inner.op):
        return replace(provider.supports(without_bodies(inner.op), inner.types), dispatch=Dispatch.CONTROL)
    return provider.supports(inner.op, inner.types)


def _held_by_host(types: Sequence[ValueType | None]) -> bool:
    """Whether an operand is of a kind that no device holds: then even its shape is the host's business."""
    return any(host_kind(type_) is not None for type_ in types)


def _unsupported(
    graph: PlanGraph, orphans: Sequence[int], verdicts: Sequence[Verdict]
) -> UnsupportedNodeError:
    first = graph.nodes[orphans[0]].op
    lines = [
        f"{_describe(graph, index)}: "
        + "; ".join(f"{r.provider}: {r.reason}" for r in verdicts[index].rejected)
        for index in orphans[:_LISTED]
    ]
    if len(orphans) == 1:
        return UnsupportedNodeError(f"no provider supports {lines[0]}", op=first.id, node=first.name)
    message = f"no provider supports {len(orphans)} nodes:{_listing(lines, len(orphans))}"
    return UnsupportedNodeError(message, op=first.id, node=first.name)


def _check_strict(
    graph: PlanGraph, placed: Placed, providers: Sequence[Candidate], preferred: frozenset[int]
) -> None:
    outer = [p for p in placed.placements if not p.path]
    astray = [
        index
        for index, child in enumerate(placed.children)
        if child not in preferred and outer[index].rejected
    ]
    if not astray:
        return
    lines = [
        f"{_describe(graph, index)} falls to {outer[index].provider}: {outer[index].rejected[0].reason}"
        for index in astray[:_LISTED]
    ]
    nodes = "a node is" if len(astray) == 1 else f"{len(astray)} nodes are"
    raise PlanError(
        f"strict: {nodes} not on {providers[0].name}:{_listing(lines, len(astray))}",
        op=graph.nodes[astray[0]].op.id,
        node=graph.nodes[astray[0]].op.name,
        device=providers[0].name,
    )


def _listing(lines: Iterable[str], count: int) -> str:
    more = f"\n  … and {count - _LISTED} more" if count > _LISTED else ""
    return "".join(f"\n  {line}" for line in lines) + more


def _describe(graph: PlanGraph, index: int) -> str:
    """Node, op, version, opset and operand types on one line."""
    node = graph.nodes[index]
    operands = ", ".join(
        "-" if not name else "?" if type_ is None else str(type_)
        for name, type_ in zip(node.inputs, graph.operand_types(node), strict=True)
    )
    op = node.op
    return f"node {op.name!r} ({op.id}-{op.version}, opset {op.opset or op.version}; inputs {operands or 'none'})"
