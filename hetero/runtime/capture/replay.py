"""Calling a section: eagerly while it is cold, recorded once it is warm, replayed from then on."""

from __future__ import annotations

import operator
from functools import partial

from hetero.errors import HeteroError
from hetero.kernels.base import Call
from hetero.program.program import Program
from hetero.providers.base import Provider
from hetero.runtime.artifacts import COMPLETE, Artifact
from hetero.runtime.capture.captured import Captured
from hetero.runtime.capture.graph_slots import GraphSlot
from hetero.runtime.context import Context
from hetero.runtime.section import Section, locate


def call_section(program: Program, section: Section, context: Context) -> None:
    """Run a section that was built before, for the graph slot that the run drives.

    Raises: what a call raises, as a HeteroError that names node, op and device.
    """
    context.statistics.sections_reused += 1
    slot = context.graph_slot
    captured = section.captured.get(slot.name) if slot is not None else None
    if slot is not None and section.warm and (captured is None or captured.artifact.state is not COMPLETE):
        captured = section.captured[slot.name] = _recorded(program, section, context, slot)
    if not section.calls:  # as around an instruction whose result's shape only the data tells
        if slot is not None:
            slot.eager_runs += 1
        section.warm = True
        return
    steps: list[Call]
    lease: Artifact | None = None
    if context.ops is not None:
        steps = [partial(context.ops.call, program, section, k, captured) for k in range(len(section.calls))]
    elif slot is None:
        steps = section.calls
    elif captured is not None and captured.tokens:
        slot.replays += 1
        steps, lease = captured.steps, captured.artifact
    else:  # cold, or all seams
        slot.eager_runs += 1
        steps = section.calls
    done = iter(steps)
    if lease is not None:
        lease.take()
    try:
        for call in done:
            call()
    except Exception as error:
        at = len(steps) - operator.length_hint(done) - 1
        replayed = captured if captured is not None and steps is captured.steps else None
        ours = located_call(program, section, replayed, at, error, context.provider)
        raise ours from ours.__cause__
    finally:
        if lease is not None:
            lease.end()
    section.warm = True


def located_call(
    program: Program,
    section: Section,
    captured: Captured | None,
    at: int,
    error: Exception,
    provider: Provider,
) -> HeteroError:
    """As `locate`, of what call `at` of the section raised; or step `at` of it as `captured`."""
    at = at if captured is None else captured.firsts[at]
    instruction = program.instructions[section.nodes[at]]
    ours = locate(error, instruction, provider)
    if at in section.shared:
        ours.node = instruction.op.name or None
    return ours


def _recorded(program: Program, section: Section, context: Context, slot: GraphSlot) -> Captured:
    captured = context.recorder.record(
        slot, section.calls, section.nodes, section.seams, program.instructions
    )
    if section.tail_reason is not None:
        slot.seams[section.tail_reason] += 1
    return captured
