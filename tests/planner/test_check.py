"""A plan with any reference broken is refused, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hetero.errors import PlanError
from hetero.planner.check import check_plan
from hetero.planner.plan import CALLER, Plan, Stage
from hetero.program.program import NO_SLOT, Port
from tests.planner.fakes import F32, FakeProvider, graph, node, plan_of

G = graph(
    [
        node("my::A", "x w", "a"),
        node("my::B", "a", "b"),
        node("my::A", "b a", "c"),
        node("my::B", "c b", "d"),
    ],
    "x",
    "d",
    {"w": 4},
)
PLAN = plan_of(G, [FakeProvider("g", ["my::A"]), FakeProvider("c")])


def with_parcel(plan: Plan, index: int, **changes: object) -> Plan:
    parcels = list(plan.parcels)
    parcels[index] = replace(parcels[index], **changes)  # type: ignore[arg-type]
    return replace(plan, parcels=tuple(parcels))


def with_partition(plan: Plan, index: int, **changes: object) -> Plan:
    partitions = list(plan.partitions)
    partitions[index] = replace(partitions[index], **changes)  # type: ignore[arg-type]
    return replace(plan, partitions=tuple(partitions))


def with_placement(plan: Plan, index: int, **changes: object) -> Plan:
    placements = list(plan.placements)
    placements[index] = replace(placements[index], **changes)  # type: ignore[arg-type]
    return replace(plan, placements=tuple(placements))


def test_what_the_planner_makes_is_sound() -> None:
    check_plan(PLAN)
    assert [(p.producer, p.values, p.destinations) for p in PLAN.parcels] == [
        (CALLER, ("x",), (0,)),
        (0, ("a",), (1,)),
        (1, ("b",), (0,)),
        (2, ("c",), (1,)),
        (3, ("d",), (CALLER,)),
    ]


BROKEN: list[tuple[str, Callable[[Plan], Plan]]] = [
    ("two providers of one name", lambda p: replace(p, providers=(p.providers[0], p.providers[0]))),
    ("lists of weights", lambda p: replace(p, weights=p.weights[:1])),
    ("says it is 7", lambda p: with_partition(p, 1, id=7)),
    ("on child 2 of 2", lambda p: with_partition(p, 1, child=2)),
    ("on child -1 of 2", lambda p: with_partition(p, 1, child=-1)),
    ("does not hold", lambda p: replace(p, weights=((), ()))),
    ("parcel 0 says", lambda p: with_parcel(p, 0, id=1)),
    ("which does not exist", lambda p: with_parcel(p, 1, producer=4)),
    ("holds nothing", lambda p: with_parcel(p, 1, values=())),
    ("goes nowhere", lambda p: with_parcel(p, 1, destinations=())),
    ("cannot go to 0", lambda p: with_parcel(p, 1, destinations=(0,))),
    ("cannot go to -1", lambda p: with_parcel(p, 0, destinations=(CALLER, 0))),
    ("cannot go to 2", lambda p: with_parcel(p, 1, destinations=(1, 2))),
    ("not sorted", lambda p: with_parcel(p, 1, destinations=(1, CALLER))),
    ("its producer does not make", lambda p: with_parcel(p, 1, values=("b",))),
    ("a second time", lambda p: with_parcel(p, 1, values=("a", "a"))),
    ("no parcel brings", lambda p: with_parcel(p, 1, destinations=(CALLER,))),
    ("where nobody reads it", lambda p: with_parcel(p, 1, destinations=(CALLER, 1))),
    ("not brought to the caller", lambda p: replace(p, parcels=p.parcels[:4])),
    ("two inputs of one name", lambda p: replace(p, inputs=p.inputs * 2)),
    ("is there already", lambda p: replace(p, inputs=(*p.inputs, Port("d", NO_SLOT, F32)))),
    (
        "nothing before it makes",
        lambda p: replace(p, inputs=(), parcels=tuple(replace(q, id=q.id - 1) for q in p.parcels[1:])),
    ),
    (
        "nothing before it makes",
        lambda p: replace(
            p,
            partitions=tuple(replace(q, id=k) for k, q in enumerate(reversed(p.partitions))),
            parcels=tuple(
                replace(q, producer=CALLER if q.producer == CALLER else 3 - q.producer) for q in p.parcels
            ),
        ),
    ),
    ("no provider of the plan", lambda p: with_placement(p, 0, provider="x")),
    ("placed twice", lambda p: with_placement(p, 1, node_index=0)),
    ("not placed on g", lambda p: with_placement(p, 0, provider="c")),
    ("not placed on g", lambda p: replace(p, placements=p.placements[1:])),
    (
        "in no partition",
        lambda p: replace(p, placements=(*p.placements, replace(p.placements[0], node_index=9))),
    ),
    ("in stage 1, which is not on g", lambda p: with_placement(p, 0, stage=1)),
    ("stages are not in order", lambda p: replace(p, stages=(Stage(1, 0, 5, 5), Stage(0, 1, 5, 5)))),
    (
        "in stage 0, which is not on g",
        lambda p: replace(with_placement(p, 0, stage=0), stages=(Stage(0, 1, 5, 5),)),
    ),
]


@pytest.mark.parametrize(("message", "broken"), BROKEN, ids=[f"{k}-{m}" for k, (m, _) in enumerate(BROKEN)])
def test_a_broken_reference_is_refused(message: str, broken: Callable[[Plan], Plan]) -> None:
    with pytest.raises(PlanError, match=message):
        check_plan(broken(PLAN))


def test_an_invalid_program_is_refused_with_its_partition() -> None:
    program = replace(PLAN.partitions[1].program, n_slots=1)
    with pytest.raises(PlanError, match="partition 1: "):
        check_plan(with_partition(PLAN, 1, program=program))


def test_a_plan_without_nodes_is_sound() -> None:
    check_plan(plan_of(graph([], "x", "x w", {"w": 2}), [FakeProvider("c")]))
