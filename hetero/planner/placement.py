"""Placement: each node to the first provider that takes it, and why; shape arithmetic beside its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hetero.errors import PlanError, UnsupportedNodeError
from hetero.planner.graph import PlanGraph
from hetero.planner.plan import Placement, Rejection
from hetero.planner.shape_math import settle, shape_nodes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch, Program
from hetero.providers.base import Match, ProviderConfig
from hetero.types import ValueType

_LISTED = 10
"""Nodes that one error lists."""


class Candidate(Protocol):
    """What placement needs of a provider."""

    name: str
    config: ProviderConfig

    def supports(self, op: Operation, types: Sequence[ValueType | None]) -> Match: ...


@dataclass(frozen=True, slots=True)
class Placed:
    """Per node its child (an index into the providers), how it is dispatched, and the placements for the
    plan."""

    children: list[int]
    dispatch: list[Dispatch]
    placements: list[Placement]


def forbidden(config: ProviderConfig, op: Operation) -> str | None:
    """Why the user's `ops` / `except_ops` keep the operation off the provider; None where they do not."""
    names = {op.id, op.op_type}
    if names & config.except_ops:
        return f"{op.id} is in except_ops of {config.name}"
    if config.ops is not None and not names & config.ops:
        return f"{op.id} is not in ops of {config.name}"
    return None


def native_nodes(graph: PlanGraph, providers: Sequence[Candidate]) -> list[bool]:
    """Per node, whether some provider has a kernel of its own for it (so that a function need not be
    inlined)."""
    return [
        any(m.ok and m.native for m in (p.supports(n.op, graph.operand_types(n)) for p in providers))
        for n in graph.nodes
    ]


def place(graph: PlanGraph, providers: Sequence[Candidate], *, strict: bool = False) -> Placed:
    """Place every node on one of `providers` (best first).

    A provider that would run a node natively comes before any that would run it through onnx.reference. Shape
    arithmetic (see shape_math) runs on the host inside whichever child is nearest, unless the user's filters
    forbid the operation there.

    Raises: UnsupportedNodeError where no provider takes a node (the message lists every provider's reason,
    for up to ten such nodes); PlanError with `strict` where a node is not on the first provider.
    """
    n = len(graph.nodes)
    shapes = shape_nodes(graph)
    children: list[int | None] = [None] * n
    matches: list[Match | None] = [None] * n
    rejected: list[tuple[Rejection, ...]] = [()] * n
    allowed: list[list[int]] = []
    orphans: list[tuple[int, list[Rejection]]] = []
    for index in sorted(shapes):
        free = [c for c, p in enumerate(providers) if forbidden(p.config, graph.nodes[index].op) is None]
        if free:
            allowed.append(free)
        else:
            shapes.discard(index)
    for index, node in enumerate(graph.nodes):
        if index in shapes:
            continue
        chosen, match, reasons = _choose(node.op, graph.operand_types(node), providers)
        if match is None:
            orphans.append((index, reasons))
            continue
        children[index], matches[index], rejected[index] = chosen, match, tuple(reasons)
    if orphans:
        raise _unsupported(graph, orphans)
    settle(graph, shapes, children, allowed)
    placed = Placed([0 if c is None else c for c in children], [], [])
    for index, node in enumerate(graph.nodes):
        child, match = placed.children[index], matches[index]
        if match is None:
            match = Match(
                True, f"shape arithmetic: on the host inside {providers[child].name}", dispatch=Dispatch.HOST
            )
            rejected[index] = tuple(_passed_over(node.op, providers[:child], providers[child].name))
        placed.dispatch.append(match.dispatch)
        record = Placement(
            index, node.op.name, node.op.id, providers[child].name, match.reason, rejected[index]
        )
        placed.placements.append(record)
        if node.op.attributes:
            _record_bodies(node.op, graph.operand_types(node), providers, child, (), placed.placements)
    if strict:
        _check_strict(graph, placed, providers)
    return placed


def _choose(
    op: Operation, types: Sequence[ValueType | None], providers: Sequence[Candidate]
) -> tuple[int, Match | None, list[Rejection]]:
    """(child, its match, why not the others that were asked before it); the match is None where nobody takes
    it."""
    last_resort: tuple[int, Match] | None = None
    reasons: list[Rejection] = []
    for child, provider in enumerate(providers):
        match = provider.supports(op, types)
        if match.ok and match.native:
            return child, match, reasons
        if match.ok and last_resort is None:
            last_resort = (child, match)
        reasons.append(Rejection(provider.name, match.reason))
    if last_resort is None:
        return -1, None, reasons
    child, match = last_resort
    return child, match, reasons[:child]


