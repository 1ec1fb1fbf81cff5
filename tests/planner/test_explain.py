"""The explanation names providers, counts and reasons, and stays short for huge graphs."""

from __future__ import annotations

from hetero.planner.explain import bytes_text, printable
from hetero.types import DataType, TensorType
from tests.planner.fakes import FakeProvider, graph, node, plan_of
from tests.planner.test_codec import BODY, sample


def test_the_summary_counts_nodes_operations_and_weights_per_provider() -> None:
    text = sample().summary()
    assert "plan of 'm': 6 nodes and 2 inside bodies, " in text
    assert "sim:0: 2 nodes in 2 partitions, 1 weight: my::A ×2\n" in text
    assert "cpu: 6 nodes in 2 partitions, 0 weights: my::B ×4, If, Shape" in text


def test_fallbacks_come_first_grouped_with_their_reason() -> None:
    lines = sample().explain().splitlines()
    start = next(
        i for i, line in enumerate(lines) if line.startswith("not on the preferred provider sim:0: 6 nodes")
    )
    assert lines[start + 1].startswith("  my::B ×4 on cpu: my::B is not in ops of sim:0")
    assert any("  If ×1 on cpu: If is not in ops of sim:0  (make_d)" in line for line in lines)
    assert start < lines.index("partitions, in order") < lines.index("transfers per step")


def test_transfers_are_counted_per_edge_with_bytes() -> None:
    lines = sample().explain().splitlines()
    assert "  caller -> sim:0: 1 value, 24 B" in lines
    assert any(line.startswith("  sim:0 -> cpu: 2 values, 48 B") for line in lines)


def test_sizes_that_are_unknown_are_said_to_be() -> None:
    loose = TensorType(DataType.FLOAT, ("n",))
    g = graph([node("my::A", "x y", "a")], "x y", "a", types={"x": loose, "a": loose})
    text = plan_of(g, [FakeProvider("cpu")]).explain()
    assert "caller -> cpu: 2 values, 24 B and 1 of unknown size" in text
    assert "cpu -> caller: 1 value, size unknown before the run" in text


def test_every_node_is_listed_on_demand_those_in_bodies_indented() -> None:
    lines = sample().explain(nodes=True).splitlines()
    assert "  make_a (my::A) on sim:0: sim:0 kernel" in lines
    assert "  make_b (my::B) on cpu: cpu kernel (not sim:0: my::B is not in ops of sim:0)" in lines
    inside = "(my::B) in make_d.then_branch on cpu: cpu kernel (not sim:0: my::B is not in ops of sim:0)"
    assert f"    inside {inside}" in lines


def test_nodes_that_only_go_with_their_body_are_counted_not_listed() -> None:
    g = graph([node("If", "p a", "y", then_branch=BODY)], "p a", "y")
    text = plan_of(g, [FakeProvider("g", ["my::B", "my::Z"]), FakeProvider("c")]).explain()
    assert "not on the preferred provider g: 2 nodes, 1 of them inside bodies that go as a whole" in text
    assert "my::B ×" not in text.split("partitions")[0].split("not on")[1]
    assert "goes with 'make_y'" in plan_of(g, [FakeProvider("g", ["my::B"]), FakeProvider("c")]).explain(
        nodes=True
    )


def test_a_whole_graph_on_the_preferred_provider_is_said_to_be() -> None:
    g = graph([node("my::A", "x", "a")], "x", "a")
    text = plan_of(g, [FakeProvider("gpu"), FakeProvider("cpu")]).explain()
    assert "every node is on the preferred provider gpu" in text
    assert "cpu: no nodes" in text


def test_ten_thousand_fallbacks_with_a_few_reasons_stay_readable() -> None:
    nodes = [node(f"my::Op{i % 3}", f"v{i - 1}" if i else "x", f"v{i}") for i in range(10_000)]
    plan = plan_of(graph(nodes, "x", "v9999"), [FakeProvider("gpu", ["my::Op0"]), FakeProvider("cpu")])
    text = plan.explain()
    assert len(text.splitlines()) < 300
    assert (
        "my::Op1 ×3333 on cpu: gpu has no kernel for my::Op1  (make_v1, make_v4, make_v7, make_v10, make_v13, …)"
        in (text)
    )
    assert "more\n" in text
    assert len(plan.explain(nodes=True).splitlines()) > 10_000


def test_names_from_the_model_cannot_break_lines_or_move_the_cursor() -> None:
    g = graph([node("my::A", "x", "a", name="evil\n\x1b[2Jname")], "x", "a")
    text = plan_of(g, [FakeProvider("cpu")], name="m\r").explain(nodes=True)
    assert "\x1b" not in text
    assert "\r" not in text
    assert "  evil\\n\\x1b[2Jname (my::A) on cpu" in text
    assert printable("plain ×") == "plain ×"


def test_bytes_are_written_in_binary_units() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1024, 1536, 5 << 20, 3 << 30, 2 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "2048.0 TiB",
    ]
