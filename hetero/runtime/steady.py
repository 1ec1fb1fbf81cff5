"""Steady runs: a run like the one before, as one function over what was looked up once.

Between two steps of a pipeline other code has filled the processor's caches: each function that a run enters, and each
object that it comes by, then costs ten times what it does in a loop. So what a run of the same specs would find again
(the section, its frames, its calls, its results) is kept together here. Whatever is not as it was is seen, and left to
`Runner.run`, which comes to the same.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from hetero.program.program import NO_SLOT, Program
from hetero.providers.base import Provider
from hetero.runtime.artifacts import COMPLETE, Artifact
from hetero.runtime.capture.captured import Captured
from hetero.runtime.capture.graph_slots import GraphSlot
from hetero.runtime.capture.replay import located_call
from hetero.runtime.context import Statistics
from hetero.runtime.decode_memo import Drive
from hetero.runtime.section import Result, Section
from hetero.types import HostArray, TensorSpec

if TYPE_CHECKING:
    from hetero.kernels.base import Call
    from hetero.runtime.assignment import Task
    from hetero.runtime.roots import Signature
    from hetero.runtime.runner import Runner

Place = tuple[np.dtype[Any], tuple[int, ...], HostArray | None, int]
"""Of an input: its dtype and shape, the frame that it is copied into, or else its slot in the run's table."""


@dataclass(slots=True, eq=False)
class Steady:
    """The run that a program on a host makes next in a graph slot, if its inputs are arrays of the same specs.

    `bytes_in`, `bytes_out`: of its inputs and results.
    """

    drive: Drive
    last: tuple[Signature, Section]
    """What the drive stood on: it stands on another pair once the section was left, taken over or closed."""
    artifact: Artifact | None
    """The section's recording in the graph slot."""
    captured: Captured | None
    """That, where there are graphs to launch."""
    n_parcels: int
    places: tuple[Place, ...]
    """Of the inputs, as they arrive."""
    table: list[Any]
    blank: tuple[None, ...]
    statistics: Statistics
    slot: GraphSlot | None
    calls: list[Call]
    results: tuple[Result, ...]
    leaving: tuple[tuple[int, ...], ...] | None
    """Which of the results each parcel holds; None: one holds all, in their order."""
    bytes_in: int
    bytes_out: int
    program: Program
    provider: Provider

    def holds(self) -> bool:
        """Whether nothing has changed since, but for the inputs."""
        artifact = self.artifact
        return self.drive.last is self.last and (artifact is None or artifact.state is COMPLETE)

    def run(self, parcels: Sequence[Sequence[Any]]) -> list[list[Any]] | None:
        """The parcels of results; None, and nothing has happened, where this is not that run.

        Raises: as `Runner.run`, whose caller's part is the same.
        """
        artifact, captured, table = self.artifact, self.captured, self.table
        if self.drive.last is not self.last or (artifact is not None and artifact.state is not COMPLETE):
            return None
        inputs = parcels[0] if len(parcels) == 1 else list(itertools.chain(*parcels))
        if len(parcels) != self.n_parcels or len(inputs) != len(self.places):
            return None
        try:
            for value, (dtype, shape, frame, index) in zip(inputs, self.places):  # noqa: B905 - they are as many
                if value.__class__ is not ndarray or value.dtype is not dtype or value.shape != shape:
                    return None
                if frame is None:
                    table[index] = value
                else:
                    frame[...] = value
            self.statistics.sections_reused += 1
            if captured is not None:
                captured.artifact.take()
                captured.slot.replays += 1
            elif self.slot is not None:
                self.slot.eager_runs += 1
            calls = iter(self.calls)
            try:
                for call in calls:
                    call()
            except Exception as error:
                at = len(self.calls) - operator.length_hint(calls) - 1
                ours = located_call(self.program, self.last[1], captured, at, error, self.provider)
                raise ours from ours.__cause__
            finally:
                if captured is not None:
                    captured.artifact.end()
            self.statistics.runs += 1
            made = []
            for index, value, copied in self.results:
                if index != NO_SLOT:
                    value = table[index]
                elif copied:
                    value = value.copy()
                made.append(value)
            if self.leaving is None:
                return [made]
            return [[made[k] for k in numbers] for numbers in self.leaving]
        finally:
            table[:] = self.blank


def steady(runner: Runner, task: Task) -> Steady | None:
    """The run of a straight task that follows the one just made, if it is like it; None where runs like it need more
    than a `Steady` does."""
    context, slot = runner.context, runner.context.graph_slot
    drive = runner.roots.drive()
    if drive.last is None or drive.usual is None or runner.roots.value_inputs:
        return None
    section = drive.last[1]
    if section.tail is not None or section.results is None or context.ops is not None:
        return None
    captured = None if slot is None else section.captured.get(slot.name)
    if (slot is not None and captured is None) or not runner.provider.is_host:
        return None
    nbytes: list[int] = []
    for index, value, _ in section.results:
        found = value if index == NO_SLOT else section.exit.slots[index].spec
        if found.__class__ not in (np.ndarray, TensorSpec):
            return None
        nbytes.append(found.nbytes)
    ports, frames = runner.program.inputs, section.frames
    places = {k: (dtype, shape, frames.get(k), ports[k].slot) for k, dtype, shape in drive.usual}
    in_order = task.leaving == (tuple(range(len(nbytes))),)
    artifact = None if captured is None else captured.artifact
    launched = captured if captured is not None and captured.tokens else None
    return Steady(
        drive,
        drive.last,
        artifact,
        launched,
        len(task.receives),
        tuple(places[k] for k in task.arriving),
        runner.table.values,
        runner.table.blank,
        runner.statistics,
        slot,
        section.calls if launched is None else launched.steps,
        tuple(section.results),
        None if in_order else task.leaving,
        sum(TensorSpec(dtype, shape).nbytes for _, dtype, shape in drive.usual),
        sum(nbytes[k] for numbers in task.leaving for k in numbers),
        runner.program,
        runner.provider,
    )
