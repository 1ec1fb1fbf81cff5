"""Derivatives of operators that move elements: each gradient goes back to where its element came from."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.gradient.emit import Emitter, attribute, operand
from hetero.model.gradient.rule import Grads, first, rule
from hetero.model.source import op_id


def _x(node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    return x


@rule("Reshape", "Squeeze", "Unsqueeze", "Flatten")
def reshaped(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    return [e.reshape_like(first(grads), _x(node))]


@rule("Transpose")
def transpose(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    perm = attribute(node, "perm")
    if perm is None:
        return [e.op("Transpose", first(grads))]
    return [e.op("Transpose", first(grads), perm=[int(k) for k in np.argsort(perm)])]


@rule("Expand")
def expand(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    return [e.unbroadcast(first(grads), node.outputs[0], _x(node))]


@rule("Concat")
def concat(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    axis = attribute(node, "axis", 1)
    at = e.ints(axis)
    sizes = [e.op("Gather", e.op("Shape", x), at) for x in node.inputs if x is not None]
    if len(sizes) == 1:
        return grads
    return e.ops("Split", first(grads), e.op("Concat", *sizes, axis=0), outputs=len(sizes), axis=axis)


@rule("Split")
def split(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    parts = [e.full(y, 0) if g is None else g for y, g in zip(node.outputs, grads, strict=True)]
    return [e.op("Concat", *parts, axis=attribute(node, "axis", 0))]


@rule("Slice", "Gather", "GatherElements", "GatherND", "Tile", "DepthToSpace", "SpaceToDepth", "Compress",
      "ReverseSequence")  # fmt: skip
def selection(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """What the operator does to the elements' numbers says where each gradient belongs."""
    x = _x(node)
    return [e.reshape_like(e.scatter_back(x, e.again(node, e.places(x)), first(grads)), x)]


@rule("Pad")
def pad(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """As `selection`; the elements that were put in share one more place, behind the others."""
    x = _x(node)
    if e.version(node) < 11:
        raise ModelError("no derivative of Pad before opset 11", node=node.name, op=op_id(node))
    places = e.places(x)
    size = e.op("Size", x)
    rest = [v for v in node.inputs[3:] if v is not None]
    places = e.op("Pad", places, operand(node, 1), size, *rest, mode=attribute(node, "mode", "constant"))
    found = e.scatter_back(x, places, first(grads), extra=1)
    count = e.op("Reshape", size, e.ints(-1))
    inside = e.op("Slice", found, e.ints(0), count, e.ints(0))
    outside = None
    if (fill := operand(node, 2)) is not None:
        outside = e.reshape_like(e.op("Gather", found, count, axis=0), fill)
    return [e.reshape_like(inside, x), None, outside]


@rule("ScatterElements", "ScatterND", "Scatter")
def scatter(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """What was overwritten gets nothing; what was written gets the gradient of its place."""
    if attribute(node, "reduction", "none") not in ("none", b"none"):
        raise ModelError("no derivative of a scatter that reduces", node=node.name, op=op_id(node))
    _, places, updates = node.inputs
    assert updates is not None
    zeros = e.full(updates, 0)
    if node.op_type == "ScatterND":
        return [e.op("ScatterND", first(grads), places, zeros), None, e.op("GatherND", first(grads), places)]
    axis = attribute(node, "axis", 0)
    rest = e.op("ScatterElements", first(grads), places, zeros, axis=axis)
    return [rest, None, e.op("GatherElements", first(grads), places, axis=axis)]


@rule("Trilu")
def trilu(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    return [e.again(node, first(grads))]


@rule("Resize")
def resize(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """Of nearest neighbours, which is a selection."""
    if attribute(node, "mode", "nearest") != "nearest":
        raise ModelError("no derivative of a Resize that interpolates", node=node.name, op=op_id(node))
    return selection(e, node, grads)
