"""Einsum: equations of two operands become one matrix product, all others go to the array module's einsum."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.broadcasting import NUMBERS, elements, one_dtype
from hetero.kernels.fused import in_turn
from hetero.kernels.gemm import bind_matmul
from hetero.kernels.operands import fail, host_reason
from hetero.kernels.quiet import Quiet
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import Spec, TensorSpec

Label = str
"""A letter of the equation, or one of the digits that stand for the axes of the ellipsis."""
_LETTERS = frozenset(string.ascii_letters)


@dataclass(frozen=True, slots=True)
class Equation:
    """Labels of each operand's axes and of the output's, and the extent of each label."""

    operands: tuple[tuple[Label, ...], ...]
    output: tuple[Label, ...]
    extents: dict[Label, int]


def parse(op: Operation, equation: str, shapes: Sequence[tuple[int, ...]]) -> Equation:
    """The equation over operands of these shapes. Raises: KernelError where the two do not fit together."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        fail(op, f"{len(terms)} terms for {len(shapes)} operands in {equation!r}", "equation")
    gaps = []
    for term, shape in zip(terms, shapes, strict=True):
        letters = term.replace("...", "", 1)
        gap = len(shape) - len(letters)
        if not _LETTERS.issuperset(letters) or gap < 0 or (gap and "..." not in term):
            fail(op, f"{term!r} does not describe an operand of shape {list(shape)}", "equation")
        gaps.append(gap if "..." in term else 0)
    dots = tuple(f"{i}" for i in range(max(gaps, default=0)))
    if len(dots) > 9:
        raise UnsupportedError("an ellipsis of more than nine axes", op=op.id, node=op.name)
    operands = [_labels(term, dots[len(dots) - gap :]) for term, gap in zip(terms, gaps, strict=True)]
    extents: dict[Label, int] = {}
    for labels, shape in zip(operands, shapes, strict=True):
        for label, extent in zip(labels, shape, strict=True):
            known = extents.setdefault(label, extent)
            if known != extent and 1 not in (known, extent):
                fail(op, f"{label!r} is {known} and {extent} in {equation!r}", "equation")
            extents[label] = extent if known == 1 else known
    if arrow:
        letters = right.replace("...", "", 1)
        if (
            not _LETTERS.issuperset(letters)
            or not set(letters) <= set(extents)
            or len(set(letters)) < len(letters)
        ):
            fail(op, f"{right!r} is no output of {equation!r}", "equation")
        output = _labels(right, dots if "..." in right else ())
    else:
        count = Counter(label for labels in operands for label in labels)
        output = (*dots, *sorted(c for c in count if count[c] == 1 and c not in dots))
    return Equation(tuple(operands), output, extents)


def _labels(term: str, dots: tuple[Label, ...]) -> tuple[Label, ...]:
    before, ellipsis, after = term.partition("...")
    return (*before, *(dots if ellipsis else ()), *after)


@dataclass(frozen=True, slots=True)
class Product:
    """A two-operand equation as a matrix product: which labels are batch, rows, columns and summed.

    `swap` multiplies the second operand by the first, where that gives the output's order.
    """

    batch: tuple[Label, ...]
    rows: tuple[Label, ...]
    columns: tuple[Label, ...]
    summed: tuple[Label, ...]
    swap: bool


def as_product(equation: Equation, shapes: Sequence[tuple[int, ...]]) -> Product | None:
    """The equation as a product, or None where it is none."""
    if len(equation.operands) != 2:
        return None
    a, b = equation.operands
    for labels, shape in zip(equation.operands, shapes, strict=True):
        if len(set(labels)) != len(labels):
            return None
        if any(equation.extents[x] != d for x, d in zip(labels, shape, strict=True)):
            return None  # an extent of 1 that broadcasts
    batch = tuple(x for x in equation.output if x in a and x in b)
    rows = tuple(x for x in equation.output if x in a and x not in b)
    columns = tuple(x for x in equation.output if x in b and x not in a)
    summed = tuple(x for x in a if x in b and x not in equation.output)
    if {*a, *b} - {*batch, *rows, *columns, *summed}:
        return None  # a label to be summed in one operand alone
    swap = equation.output == (*batch, *columns, *rows) and bool(rows and columns)
    return Product(batch, rows, columns, summed, swap)


