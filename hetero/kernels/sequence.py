"""Sequences and optionals: element handles are shared and never copied; an absent optional is None.

Only SplitToSequence (views) and ConcatFromSequence (a copy) look inside an element; the others ask for its dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.errors import KernelError
from hetero.kernels.base import Compiled, dynamic, given, handling, kernel, tensor
from hetero.kernels.operands import axis_of, dtype_attribute, fail, known_ints
from hetero.kernels.shape import constant
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import AbsentSpec, SequenceValue, Spec

REASON = "sequences change from step to step"


def _sequence(op: Operation, value: Any) -> SequenceValue:
    if not isinstance(value, SequenceValue):
        fail(
            op, f"is {'nothing' if value is None else type(value).__name__}, not a sequence", "input_sequence"
        )
    return value


def _position(op: Operation, value: Any, length: int, last: int) -> int:
    """`value` as a place in [-length, last], counted from the front. Raises: KernelError."""
    position = int(value.reshape(-1)[0]) if value.size == 1 else None
    if position is None or not -length <= position <= last:
        found = f"shape {list(value.shape)}" if position is None else str(position)
        fail(op, f"position {found} is out of range for a sequence of {length}", "position")
    return position + length if position < 0 else position


@kernel("SequenceConstruct", versions=(11,), strided=True)
def sequence_construct(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A sequence of the inputs."""

    def run(inputs: Sequence[Any]) -> tuple[SequenceValue]:
        dtypes = {str(x.dtype): x.dtype for x in inputs}
        if len(dtypes) != 1:
            fail(op, f"elements are {' and '.join(sorted(dtypes)) or 'missing'}; a sequence has one dtype")
        return (SequenceValue(inputs, inputs[0].dtype),)

    return handling(run, capture=REASON)


@kernel("SequenceEmpty", versions=(11,), strided=True)
def sequence_empty(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A sequence of nothing, with a dtype (float32 by default)."""
    dtype = dtype_attribute(op, "dtype") or np.dtype(np.float32)
    return handling(lambda inputs: (SequenceValue((), dtype),), capture=REASON)


@kernel("SequenceInsert", versions=(11,), strided=True)
def sequence_insert(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The sequence with a tensor before `position` (in [-n, n]; at the end where that is omitted)."""

    def run(inputs: Sequence[Any]) -> tuple[SequenceValue]:
        sequence, element = _sequence(op, inputs[0]), inputs[1]
        dtype = element.dtype if sequence.dtype is None else sequence.dtype
        if element.dtype != dtype:
            fail(op, f"cannot insert {element.dtype} into a sequence of {dtype}", "tensor")
        n = len(sequence)
        at = n if len(inputs) < 3 or inputs[2] is None else _position(op, inputs[2], n, n)
        return (sequence.inserted(at, element, dtype),)

    return handling(run, reads=(2,), capture=REASON)


@kernel("SequenceErase", versions=(11,), strided=True)
def sequence_erase(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The sequence without its element at `position` (the last where that is omitted)."""

    def run(inputs: Sequence[Any]) -> tuple[SequenceValue]:
        sequence = _sequence(op, inputs[0])
        n = len(sequence)
        if n == 0:
            fail(op, "cannot erase from an empty sequence", "input_sequence")
        at = n - 1 if len(inputs) < 2 or inputs[1] is None else _position(op, inputs[1], n, n - 1)
        return (sequence.erased(at),)

    return handling(run, reads=(1,), capture=REASON)


@kernel("SequenceAt", versions=(11,), strided=True)
def sequence_at(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The element at `position` itself."""

    def run(inputs: Sequence[Any]) -> tuple[Any]:
        sequence = _sequence(op, inputs[0])
        n = len(sequence)
        if n == 0:
            fail(op, "an empty sequence has no element", "input_sequence")
        return (sequence[_position(op, inputs[1], n, n - 1)],)

    return handling(run, reads=(1,), capture=REASON)


@kernel("SequenceLength", versions=(11,), strided=True)
def sequence_length(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The number of elements, as an int64 scalar."""
    return handling(lambda inputs: (np.array(len(_sequence(op, inputs[0])), np.int64),), capture=REASON)


@kernel("SplitToSequence", versions=(11, 24), values=(1,), strided=True)
def split_to_sequence(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Views of the input along `axis`: parts of one size (the last may be smaller), of given sizes, or single steps.

    `keepdims` counts only where `split` is omitted.
    """
    x = tensor(op, specs, 0)
    axis = axis_of(op, op.attr("axis", 0), len(x.shape))
    extent = x.shape[axis]
    spec = given(specs, 1)
    drops = spec is None and not op.attr("keepdims", 1)
    if spec is None:
        sizes = [1] * extent
    else:
        wanted = list(known_ints(op, specs, 1, "split") or ())
        if spec.shape:
            sizes = wanted
        elif wanted[0] < 1:
            fail(op, f"parts of {wanted[0]} do not make progress", "split")
        else:
            sizes = [min(wanted[0], extent - at) for at in range(0, extent, wanted[0])]
    if any(size < 0 for size in sizes) or sum(sizes) != extent:
        fail(op, f"sizes {sizes} do not sum to extent {extent} of axis {axis}", "split")
    before = (slice(None),) * axis
    selections: list[tuple[Any, ...]] = []
    at = 0
    for size in sizes:
        selections.append((*before, at if drops else slice(at, at + size)))
        at += size

    def run(inputs: Sequence[Any]) -> tuple[SequenceValue]:
        # An element picked out of a vector by one index would be a scalar, not an array: … keeps it an array.
        views = tuple(inputs[0][(*selection, ...)] for selection in selections)
        return (SequenceValue(views, x.dtype),)

    return dynamic(run, capture=REASON)


@kernel("ConcatFromSequence", versions=(11,), strided=True)
def concat_from_sequence(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The elements joined along `axis`, or stacked along a new one (`new_axis`)."""
    axis, stacks = op.attr("axis"), bool(op.attr("new_axis", 0))
    if axis is None:
        fail(op, "is missing", "axis")

    def run(inputs: Sequence[Any]) -> tuple[Any]:
        elements = _sequence(op, inputs[0]).elements
        if not elements:
            fail(op, "cannot concatenate an empty sequence", "input_sequence")
        at = axis_of(op, axis, len(elements[0].shape) + stacks)
        try:
            return (xp.stack(elements, at) if stacks else xp.concatenate(elements, at),)
        except ValueError as error:
            shapes = ", ".join(str(list(e.shape)) for e in elements)
            raise KernelError(
                f"elements of shapes {shapes} do not join along axis {at}: {error}",
                op=op.id,
                node=op.name,
                operand="input_sequence",
            ) from error

    return dynamic(run, capture=REASON)


@kernel("Optional", versions=(15, 28), strided=True)
def optional(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The input as an optional that holds it; without an input, nothing (None)."""
    return handling(lambda inputs: (inputs[0] if inputs else None,), capture=REASON)


@kernel("OptionalGetElement", versions=(15, 18, 28), strided=True)
def optional_get_element(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """What the optional holds, itself."""

    def run(inputs: Sequence[Any]) -> tuple[Any]:
        if not inputs or inputs[0] is None:
            fail(op, "the optional holds nothing", "input")
        return (inputs[0],)

    return handling(run, capture=REASON)


@kernel("OptionalHasElement", versions=(15, 18, 28), dispatch=Dispatch.HOST, metadata=True, strided=True)
def optional_has_element(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Whether there is an element: a bool scalar that follows from the specs."""
    return constant(np.array(bool(specs) and not isinstance(specs[0], AbsentSpec)))
