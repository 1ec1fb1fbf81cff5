"""com.microsoft operators that are standard ones but for how they take or name their operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, dynamic, given, kernel, tensor
from hetero.kernels.conv_transpose import conv_transpose
from hetero.kernels.gather import gather_nd
from hetero.kernels.grid import grid_sample
from hetero.kernels.layout import unsqueeze
from hetero.kernels.operands import known_ints, known_scalar
from hetero.kernels.pad import pad
from hetero.kernels.rearrange import trilu
from hetero.kernels.select import unique
from hetero.kernels.shape import range_
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import Spec, TensorSpec

MICROSOFT = "com.microsoft"

kernel("Trilu", domain=MICROSOFT, versions=(1,), values=(1,), strided=True)(trilu)
kernel("GatherND", domain=MICROSOFT, versions=(1,), strided=True)(gather_nd)
kernel("GridSample", domain=MICROSOFT, versions=(1,))(grid_sample)


def _as_standard(op: Operation, version: int, **attributes: Any) -> Operation:
    """The operation as `version` of the standard operator, with these attributes in place of or beside its own."""
    return replace(op, domain="", version=version, attributes={**op.attributes, **attributes})


@kernel("ExpandDims", domain=MICROSOFT, versions=(1,), dispatch=Dispatch.VIEW, values=(1,), strided=True)
def expand_dims(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, axis (one int32, counted in the output) -> X with an axis of extent 1 there."""
    axis = int(known_scalar(op, specs, 1, "axis"))
    return unsqueeze(_as_standard(op, 11, axes=(axis,)), specs[:1], xp)


@kernel("Range", domain=MICROSOFT, versions=(1,), dispatch=Dispatch.HOST, values=(0, 1, 2), strided=True)
def range_by_one(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """start, limit, delta (1 where it is left out) -> start, start + delta… up to limit, without it."""
    if given(specs, 2) is not None:
        return range_(op, specs, xp)
    dtype = tensor(op, specs, 0).dtype
    return range_(op, [*specs[:2], TensorSpec(dtype, (), np.ones((), dtype))], xp)


@kernel("Pad", domain=MICROSOFT, versions=(1,), values=(1,), strided=True)
def pad_rows(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, pads (2 · rank, or [1, 2 · rank]), optional value -> X padded in `mode` constant, edge or reflect."""
    pads = tensor(op, specs, 1)
    if pads.value is not None and len(pads.shape) == 2 and pads.shape[0] == 1:
        pads = TensorSpec(pads.dtype, pads.shape[1:], pads.value.reshape(-1))
    return pad(_as_standard(op, 13), [specs[0], pads, *specs[2:]], xp)


@kernel("Unique", domain=MICROSOFT, versions=(1,), strided=True)
def unique_in_order(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> its distinct elements as they first occur, where each element of X is among them, how often each occurs."""
    values, *rest = (*op.present_outputs, False, False)[:3]
    inner = unique(replace(_as_standard(op, 11, sorted=0), present_outputs=(values, False, *rest)), specs, xp)
    run = inner.run
    assert run is not None

    def without_first(inputs: Sequence[Any]) -> tuple[Any, ...]:
        distinct, _, *others = run(inputs)
        return (distinct, *others)[: len(op.present_outputs)]

    return dynamic(without_first)


@kernel("ConvTransposeWithDynamicPads", domain=MICROSOFT, versions=(1,), values=(2,))
def conv_transpose_with_pads(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, W, optional pads, optional B -> ConvTranspose of X, W and B with these pads."""
    pads = known_ints(op, specs, 2, "Pads")
    attributes = {} if pads is None else {"pads": pads}
    inner = conv_transpose(_as_standard(op, 11, **attributes), [*specs[:2], *specs[3:4]], xp)
    bind_inner = inner.bind
    assert bind_inner is not None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return bind_inner([*inputs[:2], *inputs[3:4]], outputs, workspace)

    contiguous = frozenset(3 if i == 2 else i for i in inner.contiguous)
    return replace(inner, bind=bind, contiguous=contiguous)
