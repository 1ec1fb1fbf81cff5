"""Shape arithmetic: which nodes only compute small integers from shapes, and beside which neighbour each belongs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hetero.planner.graph import PlanGraph
from hetero.program.assemble import LoweredNode
from hetero.types import DataType, TensorType, ValueType

LIMIT = 1024
"""Most elements of a value that counts as shape arithmetic."""
_MAX_RANK = 64
_FAR = 1000
"""Weight of moving a value that is no shape arithmetic, against 1 for one that is."""

_INTEGERS = frozenset({DataType.INT64, DataType.INT32, DataType.BOOL})
_SOURCES = frozenset({"Shape", "Size"})
# fmt: off
_BROADCAST = frozenset((
    "Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual", "Where",
))
_NO_LARGER = frozenset((
    "Neg", "Abs", "Sign", "Not", "Cast", "CastLike", "Identity", "Clip", "Slice", "Squeeze", "Unsqueeze", "Reshape",
    "Flatten", "Transpose", "Split", "CumSum", "ReduceProd", "ReduceSum", "ReduceMin", "ReduceMax",
))
"""No output has more elements than the first input."""
_ANY_SIZE = frozenset((
    "Range", "ConstantOfShape", "Expand", "Tile", "Pad", "ScatterElements", "ScatterND", "GatherElements", "GatherND",
    "NonZero",
))
"""Taken only where inference knows how large the output is."""
# fmt: on


def shape_arithmetic(
    graph: PlanGraph, known: Mapping[str, int] | None = None
) -> tuple[set[int], dict[str, int]]:
    """The nodes that compute integers or booleans of at most LIMIT elements from shapes and small constants alone;
    and the values that are such results or constants, with the most elements each can have.

    Such nodes run on the host wherever they are placed: what they compute is needed there, to know the shapes of what
    follows. A node that reads the *values* of a graph input or of any other node is not one of them. `known` are
    values of this kind that the graph has from outside (a body's captures). Linear.
    """
    bounds = dict(known or {})
    bounds.update(
        (name, count)
        for name, count in graph.constants.items()
        if count <= LIMIT and _is_integer(graph.types.get(name))
    )
    found: set[int] = set()
    for index, node in enumerate(graph.nodes):
        bound = _bound(node, bounds)
        if bound is None:
            continue
        sizes: dict[str, int] = {}
        for name in node.outputs:
            if not name:
                continue
            type_ = graph.types.get(name)
            if not (_is_integer(type_) or (type_ is None and node.op.op_type in _SOURCES)):
                break
            size = elements(type_)
            sizes[name] = bound if size is None else size
            if sizes[name] > LIMIT:
                break
        else:
            found.add(index)
            bounds.update(sizes)
    return found, bounds


def _bound(node: LoweredNode, bounds: dict[str, int]) -> int | None:
    """Most elements that an output can have; None where the node is no shape arithmetic."""
    op = node.op.op_type
    if node.op.domain not in ("", "ai.onnx"):
        return None
    if op in _SOURCES:
        return _MAX_RANK if op == "Shape" else 1
    operands = [name for name in node.inputs if name]
    if any(name not in bounds for name in operands):
        return None
    sizes = [bounds[name] for name in operands]
    if op in _BROADCAST or op == "Gather":
        return math.prod(sizes)
    if op == "Concat":
        return sum(sizes)
    if op in _NO_LARGER:
        return sizes[0] if sizes else None
    if op in _ANY_SIZE:
        return LIMIT + 1
    return None


def _is_integer(type_: ValueType | None) -> bool:
    return isinstance(type_, TensorType) and type_.dtype in _INTEGERS


def elements(type_: ValueType | None) -> int | None:
    """Number of elements of a tensor whose extents are all known, else None."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    extents = [d for d in type_.shape if isinstance(d, int)]
    return math.prod(extents) if len(extents) == len(type_.shape) else None


def settle(
    graph: PlanGraph, shapes: set[int], children: list[int | None], allowed: Sequence[Sequence[int]]
) -> None:
    """Give every node of `shapes` a child in `children` (where it has None) so that few values cross between children.

    `allowed[k]` are the children that the k-th node of sorted(shapes) may go to, preferred first, at least one. Each
    node goes where moving its operands and its results costs least, given its neighbours; a value that shape
    arithmetic made weighs 1, any other much more, and nothing is counted that moves there anyway. At equal cost the
    node stays with what it reads while sweeping forwards, and joins its readers while sweeping backwards. Linear.
    """
    order = sorted(shapes)
    allowed_of = dict(zip(order, allowed, strict=True))
    producers = graph.producers()
    light = {n for i in order for n in graph.nodes[i].outputs if n}
    free = {name for name, count in graph.constants.items() if count <= LIMIT}
    reads = {i: tuple(dict.fromkeys(n for n in graph.nodes[i].inputs if n and n not in free)) for i in order}
    near = light.union(*reads.values())
    readers: dict[str, dict[int, int]] = {name: {} for name in near}
    first_reader: dict[str, int] = {}
    for index in reversed(range(len(graph.nodes))):  # so that a reader's wish reaches a whole chain
        node = graph.nodes[index]
        if index in allowed_of:
            child = next((first_reader[n] for n in node.outputs if n in first_reader), None)
        else:
            child = children[index]
            for name in node.inputs:
                if name in readers and child is not None:
                    readers[name][child] = readers[name].get(child, 0) + 1
        if child is not None:
            first_reader.update((n, child) for n in node.inputs if n in readers)

    def place_best(index: int, backwards: bool) -> None:
        node = graph.nodes[index]
        old = children[index]
        if old is not None:
            for name in reads[index]:
                readers[name][old] -= 1
        sources = {children[producers[n]] for n in reads[index] if n in producers}
        targets = {c for n in node.outputs if n for c, count in readers[n].items() if count}
        beside = {c for n in reads[index] for c, count in readers[n].items() if count}
        options = [c for c in allowed_of[index] if c in sources or c in targets or c in beside or c == old]
        if not options:
            wishes = [first_reader[n] for n in node.outputs if n in first_reader]
            options = [c for c in wishes if c in allowed_of[index]] or [allowed_of[index][0]]
        favoured = targets if backwards else sources

        def cost(child: int) -> tuple[int, bool, bool, int]:
            moved = sum(
                1 if n in light else _FAR
                for n in reads[index]
                if not (n in producers and children[producers[n]] == child) and not readers[n].get(child)
            )
            return moved + len(targets - {child}), child not in favoured, child != old, child

        best = min(options, key=cost)
        children[index] = best
        for name in reads[index]:
            readers[name][best] = readers[name].get(best, 0) + 1

    for _ in range(2):
        for index in order:
            place_best(index, backwards=False)
        for index in reversed(order):
            place_best(index, backwards=True)
