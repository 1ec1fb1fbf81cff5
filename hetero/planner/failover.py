"""Failover: a plan is made anew over the providers that are left, as planning would have made it without the others."""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from hetero.errors import OptionError, PlanError
from hetero.model.model import Model
from hetero.planner.classes import ShapeClass, onto, plan_classes
from hetero.planner.homes import home_of
from hetero.planner.placement import Candidate
from hetero.planner.plan import LOST, Placement, Plan, Rejection
from hetero.planner.planner import Wishes, graph_of


def replanned(
    model: Model,
    plan: Plan,
    left: Sequence[Candidate],
    classes: Sequence[ShapeClass] = (),
    wishes: Wishes | None = None,
    states: Mapping[str, str] | None = None,
) -> Plan:
    """A plan of `model` over the providers in `left`, best first, with children numbered as in `plan`, which was made
    of the same `classes` and `wishes` with other providers as well. What these say of the others is left out.

    `states`: input -> output that is its next value, where both are on one child; they are on one again.
    Raises: UnsupportedNodeError where none of `left` takes a node, with the reason of each; PlanError where none takes
    all that a state's child has to do; what planning raises.
    """
    names = tuple(p.name for p in plan.providers)
    staying = {p.name for p in left}
    order = [names.index(p.name) for p in left]
    wished = _remaining(wishes or Wishes(), staying, names)
    kept = [
        replace(
            one,
            providers=tuple(p for p in one.providers or () if p in staying) or None,
            wishes=_remaining(one.wishes, staying, names),
        )
        for one in classes
    ]

    def made(pins: Mapping[str, str]) -> Plan:
        pinned = [replace(one, wishes=_pinned(one.wishes, pins)) for one in kept]
        fresh = plan_classes(model, left, pinned, wishes=_pinned(wished, pins))
        variants = tuple(replace(v, plan=onto(v.plan, plan.providers, order)) for v in fresh.variants)
        return replace(onto(fresh, plan.providers, order), variants=variants)

    found, pins = made({}), dict[str, str]()
    for read, output in (states or {}).items():
        if home_of(found, read, output) is not None:
            continue
        nodes = [n.op.name for n in graph_of(model).nodes if read in n.inputs or output in n.outputs]
        refused = []
        for provider in (p.name for p in left):
            wanted = {**pins, **dict.fromkeys(map(glob.escape, nodes), provider)}
            try:
                tried = made(wanted)
            except (PlanError, OptionError) as why:
                refused.append(f"{provider}: {why.message}")
                continue
            if home_of(tried, read, output) is not None:
                found, pins = tried, wanted
                break
        else:
            raise PlanError(
                f"no provider that is left keeps the state {read} from step to step: {'; '.join(refused)}",
                operand=read,
            )
    return _told(found, plan, staying)


def _remaining(wishes: Wishes, staying: Collection[str], names: tuple[str, ...]) -> Wishes:
    """The wishes without those that are about a provider which is lost."""
    overrides = {pattern: name for pattern, name in wishes.overrides.items() if name in staying}
    return replace(wishes, overrides=overrides, devices=names)


def _pinned(wishes: Wishes, pins: Mapping[str, str]) -> Wishes:
    return replace(wishes, overrides={**pins, **wishes.overrides}) if pins else wishes


def _told(plan: Plan, before: Plan, staying: Collection[str]) -> Plan:
    """`plan` with what was known of the providers that are not there any more, their loss included."""
    base, *others = [
        replace(new, placements=_placements(new, old, staying))
        for new, old in zip(_alone(plan), _alone(before), strict=True)
    ]
    variants = tuple(replace(v, plan=p) for v, p in zip(plan.variants, others, strict=True))
    return replace(base, variants=variants)


def _alone(plan: Plan) -> list[Plan]:
    return [replace(plan, variants=()), *(v.plan for v in plan.variants)]


def _placements(plan: Plan, before: Plan, staying: Collection[str]) -> tuple[Placement, ...]:
    old = {(p.path, p.node): p for p in before.placements}
    lost = sorted({p.provider for p in before.placements} - set(staying))
    unknown = tuple(
        Rejection(name, LOST) for name in lost[:1]
    )  # a function was inlined, whose call was there
    found = []
    for placement in plan.placements:
        was = old.get((placement.path, placement.node))
        if was is None:
            why = unknown
        else:
            why = tuple(r for r in was.rejected if r.provider not in staying)
            why += () if was.provider in staying else (Rejection(was.provider, LOST),)
        found.append(replace(placement, rejected=(*why, *placement.rejected)))
    return tuple(found)


def degraded(plan: Plan) -> dict[str, list[str]]:
    """Providers that were lost -> those that have their nodes now, in the plan's order."""
    places = {p.name: k for k, p in enumerate(plan.providers)}
    found: dict[str, set[str]] = {}
    for section in plan.sections:
        for placement in section.placements:
            for rejection in placement.rejected:
                if rejection.reason == LOST:
                    found.setdefault(rejection.provider, set()).add(placement.provider)
    return {lost: sorted(names, key=places.__getitem__) for lost, names in found.items()}
