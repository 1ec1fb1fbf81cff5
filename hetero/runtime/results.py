"""What a program returns: where each output is found once its last section ran, and which are copied for the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.program.program import NO_SLOT
from hetero.runtime.operands import contiguous_copy
from hetero.runtime.section import Result, Section
from hetero.runtime.slots import Kind, Slot
from hetero.runtime.state import Resident
from hetero.types import TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.runner import Runner


def collected(runner: Runner, last: Section) -> list[Any]:
    """The outputs of a run whose last section is `last`, in the program's order."""
    if last.results is None:
        last.results = [_result(runner, last, k) for k in range(len(runner.program.outputs))]
    table, found = runner.table.values, []
    for slot, value, copied in last.results:
        if slot != NO_SLOT:
            value = table[slot]
        elif copied:
            value = value.copy() if type(value) is np.ndarray else _copied(runner, value)
        found.append(value)
    return found


def _result(runner: Runner, last: Section, output: int) -> Result:
    index = runner.program.outputs[output].slot
    slot = last.exit.slots.get(index)
    if slot is None or slot.kind is Kind.NOTHING:
        return NO_SLOT, None, False
    if slot.volatile:
        return index, None, False
    if slot.kind in (Kind.CONSTANT, Kind.KNOWN):
        if runner.depth and not runner.provider.is_host:  # what encloses the body computes with it
            if slot.array is None and slot.value is not None and slot.kind is Kind.CONSTANT:
                slot.array = runner.context.device_weights.resident(slot.value)
            elif slot.array is None and slot.value is not None:
                slot.array = runner.provider.upload(slot.value)
            return NO_SLOT, slot.array, False
        value = slot.array if slot.value is None else slot.value
        return NO_SLOT, value, slot.kind is Kind.KNOWN
    if slot.state:
        return resident(slot)
    if index in runner.kept or runner.pinned(index, slot.spec) is slot.array:
        return NO_SLOT, slot.array, False  # the state copies it, or it lies where the caller wants it
    frames = runner.frames
    copied = frames is None or not runner.iterated or frames.clobbered(output, slot)
    if not copied and slot.array is not None:
        last.lent[id(slot.array)] = slot.array
    return NO_SLOT, slot.array, copied


def resident(slot: Slot) -> Result:
    """The result that is in a state's buffer."""
    assert isinstance(slot.spec, TensorSpec), "a state is a tensor"
    return NO_SLOT, Resident(slot.spec.shape), False


def _copied(runner: Runner, value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else contiguous_copy(runner.provider, value)
