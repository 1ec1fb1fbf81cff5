"""Derivatives of normalisations."""

from __future__ import annotations

import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.gradient.emit import Emitter, attribute, operand, rank_of
from hetero.model.gradient.rule import Grads, first, rule
from hetero.model.source import op_id


def _mean(e: Emitter, value: ir.Value, axes: ir.Value) -> ir.Value:
    return e.op("ReduceMean", value, axes, keepdims=1)


def _normalised(
    e: Emitter, node: ir.Node, axes: ir.Value, scale: ir.Value, dy: ir.Value, *, centred: bool
) -> tuple[ir.Value, ir.Value]:
    """The gradient by x, where each slice over `axes` is divided by its deviation (`centred`: from its mean, else from
    0) and multiplied by `scale`; and what x was normalised to."""
    x = node.inputs[0]
    assert x is not None
    distance = e.op("Sub", x, _mean(e, x, axes)) if centred else x
    variance = _mean(e, e.op("Mul", distance, distance), axes)
    epsilon = e.scalar(attribute(node, "epsilon", 1e-5), x)
    inverse = e.op("Reciprocal", e.op("Sqrt", e.op("Add", variance, epsilon)))
    unit = e.op("Mul", distance, inverse)
    flow = e.op("Mul", dy, scale)
    rest = e.op("Sub", flow, e.op("Mul", unit, _mean(e, e.op("Mul", flow, unit), axes)))
    if centred:
        rest = e.op("Sub", rest, _mean(e, flow, axes))
    return e.op("Mul", inverse, rest), unit


@rule("LayerNormalization", "RMSNormalization")
def over_last_axes(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    if grads[0] is None or any(g is not None for g in grads[1:]):
        raise ModelError("no derivative of the statistics it puts out", node=node.name, op=op_id(node))
    x, scale, bias = node.inputs[0], node.inputs[1], operand(node, 2)
    assert scale is not None
    rank, axis, dy = rank_of(node, x), attribute(node, "axis", -1), grads[0]
    axes = e.ints(*range(axis + rank if axis < 0 else axis, rank))
    by_x, unit = _normalised(e, node, axes, scale, dy, centred=node.op_type == "LayerNormalization")
    y = node.outputs[0]
    by_scale = e.unbroadcast(e.op("Mul", dy, unit), y, scale)
    return [by_x, by_scale] if bias is None else [by_x, by_scale, e.unbroadcast(dy, y, bias)]


@rule("InstanceNormalization")
def over_space(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    x, scale, _ = node.inputs
    rank, dy = rank_of(node, x), first(grads)
    assert scale is not None
    axes = e.ints(*range(2, rank))
    column = e.op("Unsqueeze", scale, e.ints(*range(1, rank - 1)))
    by_x, unit = _normalised(e, node, axes, column, dy, centred=True)
    return [by_x, _by_channel(e, e.op("Mul", dy, unit), rank), _by_channel(e, dy, rank)]


def _by_channel(e: Emitter, value: ir.Value, rank: int) -> ir.Value:
    return e.op("ReduceSum", value, e.ints(0, *range(2, rank)), keepdims=0)


@rule("BatchNormalization")
def batch_norm(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """With the statistics given; by these too."""
    if attribute(node, "training_mode", 0) or len([y for y in node.outputs if y.name]) > 1:
        raise ModelError("no derivative of BatchNormalization in training", node=node.name, op=op_id(node))
    x, scale, _, mean, variance = node.inputs
    rank, dy = rank_of(node, x), first(grads)
    assert variance is not None
    column = e.ints(*range(1, rank - 1))

    def aligned(value: ir.Value | None) -> ir.Value:
        assert value is not None
        return e.op("Unsqueeze", value, column) if rank > 2 else value

    epsilon = e.scalar(attribute(node, "epsilon", 1e-5), variance)
    deviation = e.op("Sqrt", e.op("Add", variance, epsilon))
    factor = e.op("Div", scale, deviation)
    centred = e.op("Div", e.op("Sub", x, aligned(mean)), aligned(deviation))
    by_scale, by_bias = _by_channel(e, e.op("Mul", dy, centred), rank), _by_channel(e, dy, rank)
    by_variance = e.op("Div", e.mul(by_scale, factor), e.times(deviation, -2, variance))
    return [
        e.op("Mul", dy, aligned(factor)),
        by_scale,
        by_bias,
        e.op("Neg", e.op("Mul", by_bias, factor)),
        by_variance,
    ]
