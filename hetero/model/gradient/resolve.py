"""What a Gradient names becomes what it reads: names in attributes would not survive renaming and cleaning up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.source import bodies

DOMAIN = "ai.onnx.preview.training"
_RESOLVED = "__resolved"


@dataclass(frozen=True, slots=True)
class Request:
    """A resolved Gradient: the derivatives of `y` by `xs` where these, and `zs`, take the values given."""

    node: ir.Node
    values: tuple[ir.Value, ...]
    xs: tuple[ir.Value, ...]
    zs: tuple[ir.Value, ...]
    y: ir.Value


def is_gradient(node: ir.Node) -> bool:
    """Whether the node asks for derivatives."""
    return node.domain == DOMAIN and node.op_type == "Gradient"


def resolve_gradients(model: ir.Model) -> None:
    """Append to each Gradient's inputs the tensors that its attributes xs, zs and y name, in this order; those in
    bodies and functions included. A second call changes nothing.

    Raises: ModelError naming the node and the tensor for a name that is nowhere, or inputs that do not match the names.
    """
    parts: list[ir.Graph] = [model.graph, *(f.graph for f in model.functions.values())]
    for part in parts:
        if DOMAIN in model.opset_imports or DOMAIN in part.opset_imports:
            _resolve(part, {})


def _resolve(graph: ir.Graph, outer: dict[str, ir.Value]) -> None:
    known = dict(outer)
    known.update(_named(graph.inputs))
    known.update(_named(graph.initializers.values()))
    for node in graph:
        known.update(_named(node.outputs))
    for node in list(graph):
        for body in bodies(node):
            _resolve(body, known)
        if is_gradient(node) and _RESOLVED not in node.attributes:
            _append(node, known)


def _named(values: Iterable[ir.Value]) -> dict[str, ir.Value]:
    return {v.name: v for v in values if v.name}


def _append(node: ir.Node, known: dict[str, ir.Value]) -> None:
    names = [*_texts(node, "xs"), *_texts(node, "zs")]
    if len(node.inputs) != len(names) or any(v is None for v in node.inputs):
        raise _error(node, f"{len(node.inputs)} inputs are given for {len(names)} tensors in xs and zs")
    if len(node.outputs) > len(_texts(node, "xs")):
        raise _error(
            node, f"{len(node.outputs)} outputs are wanted for {len(_texts(node, 'xs'))} tensors in xs"
        )
    for name in (*names, *_texts(node, "y")):
        if name not in known:
            raise _error(node, f"it names a tensor that does not exist: {name!r}", name)
        node.resize_inputs(len(node.inputs) + 1)
        node.replace_input_with(len(node.inputs) - 1, known[name])
    node.attributes[_RESOLVED] = ir.AttrInt64(_RESOLVED, 1)


def _texts(node: ir.Node, attribute: str) -> tuple[str, ...]:
    found = node.attributes.get(attribute)
    if found is None and attribute == "zs":
        return ()
    if found is None or found.is_ref():
        raise _error(node, f"it has no attribute {attribute!r}", attribute)
    texts = found.value if isinstance(found.value, list | tuple) else (found.value,)
    return tuple(t.decode() if isinstance(t, bytes) else str(t) for t in texts)


def request_of(node: ir.Node) -> Request:
    """What a resolved Gradient asks for."""
    n_xs, n = len(_texts(node, "xs")), len(_texts(node, "xs")) + len(_texts(node, "zs"))
    read = tuple(v for v in node.inputs if v is not None)
    if len(read) != 2 * n + 1:
        raise _error(node, "a tensor that it reads was left out by the caller of its function")
    return Request(node, read[:n], read[n : n + n_xs], read[n + n_xs : 2 * n], read[-1])


def _error(node: ir.Node, message: str, operand: str | None = None) -> ModelError:
    return ModelError(message, node=node.name, op=f"{DOMAIN}::Gradient", operand=operand)
