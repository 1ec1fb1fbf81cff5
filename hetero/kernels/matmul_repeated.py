"""Products with matrices that the model repeats, heads that several queries share: read where they lie, not copied.

An exported model lifts keys and values by an axis, expands that, and folds it into the heads before it, so that each
stands there once for every query head. Here these steps and the product behind them are one operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.fused import in_turn
from hetero.kernels.layout import expand, reshape, transpose, unsqueeze
from hetero.kernels.matmul import matmul
from hetero.kernels.matmul_few import bind_matrices, is_few_rows, products
from hetero.kernels.matmul_weighted import is_weighted, weighted_products
from hetero.kernels.quiet import Quiet, bare
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import ABSENT, Array, Spec, TensorSpec

DOMAIN, OP_TYPE = "hetero.internal", "RepeatedMatMul"


@dataclass(frozen=True, slots=True, repr=False)
class Repeating:
    """The model's own operations: what is repeated goes through `unsqueeze`, `expand`, `reshape` and, where it is not
    None, `turn` (a Transpose of the last two axes), and is the right factor of `matmul`."""

    unsqueeze: Operation
    expand: Operation
    reshape: Operation
    turn: Operation | None
    matmul: Operation

    def __repr__(self) -> str:
        """The same for two that differ in their nodes' names alone."""
        steps = (self.unsqueeze, self.expand, self.reshape, self.turn, self.matmul)
        return str([s and (s.op_type, s.version, sorted(s.attributes.items())) for s in steps])


def _not_a_models(op: Operation, types: Sequence[object]) -> str | None:
    return None if isinstance(op.attr("repeating"), Repeating) else "no operator that a model may name"


