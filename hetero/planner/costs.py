"""What a node costs: bytes of weights, and time as measured or as estimated from its operands' types."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hetero.errors import PlanError
from hetero.planner.graph import PlanGraph
from hetero.planner.transfers import static_bytes
from hetero.program.operation import Operation
from hetero.program.program import NO_SLOT, Program
from hetero.shapes.expression import evaluate
from hetero.trace import Span
from hetero.types import DataType, TensorType, ValueType, numpy_dtype

ASSUMED_EXTENT = 64
"""Of an axis whose extent is not known before the run. One number for all: what matters is how nodes compare."""
ASSUMED_TRIPS = 8
"""Of a Loop or Scan."""
_CALL_PS = 1_000_000
_PS_PER_OPERATION = 1
_PS_PER_BYTE = 10
"""A device of 1 Tflop/s and 100 GB/s that takes 1 µs to launch a kernel; faster ones have about the same ratios."""
_MAX_PS = 1 << 60

# fmt: off
_PRODUCTS = frozenset((
    "MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "FusedGemm", "QGemm", "MatMulInteger16",
    "MatMulIntegerToFloat", "DynamicQuantizeMatMul",
))
_CONVOLUTIONS = frozenset((
    "Conv", "ConvInteger", "QLinearConv", "FusedConv", "NhwcConv", "NhwcFusedConv", "DeformConv",
))
_RECURRENT = frozenset(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"))
# fmt: on


@dataclass(frozen=True, slots=True)
class Costs:
    """Per node its time in picoseconds (whole numbers: sums are exact, and equal on every machine); per value and
    weight its bytes, unknown extents as ASSUMED_EXTENT."""

    times_ps: Sequence[int]
    value_bytes: Mapping[str, int]
    weight_bytes: Mapping[str, int]


def costs_of(
    graph: PlanGraph,
    measured_s: Mapping[str, float] | None = None,
    bodies: Iterable[str] = (),
    extents: Mapping[str, int] | None = None,
) -> Costs:
    """Costs of a graph; linear in its nodes, those in bodies included.

    `measured_s`: seconds by node name. Nodes it lacks are estimated, to the scale of those that it has. It may name
    nodes inside `bodies` too, which count with the node that they belong to. `extents`: what symbols stand for, as far
    as that is known.
    Raises: PlanError for a name that is no node's, and a time that is not finite or negative.
    """
    sizes = _Sizes(extents or {})
    times = [sizes.time_ps(node.op, graph.operand_types(node), node.types) for node in graph.nodes]
    if measured_s:
        _take_measured(graph, times, measured_s, frozenset(bodies))
    values = {
        name: sizes.nbytes(graph.types.get(name))
        for name in (*graph.inputs, *(n for node in graph.nodes for n in node.outputs if n))
    }
    weights = {name: static_bytes(graph.types.get(name)) or 0 for name in graph.constants}
    return Costs(times, values, weights)


def measured(spans: Iterable[Span]) -> dict[str, float]:
    """Seconds per node from the spans of `HeterogeneousExecutor.spans` (RuntimeOptions.trace_ops): for each the median
    over its steps. A fused call's time is shared out evenly; what tracing a body took is not the node's time."""
    steps: dict[str, dict[int, float]] = {}
    for span in spans:
        if span.category != "op":
            continue
        names: Sequence[str] = span.args.get("nodes") or [span.args.get("node") or span.name]
        share = (span.end_s - span.start_s - float(span.args.get("tracing_s", 0.0))) / len(names)
        for name in names:
            of_node = steps.setdefault(name, {})
            of_node[span.step] = of_node.get(span.step, 0.0) + max(share, 0.0)
    return {name: median(of_node.values()) for name, of_node in steps.items()}


def _take_measured(
    graph: PlanGraph, times: list[int], measured_s: Mapping[str, float], bodies: frozenset[str]
) -> None:
    index_of = {node.op.name: index for index, node in enumerate(graph.nodes)}
    found: dict[int, int] = {}
    for name, seconds in measured_s.items():
        if name not in index_of:
            if name in bodies:
                continue
            raise PlanError("a time is given for a node that the model does not have", node=name)
        if not 0 <= seconds < _MAX_PS / 1e12:
            raise PlanError(f"a node's time must be 0 or more seconds, not {seconds}", node=name)
        found[index_of[name]] = round(seconds * 1e12)
    estimated = sum(times[index] for index in found)
    total = sum(found.values())
    for index, time in enumerate(times):
        if index in found:
            times[index] = found[index]
        elif estimated:
            times[index] = time * total // estimated


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Estimates from types, under what is known of symbols."""

    known: Mapping[str, int]

    def time_ps(
        self, op: Operation, operands: Sequence[ValueType | None], results: Sequence[ValueType | None]
    ) -> int:
        bodies = op.bodies()
        if bodies:
            inside = [self._body_ps(body) for body in bodies.values()]
            # One branch of an If runs; a body of any other operator runs as often as it pleases.
            time = max(inside) if op.op_type == "If" else sum(inside) * ASSUMED_TRIPS
            return min(_CALL_PS + time, _MAX_PS)
        touched = sum(self.nbytes(t) for t in (*operands, *results))
        work = self._operations(op, operands, results)
        return min(_CALL_PS + max(touched * _PS_PER_BYTE, work * _PS_PER_OPERATION), _MAX_PS)

    def _body_ps(self, body: Program) -> int:
        types: dict[int, ValueType | None] = {p.slot: p.type for p in (*body.inputs, *body.constants)}
        total = 0
        for instruction in body.instructions:
            operands = [types.get(slot) for slot in instruction.inputs if slot != NO_SLOT]
            total += self.time_ps(instruction.op, operands, instruction.types)
            types.update(zip(instruction.outputs, instruction.types, strict=True))
        return total

    def _operations(
        self, op: Operation, operands: Sequence[ValueType | None], results: Sequence[ValueType | None]
    ) -> int:
        """Multiplications and additions of the operators that are bound by them; 0 for all others."""
        first = self._extents(operands[0]) if operands else None
        out = self._extents(results[0]) if results else None
        if first is None or out is None:
            return 0
        if op.op_type in _PRODUCTS and first:
            turned = op.attr("transA", 0)
            return 2 * math.prod(out) * (first[-2] if turned and len(first) > 1 else first[-1])
        if op.op_type == "MatMulNBits":
            return 2 * math.prod(out) * int(op.attr("K", 1))
        if op.op_type == "Einsum" and len(operands) > 1:
            return 2 * max(math.prod(out), math.prod(first)) * (first[-1] if first else 1)
        at = 3 if op.op_type == "QLinearConv" else 1
        kernel = self._extents(operands[at]) if len(operands) > at else None
        if kernel and op.op_type in _CONVOLUTIONS:
            return 2 * math.prod(out) * math.prod(kernel[1:])
        if kernel and op.op_type == "ConvTranspose":
            return 2 * math.prod(first) * math.prod(kernel[1:])
        if kernel and op.op_type in _RECURRENT and len(operands) > 2 and len(first) == 3:
            recurrent = self._extents(operands[2]) or ()
            return 2 * first[0] * first[1] * (math.prod(kernel) + math.prod(recurrent))
        return 0

    def nbytes(self, type_: ValueType | None) -> int:
        extents = self._extents(type_)
        if extents is None or not isinstance(type_, TensorType):
            return 0
        if type_.dtype is None or type_.dtype in (DataType.STRING, DataType.UNDEFINED):
            return 0
        return min(math.prod(extents) * numpy_dtype(type_.dtype).itemsize, _MAX_PS // _PS_PER_BYTE)

    def _extents(self, type_: ValueType | None) -> tuple[int, ...] | None:
        if not isinstance(type_, TensorType) or type_.shape is None:
            return None
        return tuple([d if isinstance(d, int) else self._extent(d) for d in type_.shape])

    def _extent(self, dim: str | None) -> int:
        found = evaluate(dim, self.known) if self.known else None
        return ASSUMED_EXTENT if found is None else found
