"""The graph as planning sees it: lowered nodes over named values, easy to write by hand in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hetero.program.assemble import LoweredNode
from hetero.types import ValueType


@dataclass(frozen=True, slots=True, eq=False)
class PlanGraph:
    """Nodes in topological order; planning numbers them by their place here.

    `constants` gives each initializer's number of elements. `types` holds what inference knows of a value.
    """

    nodes: Sequence[LoweredNode]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, ValueType | None] = field(default_factory=dict)

    def operand_types(self, node: LoweredNode) -> list[ValueType | None]:
        """Declared types of the operands (captures included); None where omitted or not inferred."""
        types = self.types
        return [types.get(name) for name in node.inputs]

    def producers(self) -> dict[str, int]:
        """Value name -> the node that computes it."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.outputs if name}

    def predecessors(self) -> list[list[int]]:
        """For each node the nodes it reads from."""
        producers = self.producers()
        return [[producers[n] for n in node.inputs if n in producers] for node in self.nodes]
