"""Which class runs a control-flow instruction."""

from __future__ import annotations

from collections.abc import Mapping

from hetero.errors import UnsupportedError
from hetero.program.program import Instruction
from hetero.runtime.branch import If
from hetero.runtime.context import Context
from hetero.runtime.control_flow import ControlFlow
from hetero.runtime.loop import Loop
from hetero.runtime.scan import Scan
from hetero.runtime.scan_batched import BatchedScan
from hetero.runtime.slots import Slot

_FLOWS: dict[str, type[ControlFlow]] = {"If": If, "Loop": Loop, "Scan": Scan}


def control_flow(
    instruction: Instruction, context: Context, depth: int, constants: Mapping[int, Slot]
) -> ControlFlow:
    """The runner of one instruction. Raises: UnsupportedError for an op that is no control flow we know."""
    op = instruction.op
    kind = _FLOWS.get(op.op_type) if op.domain == "" else None
    if kind is Scan and op.version < 9:
        kind = BatchedScan
    if kind is None:
        raise UnsupportedError(f"{op.id} carries graphs, but is no control flow known here")
    return kind(instruction, context, depth, constants)
