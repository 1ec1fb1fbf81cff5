"""Shape classes: one plan for each, over the same children; a step runs by the first whose shapes fit it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetero.errors import OptionError, PlanError
from hetero.model.model import Model
from hetero.planner.check import symbols_of
from hetero.planner.placement import Candidate
from hetero.planner.plan import CALLER, Parcel, Plan, Variant
from hetero.planner.planner import Wishes, plan_model
from hetero.planner.transfers import transfers_of
from hetero.providers.base import ProviderConfig
from hetero.types import ValueType

_KEYS = ("when", "providers", "stages", "configuration", "overrides", "node_times")


@dataclass(frozen=True, slots=True)
class ShapeClass:
    """A class of steps: `when` as in Variant. `providers`: names, best first; None: all, in the plan's order."""

    name: str
    when: tuple[tuple[str, int, int | None], ...]
    providers: tuple[str, ...] | None
    wishes: Wishes


def shape_classes(given: Mapping[str, Mapping[str, Any]]) -> list[ShapeClass]:
    """Classes as a user writes them: {"decode": {"when": {"sequence": 1}, "providers": ["cpu", "sim:0"]}}.

    `when`: symbol -> its extent, or (least, most), where most may be None. The other keys are those of `hetero.plan`.
    Raises: OptionError for what cannot be meant.
    """
    found = []
    for name, options in given.items():
        what = f"shape class {name!r}"
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise OptionError(f"{what} is described by a dict, not {options!r}", operand="shape_classes")
        unknown = [key for key in options if key not in _KEYS]
        if unknown:
            raise OptionError(
                f"{what} has no option {unknown[0]!r}; there are: {', '.join(_KEYS)}", operand=str(unknown[0])
            )
        when = options.get("when")
        if not isinstance(when, Mapping) or not when:
            raise OptionError(f"{what} says `when` it holds: symbol -> extent, not {when!r}", operand="when")
        bounds = tuple((str(symbol), *_bounds(what, symbol, extent)) for symbol, extent in when.items())
        order = options.get("providers")
        if isinstance(order, str) or not (order is None or all(isinstance(p, str) for p in order)):
            raise OptionError(f"providers of {what} are a list of names, not {order!r}", operand="providers")
        wishes = Wishes(
            options.get("stages"),
            options.get("configuration"),
            options.get("overrides") or {},
            options.get("node_times") or {},
            {symbol: least if most is None else most for symbol, least, most in bounds},
        )
        found.append(ShapeClass(name, bounds, None if order is None else tuple(order), wishes))
    return found


def _bounds(what: str, symbol: object, extent: object) -> tuple[int, int | None]:
    pair = extent if isinstance(extent, tuple | list) else (extent, extent)
    if len(pair) == 2:
        least, most = pair
        if type(least) is int and least >= 0 and (most is None or (type(most) is int and most >= least)):
            return least, most
    raise OptionError(
        f"{what}: the extent of {symbol!r} is a number or a pair (least, most), not {extent!r}",
        operand="when",
    )


def plan_classes(
    model: Model,
    providers: Sequence[Candidate],
    classes: Sequence[ShapeClass],
    *,
    strict: bool = False,
    wishes: Wishes | None = None,
) -> Plan:
    """`plan_model`, with a variant for each of `classes`.

    A call of a function that one of the plans has no kernel for is inlined for all of them.
    Raises: PlanError for a symbol that is no extent of an input, and an unknown provider; what plan_model raises.
    """
    names = [p.name for p in providers]
    orders: list[list[int]] = []
    for one in classes:
        for name in one.providers or ():
            if name not in names:
                raise PlanError(
                    f"shape class {one.name!r} names the provider {name!r}; there are: {', '.join(names)}",
                    device=name,
                )
        orders.append([names.index(name) for name in one.providers or names])
    while True:
        base = plan_model(model, providers, strict=strict, wishes=wishes)
        plans = [
            plan_model(model, [providers[k] for k in order], strict=strict, wishes=one.wishes)
            for one, order in zip(classes, orders, strict=True)
        ]
        nodes = len(model.ir.graph)
        if all(sum(not p.path for p in plan.placements) == nodes for plan in (base, *plans)):
            break  # none of them has inlined what an earlier one kept
    known = symbols_of(base) if classes else {}
    for one in classes:
        for symbol, _, _ in one.when:
            if symbol not in known:
                raise PlanError(
                    f"shape class {one.name!r}: {symbol!r} is no extent of an input; these are: {sorted(known)}",
                    operand=symbol,
                )
    moved = [onto(plan, base.providers, order) for plan, order in zip(plans, orders, strict=True)]
    held = [_union(plan.weights[child] for plan in (base, *moved)) for child in range(len(names))]
    variants = tuple(Variant(c.name, c.when, plan) for c, plan in zip(classes, moved, strict=True))
    return replace(base, weights=tuple(held), variants=variants)


def _union(rows: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for row in rows for name in row}))


def onto(plan: Plan, providers: tuple[ProviderConfig, ...], order: Sequence[int]) -> Plan:
    """A plan over some of `providers` as one over all of them; `order[k]`: where provider k of `plan` is there. Its
    variants stay as they are."""

    def place(child: int) -> int:
        return CALLER if child == CALLER else order[child]

    partitions = tuple(replace(p, child=order[p.child]) for p in plan.partitions)
    parcels: list[Parcel] = [
        replace(p, destinations=tuple(sorted(map(place, p.destinations)))) for p in plan.parcels
    ]
    types: dict[str, ValueType | None] = {p.name: p.type for p in plan.inputs}
    for partition in partitions:
        types.update((p.name, p.type) for p in partition.program.outputs)
    weights: list[tuple[str, ...]] = [()] * len(providers)
    for k, names in enumerate(plan.weights):
        weights[order[k]] = names
    return replace(
        plan,
        providers=providers,
        partitions=partitions,
        parcels=tuple(parcels),
        transfers=transfers_of(parcels, [p.child for p in partitions], types),
        weights=tuple(weights),
        stages=tuple(
            sorted((replace(s, child=order[s.child]) for s in plan.stages), key=lambda s: (s.number, s.child))
        ),
    )