@kernel("Einsum", versions=(12, 28), dispatch=Dispatch.LIBRARY)
def einsum(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Operands of one dtype -> the equation's output in it; half precision adds in float32."""
    operands = [tensor(op, specs, i) for i in range(len(specs))]
    dtype = one_dtype(op, operands, NUMBERS)
    if dtype in NARROW:
        return widened(einsum, op, specs, xp)
    text = op.attr("equation", "")
    shapes = [s.shape for s in operands]
    equation = parse(op, text.decode() if isinstance(text, bytes) else text, shapes)
    output = TensorSpec(dtype, tuple(equation.extents[x] for x in equation.output))
    product = as_product(equation, shapes)
    if product is not None:
        return multiplied(equation, product, output, xp)
    letters = dict(zip(equation.extents, string.ascii_letters, strict=False))
    if len(letters) < len(equation.extents):
        raise UnsupportedError("more than 52 axes", op=op.id, node=op.name)
    terms = ["".join(letters[x] for x in labels) for labels in (*equation.operands, equation.output)]
    subscripts = f"{','.join(terms[:-1])}->{terms[-1]}"
    path: Any = False
    if len(operands) > 2:
        path = np.einsum_path(subscripts, *(np.broadcast_to(np.zeros((), dtype), s) for s in shapes))[0]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return Quiet(partial(xp.einsum, subscripts, *inputs, out=outputs[0], optimize=path))

    return computed((output,), bind, capture=host_reason(xp, "einsum allocates"))


def multiplied(equation: Equation, product: Product, output: TensorSpec, xp: Any) -> Compiled:
    """The product: operands transposed (and copied where an axis pair must be merged that does not lie so)."""
    a, b = equation.operands
    batch, rows, columns, summed = product.batch, product.rows, product.columns, product.summed

    def extent(labels: Sequence[Label]) -> tuple[int, ...]:
        return tuple(equation.extents[x] for x in labels)

    left = (*extent(batch), elements(extent(rows)), elements(extent(summed)))
    right = (*extent(batch), elements(extent(summed)), elements(extent(columns)))
    dtype = output.dtype
    natural = (*batch, *(columns + rows if product.swap else rows + columns))
    parts: list[Part] = [
        (left if len(rows) > 1 or len(summed) > 1 else (0,), dtype),
        (right if len(columns) > 1 or len(summed) > 1 else (0,), dtype),
        (extent(natural) if natural != equation.output else (0,), dtype),
    ]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        packed = carve(workspace, *parts)
        calls: list[Call] = []
        matrices = []
        for x, labels, order, shape, scratch in (
            (inputs[0], a, (*batch, *rows, *summed), left, packed[0]),
            (inputs[1], b, (*batch, *summed, *columns), right, packed[1]),
        ):
            turned = x.transpose([labels.index(label) for label in order])
            matrix = turned.reshape(shape)
            if x.size and not xp.may_share_memory(matrix, x):
                matrix = scratch
                calls.append(partial(scratch.reshape(turned.shape).__setitem__, ..., turned))
            matrices.append(matrix)
        out = outputs[0] if natural == equation.output else packed[2]
        m, n = left[-2], right[-1]
        if product.swap:
            first, second = (x.swapaxes(-1, -2) for x in reversed(matrices))
            calls.append(bind_matmul(xp, first, second, out.reshape(*extent(batch), n, m)))
        else:
            calls.append(bind_matmul(xp, matrices[0], matrices[1], out.reshape(*extent(batch), m, n)))
        if out is not outputs[0]:
            back = out.reshape(extent(natural)).transpose([natural.index(label) for label in equation.output])
            calls.append(partial(outputs[0].__setitem__, ..., back))
        return Quiet(in_turn(calls))

    return computed((output,), bind, workspace_bytes=carved_bytes(*parts))
