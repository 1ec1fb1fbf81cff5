"""Lowering: from onnx-ir nodes to operations, bodies of control flow included; pure, linear in the number of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir

from hetero.errors import ModelError
from hetero.program.assemble import Classify, LoweredNode, build_program
from hetero.program.attributes import GRAPHS, attribute_value
from hetero.program.limits import MAX_DEPTH
from hetero.program.operation import Operation
from hetero.program.program import Port, Program
from hetero.program.schema import canonical_domain, imported_version, since_version
from hetero.types import ValueType

__all__ = ["LoweredNode", "Lowering", "TypeOf", "build_program", "operation_of"]

TypeOf: TypeAlias = Callable[[ir.Value], "ValueType | None"]


def operation_of(
    node: ir.Node,
    opsets: Mapping[str, int],
    bodies: Mapping[str, Program | tuple[Program, ...]] | None = None,
    captures: Sequence[str] = (),
) -> Operation:
    """The node's operation; `bodies` gives its graph attributes as programs, `captures` what they capture.

    `present_inputs` speaks of the node's own inputs; the captured ones follow them in an instruction.

    Raises: ModelError for attributes that hold no plain value, and standard domains that are not imported.
    """
    bodies = bodies or {}
    domain = canonical_domain(node.domain)
    name = node.name or ""
    # inlining leaves a version on nodes that the model's opset would change the meaning of
    opset = node.version or imported_version(domain, opsets, node.op_type, name)
    attributes: dict[str, Any] = {}
    for key, attribute in node.attributes.items():
        if key in bodies:
            attributes[key] = bodies[key]
            continue
        try:
            attributes[key] = attribute_value(attribute)
        except ModelError as e:
            op = f"{domain}::{node.op_type}" if domain else node.op_type
            raise e.at(op=op, node=name or None) from e.__cause__
    return Operation(
        domain,
        node.op_type,
        since_version(domain, node.op_type, opset),
        attributes,
        tuple([bool(_name(v)) for v in node.inputs]),
        tuple([bool(_name(v)) for v in node.outputs]),
        len(captures),
        name,
        opset,
    )


class Lowering:
    """Lowers graphs of one model, whose values are uniquely named.

    `types` gives the type of a value where inference found one; `classify` the dispatch of instructions inside bodies
    (`build_program` may decide it anew for the provider a node was placed on). Holds no state between calls.
    """

    def __init__(self, opsets: Mapping[str, int], types: TypeOf, classify: Classify | None = None) -> None:
        self._opsets = dict(opsets)
        self._types = types
        self._classify = classify

    def operations(self, graph: ir.Graph) -> list[LoweredNode]:
        """Every node of the graph, in the graph's order, with what its bodies capture appended to its inputs.

        Raises: ModelError (names the node).
        """
        return self._nodes(graph, 0)

    def lower_body(self, graph: ir.Graph, name: str = "body") -> tuple[Program, tuple[str, ...]]:
        """The body as a program, and the outer values it captures, in order of first use.

        The program's inputs are the graph's own, then the captured values (`n_captures` of them). Constants are the
        graph's own initializers that something reads; initializers of outer graphs are captured like other values.

        Raises: ModelError, ProgramError (names the node).
        """
        nodes = self._nodes(graph, 1)
        captures = self._free(graph, nodes)
        return self._body(graph, name, nodes, captures), tuple(captures)

    def _nodes(self, graph: ir.Graph, depth: int) -> list[LoweredNode]:
        return [self._node(node, index, depth) for index, node in enumerate(graph)]

    def _node(self, node: ir.Node, index: int, depth: int) -> LoweredNode:
        bodies: dict[str, Program | tuple[Program, ...]] = {}
        captures: dict[str, ValueType | None] = {}
        if any(a.type in GRAPHS for a in node.attributes.values()):
            bodies, captures = self._bodies(node, depth + 1)
        op = operation_of(node, self._opsets, bodies, tuple(captures))
        return LoweredNode(
            op,
            (*[_name(v) for v in node.inputs], *captures),
            tuple([_name(v) for v in node.outputs]),
            tuple([self._types(v) if _name(v) else None for v in node.outputs]),
            index,
        )

    def _bodies(
        self, node: ir.Node, depth: int
    ) -> tuple[dict[str, Program | tuple[Program, ...]], dict[str, ValueType | None]]:
        if depth > MAX_DEPTH:
            raise ModelError(f"bodies nested deeper than {MAX_DEPTH}", op=node.op_type, node=node.name)
        graphs: dict[str, list[ir.Graph]] = {}
        for key in sorted(node.attributes):
            attribute = node.attributes[key]
            if attribute.type in GRAPHS:
                if attribute.is_ref() or attribute.value is None:
                    raise ModelError("graph attribute without a graph", node=node.name, operand=key)
                one = attribute.type == ir.AttributeType.GRAPH
                graphs[key] = [attribute.as_graph()] if one else list(attribute.as_graphs())
        # All bodies of a node share one list of captures, so they are lowered before any of them is assembled.
        lowered = {key: [self._nodes(g, depth) for g in members] for key, members in graphs.items()}
        captures: dict[str, ValueType | None] = {}
        for key, members in graphs.items():
            for graph, nodes in zip(members, lowered[key], strict=True):
                for name, found in self._free(graph, nodes).items():
                    captures.setdefault(name, found)
                    if captures[name] is None:
                        captures[name] = found
        bodies: dict[str, Program | tuple[Program, ...]] = {}
        for key, members in graphs.items():
            one = node.attributes[key].type == ir.AttributeType.GRAPH
            programs = tuple(
                self._body(graph, f"{node.name}.{key}" + ("" if one else f"[{k}]"), nodes, captures)
                for k, (graph, nodes) in enumerate(zip(members, lowered[key], strict=True))
            )
            bodies[key] = programs[0] if one else programs
        return bodies, captures

    def _free(self, graph: ir.Graph, nodes: Sequence[LoweredNode]) -> dict[str, ValueType | None]:
        """The values that the body reads and does not define, with their types, in order of first use."""
        own = {_name(v) for v in graph.inputs} | set(graph.initializers)
        for lowered in nodes:
            own.update(lowered.outputs)
        free: dict[str, ValueType | None] = {}
        for node, lowered in zip(graph, nodes, strict=True):
            for value in node.inputs:
                name = _name(value)
                if value is not None and name and name not in own and name not in free:
                    free[name] = self._types(value)
            if lowered.op.n_captures:
                # What an inner body captures passes through this one.
                for port in _captured_ports(lowered.op):
                    if port.name not in own:
                        free.setdefault(port.name, port.type)
        for value in graph.outputs:
            name = _name(value)
            if name and name not in own and name not in free:
                free[name] = self._types(value)
        return free

    def _body(
        self,
        graph: ir.Graph,
        name: str,
        nodes: Sequence[LoweredNode],
        captures: Mapping[str, ValueType | None],
    ) -> Program:
        formal = [(_name(v), self._types(v)) for v in graph.inputs]
        taken = {n for n, _ in formal}
        constants = {n: self._types(v) for n, v in graph.initializers.items() if n not in taken}
        return build_program(
            name,
            nodes,
            [*formal, *captures.items()],
            [_name(v) for v in graph.outputs],
            constants,
            self._classify,
            n_captures=len(captures),
            opsets=self._opsets,
            guarded=False,
        )


def _captured_ports(op: Operation) -> Sequence[Port]:
    for value in op.attributes.values():
        body = value[0] if isinstance(value, tuple) and value else value
        if isinstance(body, Program):
            return body.inputs[len(body.inputs) - op.n_captures :]
    return ()


def _name(value: ir.Value | None) -> str:
    """The value's name; "" where the operand was left out."""
    return "" if value is None else value.name or ""
