"""Who is called with which parcels, worked out once for a plan."""

from __future__ import annotations

from dataclasses import dataclass

from hetero.planner.plan import CALLER, Plan
from hetero.runtime.assignment import assignment


@dataclass(frozen=True, slots=True)
class Only:
    """The one partition of a plan, and the values of each parcel that it gets from the caller and sends back.

    `returns`: whether these are the plan's outputs, in their order, in one parcel.
    """

    child: int
    partition: int
    receives: tuple[tuple[str, ...], ...]
    sends: tuple[tuple[str, ...], ...]
    returns: bool


class Routes:
    """For each partition, in the order of calls, the parcels it receives and those it sends; which come from the
    caller, and which go there: `given` and `taken` are their numbers, each with the names of its values, and `returned`
    the outputs among the latter, in the plan's order, each with its parcel and its place there. `only`: the same for a
    plan of one partition, ready to use."""

    def __init__(self, plan: Plan) -> None:
        children = sorted({p.child for p in plan.partitions})
        tasks = {k: task for child in children for k, task in assignment(plan, child).tasks.items()}
        self.output_names = tuple(p.name for p in plan.outputs)
        self.from_caller = tuple(p for p in plan.parcels if p.producer == CALLER)
        self.to_caller = tuple(p for p in plan.parcels if CALLER in p.destinations)
        self.given = tuple((p.id, tuple(p.values)) for p in self.from_caller)
        self.taken = tuple((p.id, tuple(p.values)) for p in self.to_caller)
        places = {name: (parcel, k) for parcel, names in self.taken for k, name in enumerate(names)}
        self.returned = tuple((name, *places[name]) for name in self.output_names if name in places)
        self.calls = tuple(
            (
                partition,
                tuple(s.parcel for s in tasks[partition.id].receives),
                tuple(s.parcel for s in tasks[partition.id].sends),
            )
            for partition in plan.partitions
        )
        self.only = self._only()

    def _only(self) -> Only | None:
        """The plan's one partition, where it takes all of the caller's parcels and sends to nobody else."""
        if len(self.calls) != 1:
            return None
        ((partition, receives, sends),) = self.calls
        given, taken = dict(self.given), dict(self.taken)
        if set(receives) != given.keys() or set(sends) != taken.keys():
            return None
        leaving = tuple(taken[parcel] for parcel in sends)
        return Only(
            partition.child,
            partition.id,
            tuple(given[parcel] for parcel in receives),
            leaving,
            leaving == (self.output_names,),
        )
