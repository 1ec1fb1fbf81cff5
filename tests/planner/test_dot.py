"""The drawing has every partition and every road between them, and no name can break out of its label."""

from __future__ import annotations

import re

from tests.planner.fakes import FakeProvider, graph, node, plan_of
from tests.planner.test_codec import sample

QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def test_each_partition_is_a_box_in_its_providers_cluster() -> None:
    plan = sample()
    text = plan.to_dot()
    for child in {p.child for p in plan.partitions}:
        assert f"subgraph cluster_{child}" in text
    for partition in plan.partitions:
        assert text.count(f"    p{partition.id} [label=") == 1
    assert text.count("{") == text.count("}")


def test_each_parcel_is_an_edge_to_each_destination() -> None:
    g = graph([node("my::A", "x", "a"), node("my::B", "a", "b"), node("my::A", "a b", "c")], "x", "a c")
    lines = plan_of(g, [FakeProvider("g", ["my::A"]), FakeProvider("c")]).to_dot().splitlines()
    edges = [line.strip() for line in lines if "->" in line]
    assert edges == [
        'caller_in -> p0 [label="x\\n24 B"];',
        'p0 -> caller_out [label="a\\n24 B"];',
        'p0 -> p1 [label="a\\n24 B"];',
        'p1 -> p2 [label="b\\n24 B"];',
        'p2 -> caller_out [label="c\\n24 B"];',
        "p0 -> p2 [style=dashed];",
    ]


def test_names_cannot_break_out_of_a_label() -> None:
    evil = 'a"];x->y[label="\\'
    g = graph([node("my::A", "x", "v", name=evil)], "x", "v")
    text = plan_of(g, [FakeProvider(evil)], name=evil + "\n}").to_dot()
    outside = QUOTED.sub("", text)
    assert "x->y" not in outside
    assert '"' not in outside
    assert outside.count("{") == outside.count("}")


def test_a_plan_without_nodes_can_be_drawn() -> None:
    text = plan_of(graph([], "x", "x"), [FakeProvider("c")]).to_dot()
    assert text.startswith('digraph "m" {')
    assert "->" not in text
