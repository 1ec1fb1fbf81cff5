"""Rebinding: one instruction, bound for other extents to the memory that it had, where nothing else may have changed.

What is asked about an instruction when it is bound for the first time (whether it is folded, what escapes, what may be
overwritten) was answered for a step that was bound one by one, and has the same answers as long as its operands are of
the same kinds. What is left is the kernel, the operands' layout and the room in the buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hetero.kernels.base import Call, Compiled
from hetero.kernels.quiet import bare
from hetero.providers.base import Provider
from hetero.runtime.operands import UINT8, has_blocks
from hetero.runtime.slots import Kind, Slot
from hetero.runtime.twins import Step
from hetero.types import Array, Spec, TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.runner import Runner


@dataclass(slots=True)
class Made:
    """What became of a step: its calls; its kernel (None where it has none), with the spec of its one result and the
    bytes of workspace, which are the kernel's own unless it was stretched; its operands' strides."""

    calls: list[Call]
    kernel: Compiled | None = None
    spec: Spec | None = None
    workspace_bytes: int = 0
    strides: list[Any] = field(default_factory=list)


FOLDED = Made([])


def rebound(
    runner: Runner, every: Mapping[int, Slot], step: Step, like: Made | None, old: Compiled | None
) -> tuple[Made, Slot] | None:
    """What becomes of a step that has a `kind`, and the slot of its result; None where it has to be asked anew what
    becomes of it. `like`: what became of a step with the same kernel; `old`: the kernel that it had for other operands.
    Raises: HeteroError as the kernel does."""
    operands = [every[index] for index in step.reads]
    arrays: list[Array] = []
    known = True
    for operand in operands:
        if operand.array is None or operand.volatile:
            return None
        known = known and operand.value is not None
        arrays.append(operand.array)
    at = step.record.start
    definition = runner.analysis.kernels[at]
    if known or definition is None:
        return None
    for k in definition.values:
        if k < len(operands) and operands[k].value is None:
            return None
    made = _kernel(runner, at, operands, like, old)
    kernel = made.kernel
    assert kernel is not None, "it was found, or compiled"
    if kernel.bind is None or kernel.accepts is not None or not isinstance(made.spec, TensorSpec):
        return None
    if step.leads:
        made.strides = [a.strides for a in arrays]
    if kernel.view is not None:
        return _viewed(runner.provider, step, made, kernel, operands[0], arrays)
    return _computed(runner.provider, every, step, made, kernel, arrays)


def _kernel(
    runner: Runner, at: int, operands: Sequence[Slot], like: Made | None, old: Compiled | None
) -> Made:
    """The kernel for these operands: that of a step like this one, the old one where it is right for them too, a new
    one."""
    if like is not None and like.kernel is not None:
        return Made([], like.kernel, like.spec, like.workspace_bytes)
    specs = [o.known_spec() for o in operands]
    if old is not None and old.stretch is not None:
        found = old.stretch(specs)
        if found is not None:
            return Made([], old, *found)
    return of_kernel([], runner.compile(at, runner.provider, specs))


def of_kernel(calls: list[Call], kernel: Compiled | None) -> Made:
    """What became of a step whose kernel was compiled for its operands."""
    if kernel is None or len(kernel.outputs) != 1:
        return Made(calls, kernel)
    return Made(calls, kernel, kernel.outputs[0], kernel.workspace_bytes)


def _viewed(
    provider: Provider, step: Step, made: Made, kernel: Compiled, base: Slot, arrays: list[Array]
) -> tuple[Made, Slot] | None:
    if step.calls or step.kind is not Kind.VIEW or base.value is not None or made.spec is None:
        return None
    views = provider.view(kernel, [arrays[0], *[None] * (len(arrays) - 1)])
    return None if views is None else (made, Slot(Kind.VIEW, made.spec, base.owner, False, views[0]))


def _computed(
    provider: Provider,
    every: Mapping[int, Slot],
    step: Step,
    made: Made,
    kernel: Compiled,
    arrays: list[Array],
) -> tuple[Made, Slot] | None:
    spec, index, record, nbytes = made.spec, step.run[0].outputs[0], step.record, made.workspace_bytes
    if len(step.calls) != 1 or step.kind is not Kind.OWNED or not isinstance(spec, TensorSpec):
        return None
    if not _lie_well(provider, kernel, arrays):
        return None
    buffers, scratch = record.buffers, 1 if nbytes else 0
    if len(buffers) != scratch + 1 or buffers[-1].nbytes < spec.nbytes or buffers[0].nbytes < nbytes:
        return None
    if record.in_place and not _overwrites(every, step, kernel, record.in_place.get(scratch), spec):
        return None
    workspace = provider.array(buffers[0], TensorSpec(UINT8, (nbytes,))) if scratch else None
    output = provider.array(buffers[-1], spec)
    made.calls = [bare(provider.bind(kernel, arrays, [output], workspace))]
    return made, Slot(Kind.OWNED, spec, index, False, output)


def _lie_well(provider: Provider, kernel: Compiled, arrays: list[Array]) -> bool:
    """Whether no operand has to be copied first."""
    for k in kernel.contiguous:
        if k < len(arrays) and not provider.is_contiguous(arrays[k]):
            return False
    for k in kernel.blocks:
        if k < len(arrays) and not has_blocks(provider, arrays[k], turned=k in kernel.turned):
            return False
    return True


def _overwrites(
    every: Mapping[int, Slot], step: Step, kernel: Compiled, overwritten: int | None, spec: TensorSpec
) -> bool:
    """Whether the result may still be computed into the operand `overwritten`, which it was computed into. A kernel
    that was stretched says so for other extents; where both are of one spec, it is so for all."""
    if overwritten not in step.reads:
        return False
    return every[overwritten].spec == spec and (step.reads.index(overwritten), 0) in kernel.overwrites
