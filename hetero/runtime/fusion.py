"""Fusion, the pure part: elementwise instructions that belong together are put next to each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hetero.kernels.tape_ops import LOWERINGS
from hetero.program.program import NO_SLOT, Dispatch, Instruction, Program, marked
from hetero.types import DataType, TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """A program, and its runs: `until[k]` is where the run ends that instruction k is in, for all but a run's last."""

    program: Program
    until: dict[int, int] = field(default_factory=dict)


def fuse(program: Program) -> Fused:
    """The same instructions in an order in which those that one tape may hold stand in a row. Linear.

    A run's instructions are elementwise, declared float32 of one shape, and each reads or feeds another one. They are
    moved towards the end, at most to the first instruction that needs a result of theirs; all others keep their order.
    """
    candidates = {k for k, i in enumerate(program.instructions) if _fits(i)}
    runs = _schedule(program, candidates)
    alone = {run[0] for run in runs or () if len(run) == 1}
    if runs is None or not candidates - alone:
        return Fused(program)
    runs = _schedule(program, candidates - alone)  # which leaves single ones where they were
    assert runs is not None, "fewer candidates make no cycle"
    order = [k for run in runs for k in run]
    until: dict[int, int] = {}
    at = 0
    for run in runs:
        until.update(dict.fromkeys(range(at, at + len(run) - 1), at + len(run)))
        at += len(run)
    if order == list(range(len(order))):
        return Fused(program, until)
    outputs = {p.slot for p in program.outputs}
    instructions = marked([program.instructions[k] for k in order], outputs)
    return Fused(replace(program, instructions=instructions), until)


def uses_tapes(program: Program) -> bool:
    """Whether an instruction of the program, or of a body in it, may be run by a tape."""
    return any(
        (i.op.domain, i.op.op_type) in LOWERINGS or any(map(uses_tapes, i.op.bodies().values()))
        for i in program.instructions
    )


def _fits(instruction: Instruction) -> bool:
    if instruction.dispatch is not Dispatch.BACKEND or len(instruction.outputs) != 1:
        return False
    type_ = instruction.types[0]
    return (
        (instruction.op.domain, instruction.op.op_type) in LOWERINGS
        and isinstance(type_, TensorType)
        and type_.dtype == DataType.FLOAT
        and type_.shape is not None
        and None not in type_.shape
    )


def _schedule(program: Program, candidates: set[int]) -> list[list[int]] | None:
    """Instructions in their new order, as runs (of one instruction where it is no candidate); None where what is
    declared contradicts itself, so that two runs would need each other."""
    schedule = _Schedule(program, candidates)
    for k, instruction in enumerate(program.instructions):
        if k in candidates:
            schedule.postpone(k)
            continue
        needed = schedule.pending if instruction.dispatch is Dispatch.CONTROL else schedule.makers(k)
        for maker in list(needed):
            if not schedule.flush(maker):
                return None
        schedule.runs.append([k])
    for k in list(schedule.pending):
        if not schedule.flush(k):
            return None
    return schedule.runs


class _Schedule:
    """Candidates wait in `pending` until somebody needs one; then it goes with all that are connected to it."""

    def __init__(self, program: Program, candidates: set[int]) -> None:
        self.program = program
        self.pending: dict[int, list[int]] = {}
        """By instruction: its neighbours, makers or readers of the same shape."""
        self.runs: list[list[int]] = []
        self._maker = {
            slot: k for k in candidates for slot in program.instructions[k].outputs if slot != NO_SLOT
        }

    def makers(self, k: int) -> Iterator[int]:
        """The pending instructions whose results instruction `k` reads."""
        for slot in self.program.instructions[k].inputs:
            maker = self._maker.get(slot)
            if maker in self.pending:
                yield maker

    def postpone(self, k: int) -> None:
        types = self.program.instructions
        near = [m for m in self.makers(k) if types[m].types[0] == types[k].types[0]]
        self.pending[k] = near
        for maker in near:
            self.pending[maker].append(k)

    def flush(self, k: int) -> bool:
        """Emit the run of `k`, after those that it needs. False where they need each other."""
        stack = [] if k not in self.pending else [self._opened(k)]
        opened = {k for run, _ in stack for k in run}
        while stack:
            run, needed = stack[-1]
            other = next((m for m in needed if m in self.pending and m not in run), None)
            if other is None:
                self.runs.append(sorted(run))
                for member in run:
                    del self.pending[member]
                stack.pop()
            elif other in opened:
                return False
            else:
                stack.append(self._opened(other))
                opened |= stack[-1][0]
        return True

    def _opened(self, k: int) -> tuple[set[int], Iterator[int]]:
        """The run of `k`, and what it needs, itself included."""
        run, todo = {k}, [k]
        while todo:
            for near in self.pending[todo.pop()]:
                if near not in run:
                    run.add(near)
                    todo.append(near)
        members = sorted(run)
        return run, (maker for member in members for maker in self.makers(member))
