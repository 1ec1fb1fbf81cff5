"""What onnx's shape inference takes on trust, checked before it: operand counts, and integers that it indexes with.

In there a required input that is left out, a negative `batch_dims` of GatherND, an `axis` beyond 31 bits or fewer
`num_outputs` than outputs end the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import onnx
import onnx.defs

from hetero.errors import ModelError
from hetero.model.tensors import MAX_RANK

_AXES = frozenset({"axis", "axes", "batch_axis", "batch_dims", "perm", "time_axis"})
_ANY = 2**31 - 1
"""The most inputs of a variadic operator."""
_Function: TypeAlias = tuple[str, str, str]
_Use: TypeAlias = tuple[str, str, int]
"""Where an integer ends up: operator, its attribute, the number of outputs of the node."""
_Uses: TypeAlias = dict[_Function, dict[str, set[_Use]]]
"""Function -> its parameter -> where the parameter's value ends up."""


def check_trusted(model: onnx.ModelProto, versions: Mapping[str, int]) -> None:
    """Check the nodes of the graph, of its bodies and of the functions, with the values that calls hand to functions.

    `versions`: name -> opset of nodes that have one of their own. Domains must be spelled as onnx spells them.
    Raises: ModelError naming the node and the operand or attribute.
    """
    uses = _parameters(model.functions)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    for node in _nodes(model.graph.node):
        _check_operands(node, versions.get(node.name, opsets.get(node.domain)), uses)
        _check_integers(node, uses)
    for function in model.functions:
        own = opsets | {entry.domain: entry.version for entry in function.opset_import}
        for node in _nodes(function.node):
            _check_operands(node, own.get(node.domain), uses)
            _check_integers(node, uses)
        for default in function.attribute_proto:
            for use in uses[_key(function)].get(default.name, ()):
                _refuse(_fault(use, _values(default)), function.name, function.name, default.name)


def _check_operands(node: onnx.NodeProto, version: int | None, uses: _Uses) -> None:
    if version is None or (node.domain, node.op_type, node.overload) in uses:
        return
    known = _inputs(node.domain, node.op_type, version)
    if known is None:
        return
    least, most, required = known
    given = len(node.input)
    if not least <= given <= most:
        bounds = f"{least}" if least == most else f"{least} to {most}" if most < _ANY else f"{least} or more"
        raise ModelError(
            f"takes {bounds} inputs in opset {version}, has {given}", node=node.name or None, op=node.op_type
        )
    for index, name in enumerate(node.input):
        operand = required[min(index, len(required) - 1)] if not name and required else None
        if operand is not None:
            raise ModelError(
                f"input {index} ({operand}) is required but left out",
                node=node.name or None,
                op=node.op_type,
                operand=operand,
            )


@lru_cache(maxsize=4096)
def _inputs(domain: str, op_type: str, version: int) -> tuple[int, int, tuple[str | None, ...]] | None:
    """Fewest and most inputs of the operator; of each, its name where it must be present (the last may repeat)."""
    if not onnx.defs.has(op_type, version, domain):
        return None
    schema = onnx.defs.get_schema(op_type, version, domain)
    if schema.deprecated:
        return None
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    required = tuple(None if p.option == optional else str(p.name) for p in schema.inputs)
    return schema.min_input, schema.max_input, required


def _check_integers(node: onnx.NodeProto, uses: _Uses) -> None:
    called = uses.get((node.domain, node.op_type, node.overload))
    for attribute in node.attribute:
        if attribute.ref_attr_name or attribute.type not in (
            onnx.AttributeProto.INT,
            onnx.AttributeProto.INTS,
        ):
            continue
        places: Iterable[_Use] = (
            ((node.op_type, attribute.name, len(node.output)),)
            if called is None
            else called.get(attribute.name, ())
        )
        for use in places:
            _refuse(_fault(use, _values(attribute)), node.name, node.op_type, attribute.name)


def _fault(use: _Use, values: Sequence[int]) -> str | None:
    op_type, name, n_outputs = use
    if name in _AXES:
        low = 0 if name == "batch_dims" and op_type == "GatherND" else -MAX_RANK
        wrong = next((v for v in values if not low <= v <= MAX_RANK), None)
        return (
            None if wrong is None else f"{wrong} is not from {low} to {MAX_RANK}, the most axes a tensor has"
        )
    if name == "num_outputs" and op_type == "Split" and list(values) != [n_outputs]:
        return f"{list(values)} is not the number of outputs, {n_outputs}"
    return None


def _refuse(fault: str | None, node: str, op_type: str, attribute: str) -> None:
    if fault is not None:
        raise ModelError(
            f"attribute {attribute!r}: {fault}", node=node or None, op=op_type, operand=attribute
        )


def _parameters(functions: Sequence[onnx.FunctionProto]) -> _Uses:
    """The functions' parameters that end up, directly or through further calls, where a range is checked."""
    uses: _Uses = {_key(function): {} for function in functions}
    grew = True
    while grew:  # once per level of calls, and once more
        grew = False
        for function in functions:
            mine = uses[_key(function)]
            for node in _nodes(function.node):
                inner = uses.get((node.domain, node.op_type, node.overload))
                for attribute in node.attribute:
                    if not attribute.ref_attr_name:
                        continue
                    found = (
                        {(node.op_type, attribute.name, len(node.output))}
                        if inner is None
                        else inner.get(attribute.name, set())
                    )
                    known = mine.setdefault(attribute.ref_attr_name, set())
                    grew |= not found <= known
                    known |= found
    return uses


def _key(function: onnx.FunctionProto) -> _Function:
    return function.domain, function.name, function.overload


def _values(attribute: onnx.AttributeProto) -> Sequence[int]:
    return [attribute.i] if attribute.type == onnx.AttributeProto.INT else list(attribute.ints)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """These nodes and those of the bodies inside them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g.node)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for body in attribute.graphs:
                    yield from _nodes(body.node)