def _passed_over(op: Operation, better: Sequence[Candidate], chosen: str) -> list[Rejection]:
    return [
        Rejection(
            p.name,
            forbidden(p.config, op) or f"shape arithmetic: what it reads, or what reads it, is on {chosen}",
        )
        for p in better
    ]


def _record_bodies(
    op: Operation,
    types: Sequence[ValueType | None],
    providers: Sequence[Candidate],
    child: int,
    path: tuple[str, ...],
    records: list[Placement],
) -> None:
    """Record the nodes inside the bodies of `op`: they sit where `op` sits, as a body never crosses
    children."""
    for attribute, body in op.bodies().items():
        inside = (*path, f"{op.name}.{attribute}")
        known = body_types(op, types, body)
        for instruction in body.instructions:
            operands = [known.get(slot) for slot in instruction.inputs]
            inner = instruction.op
            if instruction.dispatch is Dispatch.HOST:
                reason = f"shape arithmetic: on the host inside {providers[child].name}"
            else:
                reason = providers[child].supports(inner, operands).reason
            reasons = (Rejection(p.name, p.supports(inner, operands).reason) for p in providers[:child])
            records.append(
                Placement(
                    instruction.node_index,
                    inner.name,
                    inner.id,
                    providers[child].name,
                    reason,
                    tuple(reasons),
                    inside,
                )
            )
            _record_bodies(inner, operands, providers, child, inside, records)
            known.update(zip(instruction.outputs, instruction.types, strict=True))


def body_types(
    op: Operation, types: Sequence[ValueType | None], body: Program
) -> dict[int, ValueType | None]:
    """Slot -> type of what a body starts from. A capture that inference left without a type in the body takes
    the type that the operand has outside."""
    known: dict[int, ValueType | None] = {p.slot: p.type for p in (*body.inputs, *body.constants)}
    if op.n_captures and op.n_captures == body.n_captures:
        for port, type_ in zip(body.inputs[-op.n_captures :], types[-op.n_captures :], strict=True):
            if port.type is None:
                known[port.slot] = type_
    return known


def _unsupported(graph: PlanGraph, orphans: Sequence[tuple[int, list[Rejection]]]) -> UnsupportedNodeError:
    lines = []
    for index, reasons in orphans[:_LISTED]:
        node = graph.nodes[index]
        why = "; ".join(f"{r.provider}: {r.reason}" for r in reasons)
        lines.append(f"{describe(node.op, graph.operand_types(node))}: {why}")
    more = f"\n  … and {len(orphans) - _LISTED} more" if len(orphans) > _LISTED else ""
    first = graph.nodes[orphans[0][0]].op
    if len(orphans) == 1:
        return UnsupportedNodeError(f"no provider supports {lines[0]}", op=first.id, node=first.name)
    listing = "".join(f"\n  {line}" for line in lines)
    return UnsupportedNodeError(
        f"no provider supports {len(orphans)} nodes:{listing}{more}", op=first.id, node=first.name
    )


def _check_strict(graph: PlanGraph, placed: Placed, providers: Sequence[Candidate]) -> None:
    astray = [index for index, child in enumerate(placed.children) if child != 0]
    if not astray:
        return
    outer = {p.node_index: p for p in placed.placements if not p.path}
    lines = []
    for index in astray[:_LISTED]:
        node = graph.nodes[index]
        reason = next(r.reason for r in outer[index].rejected if r.provider == providers[0].name)
        lines.append(
            f"{describe(node.op, graph.operand_types(node))} falls to {outer[index].provider}: {reason}"
        )
    more = f"\n  … and {len(astray) - _LISTED} more" if len(astray) > _LISTED else ""
    first = graph.nodes[astray[0]].op
    count = f"{len(astray)} node{'s' if len(astray) > 1 else ''}"
    raise PlanError(
        f"strict: {count} not on {providers[0].name}:" + "".join(f"\n  {line}" for line in lines) + more,
        op=first.id,
        node=first.name,
        device=providers[0].name,
    )


def describe(op: Operation, types: Sequence[ValueType | None]) -> str:
    """Node, op, version, opset and operand types on one line, for messages."""
    operands = ", ".join("?" if t is None else str(t) for t in types)
    return f"node {op.name!r} ({op.id}-{op.version}, opset {op.opset or op.version}; inputs {operands or 'none'})"
