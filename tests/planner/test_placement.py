"""Each node goes to the first provider that takes it, and the reasons say why."""

from __future__ import annotations

import pytest

from hetero.errors import PlanError, UnsupportedNodeError
from hetero.planner.placement import judge, place
from hetero.planner.plan import Rejection
from hetero.program.program import NO_SLOT, Dispatch, Instruction, Port, Program
from tests.planner.fakes import F32, FakeProvider, graph, ints, node

CHAIN = graph([node("A", "x", "a"), node("B", "a", "b"), node("C", "b", "c")], "x", "c")


def test_each_node_goes_to_the_first_provider_that_takes_it() -> None:
    placed = place(CHAIN, [FakeProvider("gpu", ["A", "C"]), FakeProvider("cpu")])
    assert placed.children == [0, 1, 0]
    assert [p.provider for p in placed.placements] == ["gpu", "cpu", "gpu"]
    assert placed.placements[1].reason == "cpu kernel"
    assert placed.placements[1].rejected == (Rejection("gpu", "gpu has no kernel for B"),)
    assert placed.placements[0].rejected == ()


def test_a_native_kernel_comes_before_a_better_provider_that_would_use_the_reference() -> None:
    placed = place(CHAIN, [FakeProvider("gpu", ["A"], reference=True), FakeProvider("cpu", ["B"])])
    assert placed.children == [0, 1, 0]
    assert placed.placements[1].rejected == (Rejection("gpu", "through onnx.reference"),)
    assert placed.placements[2].reason == "through onnx.reference"


def test_what_is_native_somewhere_is_told_apart() -> None:
    providers = [FakeProvider("gpu", ["A"]), FakeProvider("cpu", ["B"], reference=True)]
    assert [v.native for v in judge(CHAIN, providers)] == [True, True, False]


def test_one_node_that_nobody_takes_is_an_error_with_every_reason() -> None:
    with pytest.raises(UnsupportedNodeError) as caught:
        place(CHAIN, [FakeProvider("gpu", ["A"]), FakeProvider("cpu", ["A", "C"])])
    text = str(caught.value)
    for part in (
        "make_b",
        "B-13",
        "opset 17",
        "float[2, 3]",
        "gpu has no kernel for B",
        "cpu has no kernel for B",
    ):
        assert part in text
    assert caught.value.node == "make_b"
    assert caught.value.op == "B"


def test_many_nodes_that_nobody_takes_are_one_error_that_lists_ten() -> None:
    many = graph([node("Odd", "x", f"v{i}") for i in range(25)], "x", "v0")
    with pytest.raises(UnsupportedNodeError) as caught:
        place(many, [FakeProvider("cpu", [])])
    text = str(caught.value)
    assert "25 nodes" in text
    assert text.count("cpu has no kernel") == 10
    assert "15 more" in text


def test_strict_accepts_a_graph_that_is_whole_on_the_first_provider() -> None:
    assert place(CHAIN, [FakeProvider("gpu"), FakeProvider("cpu")], strict=True).children == [0, 0, 0]


def test_strict_names_the_node_its_op_opset_dtypes_and_the_reason() -> None:
    with pytest.raises(PlanError) as caught:
        place(CHAIN, [FakeProvider("gpu", ["A", "C"]), FakeProvider("cpu")], strict=True)
    text = str(caught.value)
    for part in ("make_b", "B-13", "opset 17", "float[2, 3]", "gpu has no kernel for B", "cpu"):
        assert part in text
    assert caught.value.device == "gpu"


def test_strict_counts_nodes_that_the_user_kept_off_the_first_provider() -> None:
    with pytest.raises(PlanError, match="B is in except_ops of gpu"):
        place(CHAIN, [FakeProvider("gpu", never=["B"]), FakeProvider("cpu")], strict=True)


def test_strict_lists_at_most_ten_nodes() -> None:
    many = graph([node("Odd", "x", f"v{i}") for i in range(25)], "x", "v0")
    with pytest.raises(PlanError, match="25 nodes") as caught:
        place(many, [FakeProvider("gpu", []), FakeProvider("cpu")], strict=True)
    assert str(caught.value).count("falls to cpu") == 10
    assert "15 more" in str(caught.value)


RESHAPE = graph(
    [
        node("Conv", "x", "y"),
        node("Shape", "y", "s"),
        node("Gather", "s zero", "d"),
        node("Concat", "d minus", "t"),
        node("Reshape", "y t", "z"),
    ],
    "x",
    "z",
    {"zero": 1, "minus": 1},
    {"s": ints(2), "d": ints(1), "t": ints(2)},
)


def test_shape_arithmetic_runs_on_the_host_of_its_neighbours_child() -> None:
    placed = place(RESHAPE, [FakeProvider("gpu", ["Conv", "Reshape"]), FakeProvider("cpu")])
    assert placed.children == [0] * 5
    hosted = [name for name, dispatch in placed.dispatch.items() if dispatch is Dispatch.HOST]
    assert hosted == ["make_s", "make_d", "make_t"]
    assert "shape arithmetic" in placed.placements[2].reason


def test_shape_arithmetic_on_the_first_provider_passes_strict() -> None:
    assert place(RESHAPE, [FakeProvider("gpu", ["Conv", "Reshape"])], strict=True).children == [0] * 5