@kernel(
    OP_TYPE,
    domain=DOMAIN,
    versions=(1,),
    dispatch=Dispatch.LIBRARY,
    values=(2, 3, 4),
    portable=False,
    check=_not_a_models,
)
def repeated_matmul(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A, B, the axes of Unsqueeze (absent where they are its attribute), the shapes of Expand and Reshape -> A B', the
    bits of MatMul over a copy. On the host."""
    steps = op.attr("repeating")
    if not isinstance(steps, Repeating):
        raise UnsupportedError(_not_a_models(op, ()) or "", op=op.id, node=op.name)
    return repeats(op, steps, specs, xp)


def repeats(op: Operation, steps: Repeating, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The kernel of `steps` over operands of these specs, those of `repeated_matmul`; errors name `op`."""
    return _by_rows(op, steps, specs, xp) or _in_general(op, steps, specs, xp)


@dataclass(frozen=True, slots=True)
class Shared:
    """A right factor whose axis `at - 1` is repeated `times` times, for a left one of few rows: its shape as it lies is
    `own`, with the axis of repeats at `at` it is `spread`, and the product has it as `right`."""

    own: tuple[int, ...]
    at: int
    times: int
    spread: tuple[int, ...]
    right: tuple[int, ...]


def shared(steps: Repeating, specs: Sequence[Spec], xp: Any) -> Shared | None:
    """What the compiled loops for a few rows need to know, where they are for operands of these specs (those of
    `repeated_matmul`): where one axis is repeated and folded into the one before it; else None.

    A decoder asks this for each of its tokens: it takes a third of the time of compiling every step by itself.
    """
    a, base, axes, spread, wanted = (specs[0], specs[1], *map(integers, specs[2:]))
    if not isinstance(a, TensorSpec) or not isinstance(base, TensorSpec) or spread is None or wanted is None:
        return None
    if specs[2] == ABSENT:
        axes = tuple(steps.unsqueeze.attr("axes", ()))
    if axes is None or len(axes) != 1:
        return None
    own = base.shape
    at = axes[0] + len(own) + 1 if axes[0] < 0 else axes[0]
    if not 0 < at < len(own) - 1 or len(spread) != len(own) + 1:
        return None
    times = spread[at]
    whole = (*own[: at - 1], own[at - 1] * times, *own[at:])
    if spread != (*own[:at], times, *own[at:]) or a.shape[:-2] != whole[:-2]:
        return None
    if not folds_to(steps.reshape, wanted, whole, at):
        return None
    right = whole if steps.turn is None else (*whole[:-2], whole[-1], whole[-2])
    few = is_few_rows(xp, a.shape, right, a.dtype)
    if a.dtype != base.dtype or few != (steps.turn is not None):
        return None
    if not few and not is_weighted(xp, a.shape, right, a.dtype):
        return None
    return Shared(own, at, times, spread, right)


def folds_to(reshape: Operation, wanted: tuple[int, ...] | None, whole: tuple[int, ...], at: int) -> bool:
    """Whether Reshape's `wanted` folds the axis of repeats at `at` into the one before it, which gives `whole`, written
    as it mostly is."""
    if wanted is None or len(wanted) != len(whole) or wanted.count(-1) > 1:
        return False
    # 0 stands for the extent that is there, which before the fold is the one that is wanted
    kept = 0 if reshape.attr("allowzero", 0) else at - 1
    pairs = enumerate(zip(wanted, whole, strict=True))
    return all(n in (-1, extent) or (n == 0 and k < kept) for k, (n, extent) in pairs)


def _by_rows(op: Operation, steps: Repeating, specs: Sequence[Spec], xp: Any) -> Compiled | None:
    found = shared(steps, specs, xp)
    if found is None:
        return None
    a, base = tensor(op, specs, 0), tensor(op, specs, 1)
    own, at = found.own, found.at
    loops = weighted_products if steps.turn is None else products

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        left, source, out = inputs[0], inputs[1], outputs[0]
        if not source.flags.aligned:
            general = _in_general(op, steps, specs, xp)
            assert general.bind is not None, "a product's shape is known"
            return general.bind(inputs, outputs, workspace)
        strides = source.strides[:-2]
        strides = (*strides[:at], 0, *strides[at:])
        shape = (*own[:at], 1, *own[at:-2])
        return bind_matrices(loops, left, source, shape, strides, found.spread[:-2], out)

    product = matmul(steps.matmul, [a, TensorSpec(base.dtype, found.right)], xp)
    return computed(product.outputs, bind, contiguous=(0,), blocks=(1,))


def integers(spec: Spec) -> tuple[int, ...] | None:
    """The integers that a spec is known to have, along one axis."""
    value = spec.value if isinstance(spec, TensorSpec) else None
    return None if value is None or value.ndim != 1 else tuple(value.tolist())


def _in_general(op: Operation, steps: Repeating, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Each of the steps by itself."""
    a, base = tensor(op, specs, 0), tensor(op, specs, 1)
    lifted = unsqueeze(steps.unsqueeze, [base] if specs[2] == ABSENT else [base, specs[2]], xp)
    wide = expand(steps.expand, [_only(lifted), specs[3]], xp)
    joined = _only(reshape(steps.reshape, [_only(wide), specs[4]], xp))
    turned = None if steps.turn is None else _only(transpose(steps.turn, [joined], xp))
    product = matmul(steps.matmul, [a, joined if turned is None else turned], xp)
    spread, whole = _only(wide).shape, joined.shape
    # The same matrices in the same order, each for one of `a`: then they need not stand side by side.
    apart = (
        spread[-2:] == whole[-2:] == base.shape[-2:]
        and len(base.shape) > 2
        and a.shape[:-2] == whole[:-2]
        and a.dtype.kind == "f"
        and product.workspace_bytes == 0
    )
    laid_out = turned is not None and 1 not in product.turned  # BLAS has other bits for a transpose
    parts: list[Part] = [] if apart else [(whole, base.dtype)]
    if laid_out:
        parts.append(((*(base.shape if apart else whole)[:-2], *whole[:-3:-1]), base.dtype))

    def repeated(source: Array) -> Array:
        """A view of `source`, which lies as B does."""
        views = None if lifted.view is None else lifted.view([source])
        views = None if views is None or wide.view is None else wide.view(views)
        assert views is not None, "both are always views"
        return views[0]

    factors = (*spread[:-2], *a.shape[-2:]), (*spread[:-2], *_only(product).shape[-2:])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        left, source, out = inputs[0], inputs[1], outputs[0]
        space = carve(workspace, *parts)
        calls: list[Call] = []
        if not apart:
            full = space.pop(0)
            calls.append(partial(np.copyto, full.reshape(spread), repeated(source)))
            source = full
        if laid_out:
            calls.append(partial(np.copyto, space[0], source.swapaxes(-1, -2)))
            source = space[0].swapaxes(-1, -2)
        if apart:
            source = repeated(source)
            left, out = left.reshape(factors[0]), out.reshape(factors[1])
        if turned is not None:
            source = source.swapaxes(-1, -2)
        assert product.bind is not None, "a product's shape is known"
        calls.append(bare(product.bind([left, source], [out], None)))
        return Quiet(in_turn(calls))

    return computed(
        product.outputs,
        bind,
        contiguous=(0, 1) if not apart else (0,),
        blocks=(1,) if apart else (),
        workspace_bytes=carved_bytes(*parts),
    )


def _only(compiled: Compiled) -> TensorSpec:
    """The spec of the one result."""
    (spec,) = compiled.outputs
    assert isinstance(spec, TensorSpec), "of a layout operation with one result"
    return spec
