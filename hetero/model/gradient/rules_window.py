"""Derivatives of convolutions and pools."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.gradient.emit import Emitter, attribute, operand, rank_of
from hetero.model.gradient.rule import Grads, first, rule
from hetero.model.source import op_id


class _Window:
    """A convolution's attributes, as constants and as what follows from the operands' shapes."""

    def __init__(self, e: Emitter, node: ir.Node, spatial: int) -> None:
        self.e = e
        self.spatial = spatial
        self.strides = list(attribute(node, "strides") or [1] * spatial)
        self.dilations = list(attribute(node, "dilations") or [1] * spatial)
        self.group = attribute(node, "group", 1)
        self.axes = e.ints(*range(2, 2 + spatial))
        self.mode = attribute(node, "auto_pad", "NOTSET") or "NOTSET"
        given = list(attribute(node, "pads") or [0] * 2 * spatial)
        self.pads = given if self.mode == "NOTSET" else [0] * 2 * spatial

    def extents(self, value: ir.Value) -> ir.Value:
        """The spatial extents."""
        return self.e.op("Shape", value, start=2)

    def begins(self, x: ir.Value, kernel: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Pads in front and behind, where `kernel` are the window's extents, and x and y lie before and behind it."""
        e, n = self.e, self.spatial
        if not self.mode.startswith("SAME"):
            return e.ints(*self.pads[:n]), e.ints(*self.pads[n:])
        one = e.ints(1)
        reach = e.op("Add", e.op("Mul", e.op("Sub", kernel, one), e.ints(*self.dilations)), one)
        covered = e.op("Add", e.op("Mul", e.op("Sub", self.extents(y), one), e.ints(*self.strides)), reach)
        total = e.op("Max", e.op("Sub", covered, self.extents(x)), e.ints(0))
        small = e.op("Div", total, e.ints(2))
        large = e.op("Sub", total, small)
        return (small, large) if self.mode == "SAME_UPPER" else (large, small)

    def by_input(self, x: ir.Value, w: ir.Value, kernel: ir.Value, dy: ir.Value) -> ir.Value:
        """By x. The transposed convolution without pads gives every position that a window saw; rows past the last
        window saw none."""
        e = self.e
        full = e.op("ConvTranspose", dy, w, strides=self.strides, dilations=self.dilations, group=self.group)
        ends = [0] * (4 + self.spatial) + [s - 1 for s in self.strides]
        if any(ends):
            full = e.op("Pad", full, e.ints(*ends))
        starts, _ = self.begins(x, kernel, dy)
        return e.op("Slice", full, starts, e.op("Add", starts, self.extents(x)), self.axes)

    def by_weight(self, x: ir.Value, w: ir.Value, dy: ir.Value) -> ir.Value:
        """By w: x convolved with dy, the examples of each group in the place of its channels."""
        e, n = self.e, self.spatial
        front, behind = self.begins(x, self.extents(w), dy)
        nothing = e.ints(0, 0)
        if any(self.pads) or self.mode.startswith("SAME"):
            x = e.op("Pad", x, e.op("Concat", nothing, front, nothing, behind, axis=0))
        if self.group > 1:  # (N, G·c, …) to (c, G·N, …)
            parts = e.op("Concat", e.ints(0, self.group, -1), self.extents(x), axis=0)
            order = [2, 1, 0, *range(3, 3 + n)]
            split = e.op("Transpose", e.op("Reshape", x, parts), perm=order)
            shape = e.op("Concat", e.op("Shape", split, end=1), e.ints(-1), self.extents(x), axis=0)
            lhs = e.op("Reshape", split, shape)
        else:
            lhs = e.op("Transpose", x, perm=[1, 0, *range(2, 2 + n)])
        rhs = e.op("Transpose", dy, perm=[1, 0, *range(2, 2 + n)])
        # every stride is a dilation of the result, and the other way around
        found = e.op("Conv", lhs, rhs, strides=self.dilations, dilations=self.strides, group=self.group)
        found = e.op("Transpose", found, perm=[1, 0, *range(2, 2 + n)])
        return e.op("Slice", found, e.ints(*[0] * n), self.extents(w), self.axes)


