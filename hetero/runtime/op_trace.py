"""Spans of single instructions: what a section's calls took, on which kernels, captured or why not."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from hetero.kernels.base import Call
from hetero.program.program import NO_SLOT, Program
from hetero.providers.base import Provider
from hetero.runtime.capture.captured import Captured
from hetero.runtime.section import Record, Section
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
        self._tracing_s = 0.0

    def call(self, program: Program, section: Section, k: int, captured: Captured | None) -> None:
        """Make call number `k` of the section, whose segments and seams are `captured`'s."""
        entered = time.perf_counter()
        segment, reason = _status(captured, section, k)
        record = _record(section, k)
        if record is None:  # dropping what a later instruction read last, or laying out inputs
            at, stop, role = section.nodes[k], section.nodes[k] + 1, "release"
        else:
            at, stop = record.start, record.stop
            role = "kernel" if k == record.last - 1 else "copy"
        self._timed(section.calls[k], program, range(at, stop), section, segment, reason, role, entered)

    def tail(self, program: Program, section: Section) -> Any:
        """Run the section's tail; returns its key."""
        assert section.tail is not None, "asked of sections that have one"
        at, entered = range(section.stop - 1, section.stop), time.perf_counter()
        reason = str(section.tail_reason)
        return self._timed(section.tail, program, at, section, None, reason, "kernel", entered)

    def _timed(
        self,
        call: Call,
        program: Program,
        at: range,
        section: Section,
        segment: int | None,
        reason: str | None,
        role: str,
        entered: float,
    ) -> Any:
        """Make a call for the instructions `at`: one, or those of a tape. `entered`: when tracing it began."""
        tracing_s = self._tracing_s
        started = time.perf_counter()
        try:
            result = call()
            self._provider.synchronize()
        finally:
            ended = time.perf_counter()
            instructions = [program.instructions[k] for k in at]
            first, slots = instructions[0], section.exit.every
            moves = role == "kernel"
            args: dict[str, Any] = {
                "op": "+".join(dict.fromkeys(i.op.id for i in instructions)),
                "node": first.op.name,
                "node_index": first.node_index,
                "program": program.name,
                "section": section.start,
                "dispatch": str(first.dispatch),
                "call": role,
                "reads_bytes": _nbytes(slots, [s for i in instructions for s in i.inputs]) if moves else 0,
                "writes_bytes": _nbytes(slots, [s for i in instructions for s in i.outputs]) if moves else 0,
                "capture": "seam" if segment is None else "segment",
            }
            if len(instructions) > 1:
                args["fused"] = len(instructions)
                args["nodes"] = [i.op.name or i.op.id for i in instructions]
            if segment is not None:
                args["segment"] = segment
            if reason is not None:
                args["reason"] = reason
            name = first.op.name or first.op.id
            if self._tracing_s > tracing_s:  # its bodies were traced: that is not its own time
                args["tracing_s"] = self._tracing_s - tracing_s
            self.spans.append(Span(name, self._provider.name, self.step, started, ended, "op", args))
            self._tracing_s += started - entered + time.perf_counter() - ended
        return result


def _record(section: Section, k: int) -> Record | None:
    """How the instructions that call `k` belongs to were bound; None where it is none's own."""
    at = bisect_right(section.records, k, key=lambda record: record.first) - 1
    while at >= 0 and section.records[at].first == section.records[at].last:
        at -= 1  # views and folded instructions have no call
    return section.records[at] if at >= 0 and k < section.records[at].last else None


def _status(captured: Captured | None, section: Section, k: int) -> tuple[int | None, str | None]:
    """The segment that call `k` is in, or why it is in none."""
    if captured is None:
        return None, "not-captured"
    for n, piece in enumerate(captured.pieces):
        if piece.first <= k < piece.last:
            return (n, None) if piece.reason is None else (None, str(section.seams[k] or piece.reason))
    return None, None


def _nbytes(slots: Mapping[int, Slot], indices: Iterable[int]) -> int:
    """Bytes of the tensors in these slots, each once, as far as they are in memory and their specs are known."""
    specs = [slots[i].spec for i in dict.fromkeys(indices) if i != NO_SLOT and i in slots]
    return sum(s.nbytes for s in specs if isinstance(s, TensorSpec))
