"""Graphs and providers written by hand: planning is testable without a model file or a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hetero.planner.graph import PlanGraph
from hetero.program.assemble import LoweredNode
from hetero.program.operation import Operation
from hetero.providers.base import Match, ProviderConfig
from hetero.types import DataType, TensorType, ValueType

F32 = TensorType(DataType.FLOAT, (2, 3))


def ints(*shape: int | str | None) -> TensorType:
    return TensorType(DataType.INT64, shape)


def node(op_type: str, inputs: str, outputs: str, name: str | None = None, **attributes: Any) -> GraphNode:
    """A node from blank-separated names; "-" is an omitted operand. A domain stands before "::"."""
    domain, _, kind = op_type.rpartition("::")
    ins = tuple(None if n == "-" else n for n in inputs.split())
    outs = tuple(None if n == "-" else n for n in outputs.split())
    op = Operation(
        domain,
        kind,
        13,
        attributes,
        tuple(n is not None for n in ins),
        tuple(n is not None for n in outs),
        name=name if name is not None else f"make_{outs[0]}",
        opset=17,
    )
    return GraphNode(op, ins, outs)


def graph(
    nodes: Iterable[GraphNode],
    inputs: str,
    outputs: str,
    constants: Mapping[str, int] | None = None,
    types: Mapping[str, ValueType | None] | None = None,
) -> PlanGraph:
    """Every value without a type in `types` is a float32[2, 3]; constants without one are int64."""
    made = tuple(nodes)
    constants = constants or {}
    names = {n for g in made for n in (*g.inputs, *g.outputs) if n is not None}
    all_types: dict[str, ValueType | None] = dict.fromkeys(sorted(names), F32)
    all_types.update({n: ints(count) for n, count in constants.items()})
    all_types.update(types or {})
    return PlanGraph(made, tuple(inputs.split()), tuple(outputs.split()), constants, all_types)


class FakeProvider:
    """Takes the operations it is told to, natively or not."""

    def __init__(
        self,
        name: str,
        ops: Iterable[str] | None = None,
        *,
        reference: bool = False,
        only: Iterable[str] | None = None,
        never: Iterable[str] = (),
        rule: Callable[[Operation, Sequence[ValueType | None]], bool] | None = None,
    ) -> None:
        self.name = name
        self.ops = None if ops is None else frozenset(ops)
        self.reference = reference
        self.rule = rule
        self.config = ProviderConfig(name, (), None if only is None else frozenset(only), frozenset(never))

    def supports(self, op: Operation, types: Sequence[ValueType | None]) -> Match:
        if op.id in self.config.except_ops:
            return Match(False, f"{op.id} is in except_ops of {self.name}")
        if self.config.ops is not None and op.id not in self.config.ops:
            return Match(False, f"{op.id} is not in ops of {self.name}")
        if self.rule is not None:
            return Match(True, "by rule") if self.rule(op, types) else Match(False, "ruled out")
        if self.ops is None or op.id in self.ops:
            return Match(True, f"{self.name} kernel")
        if self.reference:
            return Match(True, "through onnx.reference", native=False)
        return Match(False, f"{self.name} has no kernel for {op.id}")