def _operands(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    return x, w


def _bias(e: Emitter, node: ir.Node, dy: ir.Value, spatial: int) -> list[ir.Value]:
    if operand(node, 2) is None:
        return []
    return [e.op("ReduceSum", dy, e.ints(0, *range(2, 2 + spatial)), keepdims=0)]


@rule("Conv")
def conv(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    x, w = _operands(node)
    window = _Window(e, node, rank_of(node, x) - 2)
    dy = first(grads)
    by_x = window.by_input(x, w, window.extents(w), dy)
    return [by_x, window.by_weight(x, w, dy), *_bias(e, node, dy, window.spatial)]


@rule("ConvTranspose")
def conv_transpose(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """The convolution that it is the transpose of takes the gradient's place to x's."""
    x, w = _operands(node)
    window = _Window(e, node, rank_of(node, x) - 2)
    if window.mode.startswith("SAME") or attribute(node, "output_shape") is not None:
        reason = "no derivative of a ConvTranspose whose pads follow from shapes"
        raise ModelError(reason, node=node.name, op=op_id(node))
    dy, n = first(grads), window.spatial
    by_x = e.op(
        "Conv",
        dy,
        w,
        strides=window.strides,
        dilations=window.dilations,
        group=window.group,
        pads=window.pads,
    )
    return [by_x, window.by_weight(dy, w, x), *_bias(e, node, dy, n)]


@rule("MaxPool")
def max_pool(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """To the element that each window chose."""
    x = node.inputs[0]
    assert x is not None
    if grads[0] is None:
        return [None]
    again = ir.Node("", "MaxPool", [x], list(node.attributes.values()), version=node.version, num_outputs=2)
    places = e.add(again)[1]
    if attribute(node, "storage_order", 0):
        raise ModelError("no derivative of a MaxPool that counts by columns", node=node.name, op=op_id(node))
    return [e.reshape_like(e.scatter_back(x, places, grads[0]), x)]


@rule("AveragePool")
def average_pool(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """The convolution of each plane with a kernel of equal weights."""
    x = node.inputs[0]
    assert x is not None
    kernel = list(attribute(node, "kernel_shape"))
    if attribute(node, "ceil_mode", 0):
        raise ModelError("no derivative of an AveragePool with ceil_mode", node=node.name, op=op_id(node))
    window = _Window(e, node, len(kernel))
    ones = e.op("Expand", e.scalar(1, x), e.ints(1, 1, *kernel))
    plane = e.op("Reshape", x, e.op("Concat", e.ints(-1, 1), window.extents(x), axis=0))
    if attribute(node, "count_include_pad", 0):
        count = e.scalar(float(np.prod(kernel)), x)
    else:
        shared = {"strides": window.strides, "dilations": window.dilations}
        pads = {"pads": window.pads} if window.mode == "NOTSET" else {"auto_pad": window.mode}
        whole = e.op("Expand", e.scalar(1, x), e.op("Concat", e.ints(1, 1), window.extents(x), axis=0))
        count = e.op("Conv", whole, ones, **shared, **pads)
    share = e.op("Div", first(grads), count)
    share = e.op("Reshape", share, e.op("Concat", e.ints(-1, 1), window.extents(share), axis=0))
    return [e.reshape_like(window.by_input(plane, ones, e.ints(*kernel), share), x)]


@rule("GlobalAveragePool")
def global_average(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    x = node.inputs[0]
    assert x is not None
    count = e.op("ReduceProd", e.op("Shape", x, start=2), keepdims=0)
    share = e.op("Div", first(grads), e.op("CastLike", count, first(grads)))
    return [e.op("Expand", share, e.op("Shape", x))]
