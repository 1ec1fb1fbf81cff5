"""Control flow when placing: the nodes inside bodies, and whether a provider takes all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hetero.planner.graph import PlanGraph
from hetero.planner.shape_math import LIMIT, elements, shape_arithmetic
from hetero.program.assemble import LoweredNode
from hetero.program.operation import Operation
from hetero.program.program import NO_SLOT, Program, is_body
from hetero.types import ValueType


@dataclass(frozen=True, slots=True, eq=False)
class InnerNode:
    """A node inside a body, at any depth. `path` names the enclosing bodies ("if1.then_branch"), outermost first;
    `host`: it is shape arithmetic, which runs on the host wherever the body runs."""

    op: Operation
    index: int
    types: tuple[ValueType | None, ...]
    path: tuple[str, ...]
    host: bool


def without_bodies(op: Operation) -> Operation:
    """The operation as a provider sees it that is asked about it alone, its bodies having been asked about before."""
    return replace(op, attributes={k: v for k, v in op.attributes.items() if not is_body(v)})


def inner_nodes(
    op: Operation, operands: Sequence[str], known: Mapping[str, int], path: tuple[str, ...] = ()
) -> list[InnerNode]:
    """Every node inside the bodies of `op`, depth first. `operands` are its operands' names, captures last; `known`
    bounds those that are small constants or results of shape arithmetic, so that a body's shapes may build on them."""
    found: list[InnerNode] = []
    captured = operands[len(operands) - op.n_captures :]
    for name, body in op.bodies().items():
        inside = (*path, f"{op.name}.{name}")
        graph = _graph_of(body)
        entries = body.inputs[len(body.inputs) - body.n_captures :]
        small = {
            str(port.slot): known[outer]
            for port, outer in zip(entries, captured, strict=len(entries) == len(captured))
            if outer in known
        }
        shapes, bounds = shape_arithmetic(graph, small)
        for at, (node, instruction) in enumerate(zip(graph.nodes, body.instructions, strict=True)):
            types = tuple(graph.operand_types(node))
            found.append(InnerNode(node.op, instruction.node_index, types, inside, at in shapes))
            if node.op.attributes:
                found += inner_nodes(node.op, node.inputs, bounds, inside)
    return found


def _graph_of(body: Program) -> PlanGraph:
    """The body as a graph whose values are named by their slots."""
    types: dict[str, ValueType | None] = {str(p.slot): p.type for p in (*body.inputs, *body.constants)}
    for instruction in body.instructions:
        types.update(zip(map(str, instruction.outputs), instruction.types, strict=True))
    return PlanGraph(
        [
            LoweredNode(
                i.op,
                tuple("" if s == NO_SLOT else str(s) for s in i.inputs),
                tuple("" if s == NO_SLOT else str(s) for s in i.outputs),
                i.types,
                i.node_index,
            )
            for i in body.instructions
        ],
        tuple(str(p.slot) for p in body.inputs),
        tuple(str(p.slot) for p in body.outputs),
        {str(p.slot): LIMIT + 1 if (n := elements(p.type)) is None else n for p in body.constants},
        types,
    )