def test_shape_arithmetic_follows_its_neighbours_away_from_the_preferred_provider() -> None:
    gpu = FakeProvider("gpu", ["Shape", "Gather", "Concat"])
    placed = place(RESHAPE, [gpu, FakeProvider("cpu")])
    assert placed.children == [1] * 5
    assert "nodes on cpu" in placed.placements[1].rejected[0].reason
    with pytest.raises(PlanError, match="5 nodes"):
        place(RESHAPE, [gpu, FakeProvider("cpu")], strict=True)


def test_the_users_filter_keeps_shape_arithmetic_off_a_child() -> None:
    placed = place(RESHAPE, [FakeProvider("gpu", never=["Concat"]), FakeProvider("cpu")])
    assert [placed.children[i] for i in (0, 1, 3, 4)] == [0, 0, 1, 0]
    assert placed.dispatch["make_t"] is Dispatch.HOST
    assert placed.placements[3].rejected == (Rejection("gpu", "Concat is in except_ops of gpu"),)


def test_shape_arithmetic_forbidden_everywhere_is_an_unsupported_node() -> None:
    with pytest.raises(UnsupportedNodeError, match=r"except_ops of gpu.*except_ops of cpu"):
        place(RESHAPE, [FakeProvider("gpu", never=["Concat"]), FakeProvider("cpu", never=["Concat"])])


def body(*ops: str) -> Program:
    """A chain of one-operand operations over the body's one input."""
    instructions = tuple(
        Instruction(node(op, f"v{i}", f"v{i + 1}").op, (i,), (i + 1,), (F32,), (True,), i)
        for i, op in enumerate(ops)
    )
    return Program(
        "body", instructions, (Port("v0", 0, F32),), (), (Port("out", len(ops), F32),), len(ops) + 1
    )


def test_nodes_inside_bodies_are_recorded_with_their_path() -> None:
    inner = node("If", "c", "r", name="inner", then_branch=body("B"))
    nested = Program(
        "outer_body",
        (Instruction(inner.op, (0,), (1,), (F32,), (True,), 0, Dispatch.CONTROL),),
        (Port("c", 0, F32),),
        (),
        (Port("r", 1, F32),),
        2,
    )
    outer = graph([node("Loop", "x", "y", name="outer", body=nested)], "x", "y")
    placed = place(outer, [FakeProvider("gpu", ["Loop", "If"]), FakeProvider("cpu")])
    assert placed.children == [1]
    assert [(p.node, p.provider, p.path) for p in placed.placements] == [
        ("outer", "cpu", ()),
        ("inner", "cpu", ("outer.body",)),
        ("make_v1", "cpu", ("outer.body", "inner.then_branch")),
    ]
    assert placed.placements[0].rejected == (
        Rejection("gpu", "outer.body/inner.then_branch: node 'make_v1' (B): gpu has no kernel for B"),
    )
    assert placed.placements[2].rejected == (Rejection("gpu", "gpu has no kernel for B"),)
    assert place(outer, [FakeProvider("gpu", ["Loop", "If", "B"])]).children == [0]


def test_a_body_that_needs_the_reference_gives_way_to_a_provider_that_runs_it_natively() -> None:
    g = graph([node("If", "c", "y", then_branch=body("B"))], "c", "y")
    assert place(g, [FakeProvider("a", ["If"], reference=True), FakeProvider("b")]).children == [1]
    placed = place(g, [FakeProvider("a", ["If"], reference=True), FakeProvider("b", ["If"])])
    assert placed.children == [0]
    assert placed.placements[1].reason == "through onnx.reference"


def test_shape_arithmetic_in_a_body_does_not_push_the_loop_off_the_device() -> None:
    s, k = ints(2), ints(1)
    program = Program(
        "b",
        (
            Instruction(node("Shape", "x", "s").op, (0,), (2,), (s,), (True,), 0),
            Instruction(node("Mul", "s k", "t").op, (2, 1), (3,), (s,), (True, True), 1),
            Instruction(node("Expand", "x t", "r").op, (0, 3), (4,), (F32,), (True, True), 2),
        ),
        (Port("x", 0, F32), Port("k", 1, k)),
        (),
        (Port("r", 4, F32),),
        5,
        n_captures=2,
    )
    g = graph([node("If", "c x k", "y", then_branch=program)], "c x", "y", {"k": 1})
    placed = place(g, [FakeProvider("gpu", ["If", "Expand"]), FakeProvider("cpu")])
    assert placed.children == [0]
    assert [placed.dispatch[n] is Dispatch.HOST for n in ("make_s", "make_t", "make_r")] == [
        True,
        True,
        False,
    ]
    fed = graph([node("If", "c x k", "y", then_branch=program)], "c x k", "y", types={"k": k})
    assert place(fed, [FakeProvider("gpu", ["If", "Expand"]), FakeProvider("cpu")]).children == [1]


def test_an_omitted_output_slot_in_a_body_is_no_operand() -> None:
    two = Program(
        "b",
        (
            Instruction(node("Drop", "v", "a -").op, (0,), (1, NO_SLOT), (F32, None), (True,), 0),
            Instruction(node("Use", "a -", "r").op, (1, NO_SLOT), (2,), (F32,), (True, False), 1),
        ),
        (Port("v", 0, F32),),
        (),
        (Port("r", 2, F32),),
        3,
    )
    placed = place(graph([node("Scan", "x", "y", body=two)], "x", "y"), [FakeProvider("gpu")])
    assert [p.op for p in placed.placements] == ["Scan", "Drop", "Use"]
