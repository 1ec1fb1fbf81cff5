"""Where bound state lies under a plan: on the child that reads it and makes what comes next."""

from __future__ import annotations

from collections.abc import Collection

from hetero.planner.plan import CALLER, Plan
from hetero.program.program import has_port


def home_of(plan: Plan, read: str, made: str) -> int | None:
    """The child that alone reads input `read`, and alone makes output `made`, in every variant of the plan; None where
    there is none, so that the value has to be carried from step to step."""
    partitions = [p for section in plan.sections for p in section.partitions]
    readers = {p.child for p in partitions if has_port(p.program.inputs, read)}
    makers = {p.child for p in partitions if has_port(p.program.outputs, made)}
    return next(iter(readers)) if len(readers) == 1 and readers == makers else None


def withheld(plan: Plan, outputs: Collection[str]) -> tuple[tuple[int, str], ...]:
    """(parcel, name) of those of `outputs` that need not leave their child, since only the caller would get them."""
    return tuple(
        (parcel.id, name)
        for section in plan.sections
        for parcel in section.parcels
        if tuple(parcel.destinations) == (CALLER,)
        for name in parcel.values
        if name in outputs
    )
