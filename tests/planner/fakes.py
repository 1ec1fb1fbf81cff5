"""Graphs and providers written by hand: planning is testable without a model file or a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hetero.planner.graph import PlanGraph
from hetero.planner.placement import Candidate, place
from hetero.planner.plan import Plan
from hetero.planner.planner import assemble
from hetero.program.assemble import LoweredNode
from hetero.program.operation import Operation
from hetero.program.program import Program
from hetero.providers.base import Match, ProviderConfig
from hetero.types import DataType, TensorType, ValueType

F32 = TensorType(DataType.FLOAT, (2, 3))


def ints(*shape: int | str | None) -> TensorType:
    return TensorType(DataType.INT64, shape)


def node(op_type: str, inputs: str, outputs: str, name: str | None = None, **attributes: Any) -> LoweredNode:
    """A node from blank-separated names; "-" is an omitted operand. A domain stands before "::". Bodies among the
    attributes capture the trailing inputs."""
    domain, _, kind = op_type.rpartition("::")
    ins = tuple("" if n == "-" else n for n in inputs.split())
    outs = tuple("" if n == "-" else n for n in outputs.split())
    captures = max((b.n_captures for b in attributes.values() if isinstance(b, Program)), default=0)
    op = Operation(
        domain,
        kind,
        13,
        attributes,
        tuple(map(bool, ins[: len(ins) - captures])),
        tuple(map(bool, outs)),
        captures,
        name=name if name is not None else f"make_{outs[0]}",
        opset=17,
    )
    return LoweredNode(op, ins, outs, (F32,) * len(outs), 0)


def graph(
    nodes: Iterable[LoweredNode],
    inputs: str,
    outputs: str,
    constants: Mapping[str, int] | None = None,
    types: Mapping[str, ValueType | None] | None = None,
) -> PlanGraph:
    """Every value without a type in `types` is a float32[2, 3]; constants without one are int64."""
    given = list(nodes)
    constants = constants or {}
    names = {n for g in given for n in (*g.inputs, *g.outputs) if n} | set(inputs.split())
    all_types: dict[str, ValueType | None] = dict.fromkeys(sorted(names), F32)
    all_types.update({n: ints(count) for n, count in constants.items()})
    all_types.update(types or {})
    made = [
        replace(g, index=i, types=tuple(all_types[n] if n else None for n in g.outputs))
        for i, g in enumerate(given)
    ]
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
        memory: int | None = None,
    ) -> None:
        self.name = name
        self.memory_limit_bytes = memory
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


def plan_of(g: PlanGraph, providers: Sequence[Candidate], *, name: str = "m", strict: bool = False) -> Plan:
    """The plan of a hand-written graph."""
    placed = place(g, providers, strict=strict)
    return assemble(
        g, placed, [p.config for p in providers], name=name, digest="0" * 64, opsets={"": 17, "my": 1}
    )
