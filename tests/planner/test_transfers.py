"""Every value reaches each child that reads it exactly once, and nothing else moves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.planner.graph import PlanGraph
from hetero.planner.partition import partition_nodes
from hetero.planner.plan import CALLER, Parcel, Transfer
from hetero.planner.transfers import Boundary, boundaries, plan_transfers, static_bytes
from hetero.types import DataType, SequenceType, TensorType
from tests.planner.fakes import F32, graph, node


def plan(
    g: PlanGraph, groups: list[list[int]], children: list[int]
) -> tuple[list[Boundary], tuple[Parcel, ...], tuple[Transfer, ...]]:
    parts = boundaries(g, groups, children)
    return parts, *plan_transfers(parts, g.inputs, g.outputs, g.types)


def test_values_that_go_to_the_same_places_travel_together() -> None:
    g = graph(
        [node("A", "x", "a b"), node("B", "x", "c"), node("C", "a c", "d"), node("D", "b", "e")], "x", "d e"
    )
    parts, parcels, _ = plan(g, [[0, 1], [2], [3]], [0, 0, 1, 1])
    assert [p.inputs for p in parts] == [("x",), ("a", "c"), ("b",)]
    assert [p.outputs for p in parts] == [("a", "b", "c"), ("d",), ("e",)]
    assert parcels == (
        Parcel(0, CALLER, ("x",), (0,)),
        Parcel(1, 0, ("a", "b", "c"), (1,)),
        Parcel(2, 1, ("d",), (CALLER,)),
        Parcel(3, 2, ("e",), (CALLER,)),
    )


def test_a_value_that_two_partitions_of_a_child_read_moves_once() -> None:
    g = graph(
        [node("A", "x", "a"), node("B", "a", "b"), node("C", "b", "c"), node("D", "a c", "d")], "x", "d"
    )
    _, _, transfers = plan(g, [[0], [1], [2], [3]], [0, 1, 0, 1])
    assert [(t.value, t.source, t.destination) for t in transfers if t.value == "a"] == [("a", 0, 1)]


def test_a_value_kept_for_a_later_partition_of_its_child_does_not_move() -> None:
    g = graph([node("A", "x", "a k"), node("B", "a", "b"), node("C", "b k", "c")], "x", "c")
    parts, _, transfers = plan(g, [[0], [1], [2]], [0, 1, 0])
    assert parts[0].outputs == ("a", "k")
    assert parts[2].inputs == ("b", "k")
    assert "k" not in {t.value for t in transfers}


def test_an_output_that_others_read_too_goes_to_the_caller_as_well() -> None:
    g = graph([node("A", "x", "a"), node("B", "a", "b")], "x", "a b a")
    _, parcels, _ = plan(g, [[0], [1]], [0, 1])
    assert parcels[1] == Parcel(1, 0, ("a",), (CALLER, 1))


def test_inputs_and_initializers_that_are_outputs_stay_out_of_parcels() -> None:
    g = graph([node("A", "x w", "a")], "x unused", "x w a", {"w": 4})
    parts, parcels, transfers = plan(g, [[0]], [0])
    assert parts[0].constants == ("w",)
    assert parcels == (Parcel(0, CALLER, ("x",), (0,)), Parcel(1, 0, ("a",), (CALLER,)))
    assert {t.value for t in transfers} == {"x", "a"}


def test_a_graph_without_nodes_moves_nothing() -> None:
    assert plan(graph([], "x", "x"), [], []) == ([], (), ())


def test_bytes_are_known_where_the_extents_are() -> None:
    assert static_bytes(F32) == 24
    assert static_bytes(TensorType(DataType.FLOAT16, ())) == 2
    assert static_bytes(TensorType(DataType.FLOAT, ("n", 3))) is None
    assert static_bytes(TensorType(DataType.FLOAT, None)) is None
    assert static_bytes(TensorType(None, (2,))) is None
    assert static_bytes(TensorType(DataType.STRING, (2,))) is None
    assert static_bytes(SequenceType(F32)) is None
    assert static_bytes(None) is None


Case = tuple[PlanGraph, list[int]]


@st.composite
def placed_graphs(draw: st.DrawFn) -> Case:
    nodes = []
    values = ["x0", "x1", "w"]
    for i in range(draw(st.integers(0, 14))):
        reads = draw(st.lists(st.sampled_from(values), min_size=0, max_size=3))
        made = [f"v{i}_{k}" for k in range(draw(st.integers(1, 2)))]
        nodes.append(node("Op", " ".join(reads), " ".join(made), f"n{i}"))
        values += made
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    children = [draw(st.integers(0, 2)) for _ in nodes]
    return graph(nodes, "x0 x1", " ".join(outputs), {"w": 8}), children


@settings(max_examples=150, deadline=None)
@given(placed_graphs())
def test_running_the_parcels_brings_every_value_where_it_is_read_and_nothing_twice(case: Case) -> None:
    g, children = case
    groups = partition_nodes(g.predecessors(), children)
    parts, parcels, transfers = plan(g, groups, children)
    held: dict[int, set[str]] = {CALLER: set(g.inputs), 0: set(), 1: set(), 2: set()}
    needed = {(n, children[i]) for i, v in enumerate(g.nodes) for n in v.inputs if n != "w"}
    made_at = {n: children[i] for i, v in enumerate(g.nodes) for n in v.outputs}
    needed |= {(n, CALLER) for n in g.outputs if n in made_at}

    def deliver(producer: int, source: int) -> None:
        for parcel in parcels:
            if parcel.producer == producer:
                assert list(parcel.destinations) == sorted(set(parcel.destinations))
                for value in parcel.values:
                    assert value in held[source]
                    for place in parcel.destinations:
                        assert value not in held[place], f"{value} is at {place} already"
                        assert (value, place) in needed, f"nobody at {place} reads {value}"
                        held[place].add(value)

    deliver(CALLER, CALLER)
    for number, (part, group) in enumerate(zip(parts, groups, strict=True)):
        for i in group:
            for name in g.nodes[i].inputs:
                assert name == "w" or name in held[part.child]
            held[part.child].update(g.nodes[i].outputs)
        deliver(number, part.child)
    assert {n for n in g.outputs if n != "w"} <= held[CALLER]
    assert len({(t.value, t.destination) for t in transfers}) == len(transfers)
    assert [(t.value, t.destination) for t in transfers] == [
        (v, d) for p in parcels for v in p.values for d in p.destinations
    ]
    assert all(isinstance(t, Transfer) and t.nbytes == 24 for t in transfers if t.type == F32)
