"""What is known of a graph's values from its inputs' extents: symbolic shapes, and the values of shape arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from hetero.program.assemble import LoweredNode
from hetero.program.operation import Operation
from hetero.shapes.extent import Extent, Known, constant
from hetero.types import HostArray

MAX_VALUES = 64
"""Elements of an integer value that are followed one by one."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A tensor: its extents (None: rank unknown), and its elements in order where it is a small vector or scalar of
    integers that follows from extents. `name` is the value's."""

    shape: tuple[Known, ...] | None = None
    value: tuple[Known, ...] | None = None
    name: str = ""

    def integers(self) -> tuple[int, ...] | None:
        """The elements, where all are plain numbers."""
        if self.value is None:
            return None
        found = [None if v is None else v.constant for v in self.value]
        numbers = tuple(v for v in found if v is not None)
        return numbers if len(numbers) == len(found) else None


UNKNOWN = Fact()


@dataclass(frozen=True, slots=True)
class Demand:
    """`left` and `right` must stand in the relation `kind` (obligations.KINDS), or the node cannot run."""

    kind: str
    left: Extent
    right: Extent
    why: str
    left_is: str
    right_is: str
    node: str
    op: str


Rule: TypeAlias = "Callable[[Facts, Operation, Sequence[Fact]], Sequence[Fact]]"
"""(facts, operation, its inputs) -> its outputs. States demands through `facts.demand`."""


class Facts:
    """Learns from nodes in order; `demands` grows with what they ask of extents."""

    def __init__(self, inputs: Mapping[str, tuple[Extent, ...]], weights: Mapping[str, HostArray]) -> None:
        self._facts = {name: Fact(shape, None, name) for name, shape in inputs.items()}
        self._weights = weights
        self._node: LoweredNode | None = None
        self._stated: set[tuple[str, Extent, Extent]] = set()
        self.demands: list[Demand] = []

    def of(self, name: str) -> Fact:
        """What is known of the value; of an initializer, its shape and small integer values."""
        found = self._facts.get(name)
        if found is None:
            found = self._facts[name] = self._weight(name) if name in self._weights else UNKNOWN
        return found

    def learn(self, node: LoweredNode) -> None:
        """Add what follows from one node. What its rule does not know stays unknown."""
        from hetero.shapes.rules import RULES

        rule = RULES.get(node.op.op_type) if not node.op.domain else None
        outputs: Sequence[Fact] = ()
        if rule is not None:
            self._node = node
            outputs = rule(self, node.op, [self.of(n) if n else UNKNOWN for n in node.inputs])
        for k, name in enumerate(node.outputs):
            if name:
                self._facts[name] = replace(outputs[k], name=name) if k < len(outputs) else UNKNOWN

    def demand(self, kind: str, left: Known, right: Known, why: str, left_is: str, right_is: str) -> None:
        """State a demand, unless it says nothing: of unknown extents, always met, or stated before."""
        if (
            left is None
            or right is None
            or (left == right and kind != "divides")
            or _is_met(kind, left, right)
        ):
            return
        if (kind, left, right) in self._stated:
            return
        self._stated.add((kind, left, right))
        node = self._node
        where = ("", "") if node is None else (node.op.name, node.op.id)
        self.demands.append(Demand(kind, left, right, why, left_is, right_is, *where))

    def compare(self, name: str, declared: Sequence[Known]) -> None:
        """Demand that the value's extents are the declared ones, where both are known."""
        shape = self.of(name).shape
        if shape is None or len(shape) != len(declared):
            return
        for axis, (found, told) in enumerate(zip(shape, declared, strict=True)):
            what = f"axis {axis} of {name!r}"
            self.demand(
                "equal",
                found,
                told,
                f"the model declares another shape of {name!r}",
                what,
                "the declared one",
            )

    def _weight(self, name: str) -> Fact:
        array = self._weights[name]
        value = None
        if array.ndim <= 1 and array.size <= MAX_VALUES and array.dtype in (np.int64, np.int32):
            value = tuple(constant(int(v)) for v in array.reshape(-1))
        return Fact(tuple(constant(d) for d in array.shape), value, name)


def _is_met(kind: str, left: Extent, right: Extent) -> bool:
    """Whether every extent meets the demand."""
    bound = right.constant
    if kind == "divides" and bound is not None and bound > 0:
        return all(factor % bound == 0 for _, factor in left.terms)
    return kind == "reaches" and bound is not None and bound <= 1
