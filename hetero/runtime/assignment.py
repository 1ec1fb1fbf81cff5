"""One child's part of a plan: what each of its partitions receives, keeps, drops and sends."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hetero.planner.plan import Plan
from hetero.program.program import Program


@dataclass(frozen=True, slots=True)
class Send:
    """Values that leave together (a parcel of the plan)."""

    parcel: int
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One partition as its child sees it.

    `receives`: parcels that arrive with the call, in this order, and the names of the values in each (those of other
    partitions of this child included: they stay resident until their last reader). `drops`: names no later partition
    of this child reads.
    """

    partition: int
    program: Program
    receives: tuple[Send, ...]
    sends: tuple[Send, ...]
    drops: tuple[str, ...]
    last: bool
    alone: bool = False
    """Whether the child has no other task in a step, so that nothing needs to be kept until a later one."""
    input_names: tuple[str, ...] = field(init=False)
    output_names: tuple[str, ...] = field(init=False)
    straight: bool = field(init=False)
    """Whether what arrives are the inputs, each once, and what leaves are outputs."""
    arriving: tuple[int, ...] = field(init=False)
    """Of a straight task: which of the inputs what arrives is, in its order."""
    leaving: tuple[tuple[int, ...], ...] = field(init=False)
    """Of a straight task: which of the outputs each parcel that leaves holds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_names", tuple(p.name for p in self.program.inputs))
        object.__setattr__(self, "output_names", tuple(p.name for p in self.program.outputs))
        inputs = {name: k for k, name in enumerate(self.input_names)}
        outputs = {name: k for k, name in enumerate(self.output_names)}
        arriving = tuple([inputs.get(name, -1) for receive in self.receives for name in receive.values])
        leaving = tuple([tuple([outputs.get(name, -1) for name in send.values]) for send in self.sends])
        whole = sorted(arriving) == list(range(len(self.input_names))) and -1 not in itertools.chain(*leaving)
        object.__setattr__(self, "straight", self.alone and whole)
        object.__setattr__(self, "arriving", arriving)
        object.__setattr__(self, "leaving", leaving)


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """All of one child's tasks, in the plan's order, and the initializers it holds."""

    child: int
    tasks: dict[int, Task]
    weights: tuple[str, ...]


def assignment(plan: Plan, child: int) -> Assignment:
    """The part of `plan` that child `child` runs, its variants' included; linear in the plan."""
    tasks = {k: task for section in plan.sections for k, task in _tasks(section, child).items()}
    return Assignment(child, tasks, plan.weights[child])


def _tasks(plan: Plan, child: int) -> dict[int, Task]:
    mine = [p for p in plan.partitions if p.child == child]
    first_reader: dict[str, int] = {}
    last_reader: dict[str, int] = {}
    for partition in mine:
        for port in partition.program.inputs:
            first_reader.setdefault(port.name, partition.id)
            last_reader[port.name] = partition.id
    arriving: dict[int, list[Send]] = {p.id: [] for p in mine}
    leaving: dict[int, list[Send]] = {p.id: [] for p in mine}
    for parcel in plan.parcels:
        if child in parcel.destinations:
            reader = min(first_reader[v] for v in parcel.values if v in first_reader)
            arriving[reader].append(Send(parcel.id, parcel.values))
        if parcel.producer in leaving:
            leaving[parcel.producer].append(Send(parcel.id, parcel.values))
    tasks: dict[int, Task] = {}
    for partition in mine:
        known = {port.name for port in partition.program.inputs}
        made = {port.name for port in partition.program.outputs}
        drops = [n for n in sorted(known | made) if last_reader.get(n, partition.id) == partition.id]
        tasks[partition.id] = Task(
            partition.id,
            partition.program,
            tuple(arriving[partition.id]),
            tuple(leaving[partition.id]),
            tuple(drops),
            partition is mine[-1],
            len(mine) == 1,
        )
    return tasks
