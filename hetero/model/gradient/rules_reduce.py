"""Derivatives of reductions, softmax and cumulative sums."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hetero.model.gradient.emit import Emitter, attribute, operand, rank_of
from hetero.model.gradient.rule import Grads, first, rule


def _axes(e: Emitter, node: ir.Node) -> ir.Value | None:
    """The axes that are reduced; None for all."""
    given = attribute(node, "axes")
    axes = operand(node, 1) if given is None else e.ints(*given)
    if axes is not None and axes.shape is not None and axes.shape == (0,):
        return None
    return axes


def kept(e: Emitter, node: ir.Node, value: ir.Value) -> ir.Value:
    """`value`, of the shape of the reduction's result, as if it had kept the axes."""
    x = node.inputs[0]
    assert x is not None
    if attribute(node, "keepdims", 1):
        return value
    shape = e.op("Shape", x)
    rank = e.op("Shape", shape)
    axes = _axes(e, node)
    if axes is None:
        ones = e.op("ConstantOfShape", rank, value=ir.tensor(np.ones(1, np.int64)))
        return e.op("Reshape", value, ones)
    front = e.op("Where", e.op("Less", axes, e.ints(0)), e.op("Add", axes, rank), axes)
    ones = e.op("ConstantOfShape", e.op("Shape", axes), value=ir.tensor(np.ones(1, np.int64)))
    return e.op("Reshape", value, e.op("ScatterElements", shape, front, ones, axis=0), allowzero=1)


def _is_noop(e: Emitter, node: ir.Node) -> bool:
    return bool(attribute(node, "noop_with_empty_axes", 0)) and _axes(e, node) is None


def _spread(e: Emitter, x: ir.Value, value: ir.Value) -> ir.Value:
    return e.op("Expand", value, e.op("Shape", x))


@rule("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
def reduction(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    dy, result = first(grads), y
    if not _is_noop(e, node):
        dy, result = kept(e, node, dy), kept(e, node, y)
    match node.op_type:
        case "ReduceSum":
            return [_spread(e, x, dy)]
        case "ReduceMean":
            count = e.op(
                "Div", e.op("Size", x), e.op("Max", e.op("Size", y), e.constant(np.array(1, np.int64)))
            )
            return [_spread(e, x, e.op("Div", dy, e.op("CastLike", count, dy)))]
        case "ReduceSumSquare":
            return [e.op("Mul", dy, e.times(x, 2, x))]
        case "ReduceL1":
            return [e.op("Mul", dy, e.op("Sign", x))]
        case "ReduceL2":
            return [e.op("Mul", dy, e.op("Div", x, result))]
        case "ReduceLogSum":
            return [_spread(e, x, e.op("Mul", dy, e.op("Exp", e.op("Neg", result))))]
        case _:
            return [e.op("Mul", dy, e.op("Exp", e.op("Sub", x, result)))]


@rule("ReduceMax", "ReduceMin")
def extreme(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """To the elements that are the result, in equal parts."""
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    if _is_noop(e, node):
        return [first(grads)]
    hits = e.op("Equal", x, kept(e, node, y))
    ones = e.where(hits, e.scalar(1, x), x)
    axes = _axes(e, node)
    count = (
        e.op("ReduceSum", ones, axes, keepdims=1) if axes is not None else e.op("ReduceSum", ones, keepdims=1)
    )
    return [e.where(hits, e.op("Div", kept(e, node, first(grads)), count), x)]


@rule("Softmax", "LogSoftmax")
def softmax(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """Before version 13 all axes from `axis` on are one."""
    y, dy = node.outputs[0], first(grads)
    if e.version(node) < 13:
        rank = rank_of(node, node.inputs[0])
        start = attribute(node, "axis", 1)
        axes = e.ints(*range(start + rank if start < 0 else start, rank))
    else:
        axes = e.ints(attribute(node, "axis", -1))
    if node.op_type == "LogSoftmax":
        return [e.op("Sub", dy, e.op("Mul", e.op("Exp", y), e.op("ReduceSum", dy, axes, keepdims=1)))]
    inner = e.op("ReduceSum", e.op("Mul", dy, y), axes, keepdims=1)
    return [e.op("Mul", y, e.op("Sub", dy, inner))]


@rule("CumSum")
def cumulative(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    return [e.again(node, first(grads), reverse=1 - attribute(node, "reverse", 0))]
