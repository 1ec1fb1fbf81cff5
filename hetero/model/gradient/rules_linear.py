"""Derivatives of products: MatMul, Gemm, Einsum."""

from __future__ import annotations

import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.gradient.emit import Emitter, attribute, operand, rank_of
from hetero.model.gradient.rule import Grads, first, rule
from hetero.model.source import op_id


@rule("MatMul")
def matmul(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """A vector counts as a row on the left, as a column on the right."""
    a, b = node.inputs
    assert a is not None
    assert b is not None
    rank_a, rank_b, dy = rank_of(node, a), rank_of(node, b), first(grads)
    left = e.op("Unsqueeze", a, e.ints(0)) if rank_a == 1 else a
    right = e.op("Unsqueeze", b, e.ints(1)) if rank_b == 1 else b
    if rank_b == 1:
        dy = e.op("Unsqueeze", dy, e.ints(-1))
    if rank_a == 1:
        dy = e.op("Unsqueeze", dy, e.ints(-2))
    by_a = e.op("MatMul", dy, _swapped(e, right, max(rank_b, 2)))
    by_b = e.op("MatMul", _swapped(e, left, max(rank_a, 2)), dy)
    if max(rank_a, rank_b) > 2 and not _one_stack(a, b):
        by_a, by_b = e.unbroadcast(by_a, None, left), e.unbroadcast(by_b, None, right)
    return [
        e.reshape_like(by_a, a) if rank_a == 1 else by_a,
        e.reshape_like(by_b, b) if rank_b == 1 else by_b,
    ]


def _one_stack(a: ir.Value, b: ir.Value) -> bool:
    """Whether both are stacks of the same declared extents, so that none was broadcast."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return False
    pairs = zip(a.shape.dims[:-2], b.shape.dims[:-2], strict=True)
    return all(m == n and (isinstance(m, int) or m.value is not None) for m, n in pairs)


def _swapped(e: Emitter, value: ir.Value, rank: int) -> ir.Value:
    return e.op("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])


@rule("Gemm")
def gemm(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    a, b, c = node.inputs[0], node.inputs[1], operand(node, 2)
    y, dy = node.outputs[0], first(grads)
    trans_a, trans_b = attribute(node, "transA", 0), attribute(node, "transB", 0)
    scaled = e.times(dy, attribute(node, "alpha", 1.0), y)
    by_a = (
        e.op("Gemm", b, scaled, transA=trans_b, transB=1)
        if trans_a
        else e.op("Gemm", scaled, b, transA=0, transB=1 - trans_b)
    )
    by_b = (
        e.op("Gemm", scaled, a, transA=1, transB=trans_a)
        if trans_b
        else e.op("Gemm", a, scaled, transA=1 - trans_a, transB=0)
    )
    if c is None:
        return [by_a, by_b]
    return [by_a, by_b, e.unbroadcast(e.times(dy, attribute(node, "beta", 1.0), y), y, c)]


@rule("Einsum")
def einsum(e: Emitter, node: ir.Node, grads: Grads) -> Grads:
    """By one operand: the same sum with the result in its place."""
    text = attribute(node, "equation").replace(" ", "")
    terms, _, result = text.partition("->")
    operands = terms.split(",")
    if "->" not in text:
        letters = terms.replace(",", "")
        result = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    found = []
    for k, own in enumerate(operands):
        others = [(t, v) for j, (t, v) in enumerate(zip(operands, node.inputs, strict=True)) if j != k]
        there = {*result, *"".join(t for t, _ in others)}
        if "." in text or len(set(own)) != len(own):
            raise ModelError(
                "no derivative of an Einsum with ... or diagonals", node=node.name, op=op_id(node)
            )
        x = node.inputs[k]
        assert x is not None
        left = "".join(c for c in own if c in there)
        grad = e.op(
            "Einsum",
            first(grads),
            *[v for _, v in others],
            equation=f"{','.join([result, *[t for t, _ in others]])}->{left}",
        )
        if left != own:  # what is summed over right away has one gradient for all
            axes = e.ints(*[i for i, c in enumerate(own) if c not in there])
            grad = e.op("Expand", e.op("Unsqueeze", grad, axes), e.op("Shape", x))
        found.append(grad)
    return found
