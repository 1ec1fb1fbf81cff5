"""Who sends what to whom over channels, worked out once for a plan."""

from __future__ import annotations

from dataclasses import dataclass

from hetero.planner.plan import CALLER, Plan
from hetero.runtime.assignment import assignment


@dataclass(frozen=True, slots=True, eq=False)
class ChildRoutes:
    """One child's part.

    `tasks`: its partitions in the plan's order, with the parcels each receives. `sends`: per partition, its parcels
    with their destinations. `silent`: whether a partition sends nothing, so that its end has to be told. `peers`:
    the driver, and children that it sends to or receives from.
    """

    tasks: tuple[tuple[int, tuple[int, ...]], ...]
    sends: dict[int, tuple[tuple[int, tuple[int, ...]], ...]]
    silent: bool
    peers: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DriverRoutes:
    """The driver's part.

    `begins`: children that it begins a step with, since they get something from the caller or wait for nothing; the
    others begin with the first parcel of a child. `given`: parcels of the caller with the children they go to.
    `wanted`: parcels that come back. `silent`: children that tell when they are through.
    """

    children: tuple[int, ...]
    begins: tuple[int, ...]
    given: dict[int, tuple[int, ...]]
    wanted: tuple[int, ...]
    silent: tuple[int, ...]


def child_routes(plan: Plan, child: int) -> ChildRoutes:
    """What child `child` needs to know. Shape classes have no channels: they are left out."""
    plan = plan.sections[0]
    producers = {p.id: p.child for p in plan.partitions}
    destinations = {p.id: p.destinations for p in plan.parcels}
    tasks = assignment(plan, child).tasks
    peers = {CALLER}
    for parcel in plan.parcels:
        maker = producers.get(parcel.producer, CALLER)
        if maker == child:
            peers.update(parcel.destinations)
        elif child in parcel.destinations:
            peers.add(maker)
    sends = {k: tuple((s.parcel, destinations[s.parcel]) for s in task.sends) for k, task in tasks.items()}
    return ChildRoutes(
        tuple((k, tuple(r.parcel for r in task.receives)) for k, task in tasks.items()),
        sends,
        not all(sends.values()),
        tuple(sorted(peers - {child})),
    )


def driver_routes(plan: Plan) -> DriverRoutes:
    """What the driver needs to know."""
    plan = plan.sections[0]
    routes = {k: child_routes(plan, k) for k in sorted({p.child for p in plan.partitions})}
    given = {p.id: p.destinations for p in plan.parcels if p.producer == CALLER}
    fed = {child for destinations in given.values() for child in destinations}
    return DriverRoutes(
        tuple(routes),
        tuple(k for k, r in routes.items() if k in fed or not r.tasks[0][1]),
        given,
        tuple(p.id for p in plan.parcels if CALLER in p.destinations),
        tuple(k for k, r in routes.items() if r.silent),
    )
