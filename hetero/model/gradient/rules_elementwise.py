"""Derivatives of elementwise operators; broadcasting is undone by sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.gradient.emit import Emitter, attribute, is_float, operand
from hetero.model.gradient.rule import RULES, Grads, first, rule
from hetero.model.source import op_id

Slope = Callable[[Emitter, ir.Node, ir.Value, ir.Value], ir.Value]
"""(emitter, node, x, y) -> the derivative of y by x."""


def _one(e: Emitter, x: ir.Value) -> ir.Value:
    return e.scalar(1, x)


def _square_root_of(e: Emitter, x: ir.Value, sign: float, shift: float) -> ir.Value:
    """sqrt(shift + sign · x²)"""
    return e.op("Sqrt", e.op("Add", e.times(e.op("Mul", x, x), sign, x), e.scalar(shift, x)))


def _bell(e: Emitter, x: ir.Value, scale: float, factor: float) -> ir.Value:
    """factor · exp(scale · x²)"""
    return e.times(e.op("Exp", e.times(e.op("Mul", x, x), scale, x)), factor, x)


def _elu(e: Emitter, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    above = e.op("Greater", x, e.scalar(0, x))
    return e.op("Where", above, _one(e, x), e.op("Add", y, e.scalar(attribute(node, "alpha", 1.0), x)))


def _selu(e: Emitter, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    alpha = attribute(node, "alpha", 1.67326319217681884765625)
    gamma = attribute(node, "gamma", 1.05070102214813232421875)
    above = e.op("Greater", x, e.scalar(0, x))
    return e.op("Where", above, e.scalar(gamma, x), e.op("Add", y, e.scalar(alpha * gamma, x)))


def _leaky(e: Emitter, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    below = e.op("Less", x, e.scalar(0, x))
    return e.op("Where", below, e.scalar(attribute(node, "alpha", 0.01), x), _one(e, x))


def _relu(e: Emitter, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    return e.where(e.op("Greater", x, e.scalar(0, x)), _one(e, x), x)


def _hard_sigmoid(e: Emitter, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    inside = e.op("And", e.op("Greater", y, e.scalar(0, x)), e.op("Less", y, e.scalar(1, x)))
    return e.where(inside, e.scalar(attribute(node, "alpha", 0.2), x), x)


def _softsign(e: Emitter, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    below = e.op("Add", e.op("Abs", x), _one(e, x))
    return e.op("Reciprocal", e.op("Mul", below, below))


def _gelu(e: Emitter, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    half = e.scalar(0.5, x)
    if attribute(node, "approximate", "none") == "tanh":
        root = math.sqrt(2 / math.pi)
        cubic = e.op("Add", e.mul(x, x, x, e.scalar(0.044715, x)), x)
        t = e.op("Tanh", e.times(cubic, root, x))
        inner = e.op("Add", e.mul(x, x, e.scalar(3 * 0.044715 * root, x)), e.scalar(root, x))
        slope = e.mul(x, half, e.op("Sub", _one(e, x), e.op("Mul", t, t)), inner)
        return e.op("Add", e.op("Mul", half, e.op("Add", t, _one(e, x))), slope)
    share = e.op("Mul", half, e.op("Add", e.op("Erf", e.times(x, math.sqrt(0.5), x)), _one(e, x)))
    return e.op("Add", share, e.op("Mul", x, _bell(e, x, -0.5, 1 / math.sqrt(2 * math.pi))))


def _hard_swish(e: Emitter, node: ir.Node, x: ir.Value, y: ir.Value) -> ir.Value:
    three = e.scalar(3, x)
    inner = e.op("Add", e.times(x, 1 / 3, x), e.scalar(0.5, x))
    slope = e.op("Where", e.op("Greater", x, e.op("Neg", three)), inner, e.scalar(0, x))
    return e.op("Where", e.op("Greater", x, three), _one(e, x), slope)


_SLOPES: dict[str, Slope] = {
    "Abs": lambda e, n, x, y: e.op("Sign", x),
    "Acos": lambda e, n, x, y: e.op("Neg", e.op("Reciprocal", _square_root_of(e, x, -1, 1))),
    "Acosh": lambda e, n, x, y: e.op("Reciprocal", _square_root_of(e, x, 1, -1)),
    "Asin": lambda e, n, x, y: e.op("Reciprocal", _square_root_of(e, x, -1, 1)),
    "Asinh": lambda e, n, x, y: e.op("Reciprocal", _square_root_of(e, x, 1, 1)),
    "Atan": lambda e, n, x, y: e.op("Reciprocal", e.op("Add", e.op("Mul", x, x), _one(e, x))),
    "Atanh": lambda e, n, x, y: e.op("Reciprocal", e.op("Sub", _one(e, x), e.op("Mul", x, x))),
    "Cos": lambda e, n, x, y: e.op("Neg", e.op("Sin", x)),
    "Cosh": lambda e, n, x, y: e.op("Sinh", x),
    "Elu": _elu,
    "Erf": lambda e, n, x, y: _bell(e, x, -1, 2 / math.sqrt(math.pi)),
    "Exp": lambda e, n, x, y: y,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky,
    "Log": lambda e, n, x, y: e.op("Reciprocal", x),
    "Neg": lambda e, n, x, y: e.scalar(-1, x),
    "Reciprocal": lambda e, n, x, y: e.op("Neg", e.op("Mul", y, y)),
    "Relu": _relu,
    "Selu": _selu,
    "Sigmoid": lambda e, n, x, y: e.op("Mul", y, e.op("Sub", _one(e, x), y)),
    "Sin": lambda e, n, x, y: e.op("Cos", x),
    "Sinh": lambda e, n, x, y: e.op("Cosh", x),
    "Softplus": lambda e, n, x, y: e.op("Sigmoid", x),
    "Softsign": _softsign,
    "Sqrt": lambda e, n, x, y: e.op("Reciprocal", e.times(y, 2, x)),
    "Tan": lambda e, n, x, y: e.op("Add", e.op("Mul", y, y), _one(e, x)),
    "Tanh": lambda e, n, x, y: e.op("Sub", _one(e, x), e.op("Mul", y, y)),
}


def _chained(slope: Slope) -> Callable[[Emitter, ir.Node, Grads], Grads]:
    def derivative(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
        x = node.inputs[0]
        assert x is not None
        return [e.op("Mul", first(grads), slope(e, node, x, node.outputs[0]))]

    return derivative


RULES.update({op_type: _chained(slope) for op_type, slope in _SLOPES.items()})


def _pair(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
    a, b = node.inputs
    assert a is not None
    assert b is not None
    return a, b, node.outputs[0]


@rule("Identity")
def identity(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    return grads


@rule("Add", "Sub")
def add(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    a, b, y = _pair(node)
    right = first(grads) if node.op_type == "Add" else e.op("Neg", first(grads))
    return [e.unbroadcast(first(grads), y, a), e.unbroadcast(right, y, b)]


@rule("Mul")
def mul(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    a, b, y = _pair(node)
    dy = first(grads)
    return [e.unbroadcast(e.op("Mul", dy, b), y, a), e.unbroadcast(e.op("Mul", dy, a), y, b)]


@rule("Div")
def div(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    a, b, y = _pair(node)
    above = e.op("Div", first(grads), b)
    return [e.unbroadcast(above, y, a), e.unbroadcast(e.op("Neg", e.op("Mul", above, y)), y, b)]


@rule("Pow")
def power(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """By the base b·x^(b-1), 0 where b is 0; by the exponent y·log(x), 0 where x is not positive."""
    x, exponent, y = _pair(node)
    dy = first(grads)
    b = exponent if exponent.dtype == x.dtype else e.op("CastLike", exponent, x)
    slope = e.op("Mul", b, e.op("Pow", x, e.op("Sub", b, e.scalar(1, x))))
    slope = e.op("Where", e.op("Equal", b, e.scalar(0, x)), e.scalar(0, x), slope)
    left = e.unbroadcast(e.op("Mul", dy, slope), y, x)
    if not is_float(exponent):
        return [left]
    above = e.op("Greater", x, e.scalar(0, x))
    log = e.op("Log", e.op("Where", above, x, e.scalar(1, x)))
    return [left, e.unbroadcast(e.mul(dy, y, log), y, exponent)]


@rule("Sum", "Mean")
def total(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    y = node.outputs[0]
    part = e.times(first(grads), 1 / len(node.inputs) if node.op_type == "Mean" else 1, y)
    return [None if x is None else e.unbroadcast(part, y, x) for x in node.inputs]


@rule("Max", "Min")
def extreme(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """To those that are the result, in equal parts."""
    y = node.outputs[0]
    present = [x for x in node.inputs if x is not None]
    hits = [e.op("Equal", x, y) for x in present]
    counts = [e.op("Where", hit, e.scalar(1, y), e.scalar(0, y)) for hit in hits]
    part = e.op("Div", first(grads), e.op("Sum", *counts))
    return [e.unbroadcast(e.where(hit, part, y), y, x) for x, hit in zip(present, hits, strict=True)]


@rule("Where")
def where(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    condition, a, b = node.inputs
    assert condition is not None
    assert a is not None
    assert b is not None
    y, dy = node.outputs[0], first(grads)
    other = e.op("Where", condition, e.scalar(0, y), dy)
    return [None, e.unbroadcast(e.where(condition, dy, y), y, a), e.unbroadcast(other, y, b)]


@rule("Clip")
def clip(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """To x between the bounds, to a bound where x is beyond it."""
    x, dy = node.inputs[0], first(grads)
    assert x is not None
    found: list[ir.Value | None] = [dy, None, None]
    for k, (name, beyond) in enumerate((("min", "Less"), ("max", "Greater")), 1):
        bound = operand(node, k)
        limit = attribute(node, name)
        if bound is None and limit is None:
            continue
        out = e.op(beyond, x, bound if bound is not None else e.scalar(limit, x))
        grad = found[0]
        assert grad is not None
        found[0] = e.op("Where", out, e.scalar(0, x), grad)
        if bound is not None:
            found[k] = e.unbroadcast(e.where(out, dy, x), x, bound)
    return found


@rule("PRelu")
def prelu(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    x, slope, y = _pair(node)
    below = e.op("Less", x, e.scalar(0, x))
    by_x = e.op("Mul", first(grads), e.op("Where", below, slope, e.scalar(1, x)))
    return [by_x, e.unbroadcast(e.op("Mul", first(grads), e.where(below, x, x)), y, slope)]


@rule("Cast", "CastLike")
def cast(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    x = node.inputs[0]
    assert x is not None
    if not is_float(x) or x.dtype is None:
        return [None]
    return [e.op("Cast", first(grads), to=int(x.dtype))]


@rule("Dropout")
def dropout(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    training: Any = operand(node, 2)
    if training is not None:
        raise ModelError("no derivative of Dropout that may be training", node=node.name, op=op_id(node))
    return [grads[0]]
