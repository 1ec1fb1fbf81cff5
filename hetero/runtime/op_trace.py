"""Spans of single instructions: what a section's calls took, on which kernels, captured or why not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hetero.kernels.base import Call
from hetero.program.program import NO_SLOT, Program
from hetero.providers.base import Provider
from hetero.runtime.capture.captured import Captured
from hetero.runtime.section import Section
from hetero.runtime.slots import Slot
from hetero.trace import Span
from hetero.types import TensorSpec


class OpTrace:
    """Collects spans while sections run call by call. On a device, each call is waited for, so that its span is its
    own: the step as a whole takes longer than untraced."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.step = 0
        self.spans: list[Span] = []

    def call(self, program: Program, section: Section, k: int, captured: Captured | None) -> None:
        """Make call number `k` of the section, whose segments and seams are `captured`'s."""
        segment, reason = _status(captured, section, k)
        self._timed(section.calls[k], program, section.nodes[k], section, segment, reason)

    def tail(self, program: Program, section: Section) -> Any:
        """Run the section's tail; returns its key."""
        assert section.tail is not None, "asked of sections that have one"
        return self._timed(section.tail, program, section.stop - 1, section, None, str(section.tail_reason))

    def _timed(
        self, call: Call, program: Program, at: int, section: Section, segment: int | None, reason: str | None
    ) -> Any:
        started = time.perf_counter()
        try:
            result = call()
            self._provider.synchronize()
        finally:
            ended = time.perf_counter()
            instruction = program.instructions[at]
            slots = section.exit.every
            args: dict[str, Any] = {
                "op": instruction.op.id,
                "node": instruction.op.name,
                "node_index": instruction.node_index,
                "dispatch": str(instruction.dispatch),
                "reads_bytes": _nbytes(slots, instruction.inputs),
                "writes_bytes": _nbytes(slots, instruction.outputs),
                "capture": "seam" if segment is None else "segment",
            }
            if segment is not None:
                args["segment"] = segment
            if reason is not None:
                args["reason"] = reason
            name = instruction.op.name or instruction.op.id
            self.spans.append(Span(name, self._provider.name, self.step, started, ended, "op", args))
        return result


def _status(captured: Captured | None, section: Section, k: int) -> tuple[int | None, str | None]:
    """The segment that call `k` is in, or why it is in none."""
    if captured is None:
        return None, "not-captured"
    for n, piece in enumerate(captured.pieces):
        if piece.first <= k < piece.last:
            return (n, None) if piece.reason is None else (None, str(section.seams[k] or piece.reason))
    return None, None


def _nbytes(slots: Mapping[int, Slot], indices: tuple[int, ...]) -> int:
    """Bytes of the tensors in these slots, as far as their specs are known."""
    specs = [slots[i].spec for i in indices if i != NO_SLOT and i in slots]
    return sum(s.nbytes for s in specs if isinstance(s, TensorSpec))
