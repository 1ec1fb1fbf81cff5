"""DotGeneral of the domain `hetero`: a contraction of two operands over any axes, conjugated where asked for."""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import ANY_VERSION, Call, Compiled, computed, kernel, tensor
from hetero.kernels.broadcasting import NUMBERS, one_dtype
from hetero.kernels.einsum import Equation, as_product, multiplied
from hetero.kernels.fused import in_turn
from hetero.kernels.operands import fail
from hetero.kernels.widen import NARROW, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import Spec, TensorSpec

_COMPLEX: frozenset[np.dtype[Any]] = frozenset((np.dtype(np.complex64), np.dtype(np.complex128)))


@kernel("DotGeneral", domain="hetero", versions=ANY_VERSION, dispatch=Dispatch.LIBRARY)
def dot_general(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """lhs, rhs -> (batch axes, lhs's other axes, rhs's other axes), in the operands' one dtype, complex included.

    Attributes: `lhs_batch` and `rhs_batch`, axes that go together; `lhs_contract` and `rhs_contract`, axes that are
    summed over; pairwise of equal extents. `lhs_conj`, `rhs_conj` (0 or 1): use the operand's complex conjugate.
    """
    lhs, rhs = tensor(op, specs, 0), tensor(op, specs, 1)
    dtype = one_dtype(op, (lhs, rhs), NUMBERS | _COMPLEX)
    if dtype in NARROW:
        return widened(dot_general, op, specs, xp)
    equation = _equation(op, lhs, rhs)
    product = as_product(equation, (lhs.shape, rhs.shape))
    assert product is not None, "every label of two operands is batch, free or summed"
    output = TensorSpec(dtype, tuple(equation.extents[x] for x in equation.output))
    plain = multiplied(equation, product, output, xp)
    turned = [k for k, side in enumerate(("lhs_conj", "rhs_conj")) if op.attr(side, 0) and dtype in _COMPLEX]
    if not turned or plain.bind is None:
        return plain
    bind_plain = plain.bind
    parts: list[Part] = [
        ((plain.workspace_bytes,), np.uint8),
        *[((lhs, rhs)[k].shape, dtype) for k in turned],
    ]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        scratch, *conjugates = carve(workspace, *parts)
        operands = list(inputs)
        calls: list[Call] = []
        for k, target in zip(turned, conjugates, strict=True):
            calls.append(partial(xp.conjugate, inputs[k], target))
            operands[k] = target
        return in_turn([*calls, bind_plain(operands, outputs, scratch if plain.workspace_bytes else None)])

    return computed((output,), bind, workspace_bytes=carved_bytes(*parts))


def _equation(op: Operation, lhs: TensorSpec, rhs: TensorSpec) -> Equation:
    """Labels for the axes. Raises: KernelError for axes that are not there, twice, or of different extents."""
    if len(lhs.shape) + len(rhs.shape) > len(string.ascii_letters):
        raise UnsupportedError("more than 52 axes", op=op.id, node=op.name)
    letters = iter(string.ascii_letters)
    labels = [[""] * len(lhs.shape), [""] * len(rhs.shape)]
    batch: list[str] = []
    for role in ("batch", "contract"):
        sides = [tuple(op.attr(f"{side}_{role}", ()) or ()) for side in ("lhs", "rhs")]
        if len(sides[0]) != len(sides[1]):
            fail(op, f"{list(sides[0])} and rhs_{role} {list(sides[1])} go together in pairs", f"lhs_{role}")
        for pair in zip(*sides, strict=True):
            letter = next(letters)
            for side, axis, spec, taken in zip(("lhs", "rhs"), pair, (lhs, rhs), labels, strict=True):
                rank = len(spec.shape)
                if not -rank <= axis < rank or taken[axis]:
                    fail(
                        op,
                        f"axis {axis} of {list(spec.shape)} is not there, or named before",
                        f"{side}_{role}",
                    )
                taken[axis] = letter
            extents = [spec.shape[axis] for spec, axis in zip((lhs, rhs), pair, strict=True)]
            if extents[0] != extents[1]:
                fail(op, f"axes {pair} are of extents {extents[0]} and {extents[1]}", f"lhs_{role}")
            if role == "batch":
                batch.append(letter)
    named = [[x or next(letters) for x in side] for side in labels]
    free = [
        x
        for before, after in zip(labels, named, strict=True)
        for b, x in zip(before, after, strict=True)
        if not b
    ]
    extents_of = {
        x: d for side, s in zip(named, (lhs, rhs), strict=True) for x, d in zip(side, s.shape, strict=True)
    }
    return Equation((tuple(named[0]), tuple(named[1])), (*batch, *free), extents_of)
