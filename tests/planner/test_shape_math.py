"""Shape arithmetic is recognised by what it is computed from, and never causes a transfer of its own."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.planner.graph import PlanGraph
from hetero.planner.shape_math import LIMIT, settle, shape_arithmetic
from hetero.program.assemble import LoweredNode
from hetero.types import DataType, TensorType
from tests.planner.fakes import F32, graph, ints, node


def shape_nodes(g: PlanGraph) -> set[int]:
    return shape_arithmetic(g)[0]


def test_a_chain_from_shape_and_small_constants_is_shape_arithmetic() -> None:
    g = graph(
        [
            node("Shape", "x", "s"),
            node("Gather", "s k", "d"),
            node("Mul", "d k", "m"),
            node("Concat", "m d", "t"),
            node("Reshape", "x t", "y"),
        ],
        "x",
        "y",
        {"k": 1},
        {"s": ints(4), "d": ints(1), "m": ints(1), "t": ints(2)},
    )
    assert shape_nodes(g) == {0, 1, 2, 3}


def test_values_of_inputs_floats_and_large_constants_are_not() -> None:
    g = graph(
        [
            node("Add", "n k", "a"),  # reads a graph input's values
            node("Shape", "x", "s"),
            node("Cast", "s", "f"),  # makes floats
            node("Gather", "big s", "g"),  # reads a large constant
            node("Add", "w k", "h"),  # a float constant
        ],
        "n x",
        "a f g h",
        {"k": 1, "big": LIMIT + 1, "w": 1},
        {"n": ints(1), "a": ints(1), "s": ints(2), "g": ints(2), "w": TensorType(DataType.FLOAT, (1,))},
    )
    assert shape_nodes(g) == {1}


def test_operations_that_may_grow_need_a_known_size() -> None:
    nodes = [node("Size", "x", "n"), node("Range", "zero n one", "r")]
    constants = {"zero": 1, "one": 1}
    assert shape_nodes(graph(nodes, "x", "r", constants, {"n": ints(), "r": ints("n")})) == {0}
    assert shape_nodes(graph(nodes, "x", "r", constants, {"n": ints(), "r": ints(6)})) == {0, 1}
    assert shape_nodes(graph(nodes, "x", "r", constants, {"n": ints(), "r": ints(LIMIT + 1)})) == {0}


def test_sizes_that_inference_lost_are_bounded_by_the_operands() -> None:
    nodes = [node("Shape", "x", "s"), node("Slice", "s a b", "t"), node("Concat", "t t", "u")]
    types = {"s": ints(None), "t": ints(None), "u": TensorType(DataType.INT64, None)}
    assert shape_nodes(graph(nodes, "x", "u", {"a": 1, "b": 1}, types)) == {0, 1, 2}
    wide = [
        *nodes,
        *(node("Mul", "u u", f"m{i}") if i == 0 else node("Mul", f"m{i - 1} u", f"m{i}") for i in range(3)),
    ]
    types.update({f"m{i}": ints(None) for i in range(3)})
    assert shape_nodes(graph(wide, "x", "m2", {"a": 1, "b": 1}, types)) == {0, 1, 2}


def test_an_operation_of_another_domain_is_not_shape_arithmetic() -> None:
    assert shape_nodes(graph([node("my::Shape", "x", "s")], "x", "s", types={"s": ints(2)})) == set()


def crossings(g: PlanGraph, children: list[int | None]) -> int:
    """Distinct (value, destination child) pairs, constants left out."""
    home = {n: children[i] for i, v in enumerate(g.nodes) for n in v.outputs}
    return len(
        {
            (n, children[i])
            for i, v in enumerate(g.nodes)
            for n in v.inputs
            if n not in g.constants and home.get(n, -1) != children[i]
        }
    )


def settled(g: PlanGraph, fixed: list[int | None], n_children: int = 2) -> list[int | None]:
    shapes = shape_nodes(g)
    children = [None if i in shapes else c for i, c in enumerate(fixed)]
    settle(g, shapes, children, [range(n_children) for _ in shapes])
    return children


def test_a_shape_stays_with_the_large_value_and_the_rest_joins_the_reader() -> None:
    g = graph(
        [
            node("Conv", "x", "y"),
            node("Shape", "y", "s"),
            *(node("Gather", "s k", f"d{i}") for i in range(3)),
            *(node("Expand", f"w d{i}", f"e{i}") for i in range(3)),
        ],
        "x w",
        "e0 e1 e2",
        {"k": 1},
        {"s": ints(2), **{f"d{i}": ints(1) for i in range(3)}},
    )
    children = settled(g, [0, None, None, None, None, 1, 1, 1])
    assert children == [0, 0, 1, 1, 1, 1, 1, 1]


def test_several_shapes_are_joined_before_they_cross() -> None:
    g = graph(
        [
            *(node("Conv", f"x{i}", f"y{i}") for i in range(3)),
            *(node("Shape", f"y{i}", f"s{i}") for i in range(3)),
            node("Concat", "s0 s1 s2", "t"),
            node("Expand", "w t", "e"),
        ],
        "x0 x1 x2 w",
        "e",
        types={"t": ints(6), **{f"s{i}": ints(2) for i in range(3)}},
    )
    assert settled(g, [0, 0, 0, None, None, None, None, 1]) == [0, 0, 0, 0, 0, 0, 0, 1]


def test_the_shape_of_a_graph_input_is_taken_where_the_input_is_read() -> None:
    g = graph(
        [
            node("Shape", "x", "s"),
            node("Shape", "x", "u"),
            node("Concat", "s u", "t"),
            node("Conv", "x", "y"),
            node("Expand", "w t", "e"),
        ],
        "x w",
        "y e",
        types={"s": ints(2), "u": ints(2), "t": ints(4)},
    )
    assert settled(g, [None, None, None, 1, 1]) == [1] * 5


def test_the_shape_of_an_input_that_nobody_reads_goes_where_it_is_needed() -> None:
    g = graph(
        [
            node("Shape", "x", "s"),
            node("Shape", "x", "u"),
            node("Concat", "s u", "t"),
            node("Expand", "w t", "e"),
        ],
        "x w",
        "e",
        types={"s": ints(2), "u": ints(2), "t": ints(4)},
    )
    assert settled(g, [None, None, None, 1]) == [1] * 4


def test_shape_arithmetic_without_neighbours_goes_to_the_first_child_that_may_have_it() -> None:
    g = graph([node("Shape", "x", "s")], "x", "s", types={"s": ints(2)})
    children: list[int | None] = [None]
    settle(g, {0}, children, [[1, 2]])
    assert children == [1]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_shape_arithmetic_causes_no_transfer_in_a_graph_that_is_otherwise_on_one_child(
    data: st.DataObject,
) -> None:
    nodes: list[LoweredNode] = []
    floats, small = ["x"], list[str]()
    for i in range(data.draw(st.integers(1, 14))):
        kind = data.draw(st.sampled_from(["Conv", "Shape", "Add", "Reshape"]))
        if kind == "Conv":
            nodes.append(node(kind, data.draw(st.sampled_from(floats)), f"v{i}"))
            floats.append(f"v{i}")
        elif kind == "Shape" or not small:
            nodes.append(node("Shape", data.draw(st.sampled_from(floats)), f"v{i}"))
            small.append(f"v{i}")
        elif kind == "Add":
            a, b = data.draw(st.sampled_from(small)), data.draw(st.sampled_from(small))
            nodes.append(node(kind, f"{a} {b}", f"v{i}"))
            small.append(f"v{i}")
        else:
            a, b = data.draw(st.sampled_from(floats)), data.draw(st.sampled_from(small))
            nodes.append(node(kind, f"{a} {b}", f"v{i}"))
            floats.append(f"v{i}")
    nodes.append(node("Conv", floats[-1], "out"))
    g = graph(nodes, "x", "out", types={n: ints(2) for n in small})
    children = settled(g, [1] * len(nodes))
    assert children == [1] * len(nodes)


def test_random_settlings_never_cost_more_than_keeping_all_with_the_first_child() -> None:
    g = graph(
        [
            node("Conv", "x", "y"),
            node("Shape", "y", "s"),
            node("Add", "s k", "t"),
            node("Expand", "w t", "e"),
            node("Expand", "w t", "f"),
        ],
        "x w",
        "e f",
        {"k": 1},
        {"s": ints(2), "t": ints(2), "w": F32},
    )
    children = settled(g, [0, None, None, 1, 2], 3)
    assert crossings(g, children) <= crossings(g, [0, 0, 0, 1, 2])
