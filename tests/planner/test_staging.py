"""Staged plans: who is dealt, what stays, whose memory counts, what is recorded; values never go backwards."""

from __future__ import annotations

import random

import pytest

from hetero.errors import OptionError, PlanError
from hetero.planner.check import check_plan
from hetero.planner.costs import costs_of
from hetero.planner.graph import PlanGraph
from hetero.planner.placement import judge, settle_all
from hetero.planner.plan import CALLER, Plan
from hetero.planner.planner import Wishes, assemble
from hetero.planner.staging import deal_stages, peers_of, stage_table
from tests.planner.fakes import FakeProvider, graph, ints, node


def staged(
    g: PlanGraph,
    providers: list[FakeProvider],
    times: dict[str, float] | None = None,
    *,
    strict: bool = False,
) -> Plan:
    verdicts = judge(g, providers)
    costs = costs_of(g, times)
    placed = settle_all(
        g, providers, verdicts, strict=strict, staged=deal_stages(g, providers, verdicts, costs)
    )
    table = stage_table(g, providers, placed, costs)
    configs = [p.config for p in providers]
    plan = assemble(g, placed, configs, name="m", digest="0" * 64, opsets={"": 17, "my": 1}, stages=table)
    check_plan(plan)
    assert Plan.from_bytes(plan.to_bytes()) == plan
    return plan


def gpus(count: int, *, memory: int | None = None, **options: object) -> list[FakeProvider]:
    return [FakeProvider(f"gpu:{k}", memory=memory, **options) for k in range(count)]  # type: ignore[arg-type]


def chain(n: int, weights: dict[str, int] | None = None) -> PlanGraph:
    """Node k reads what node k - 1 made, and the weight w{k} where `weights` has one (its number of int64s)."""
    sizes = weights or {}
    nodes = [
        node("my::A", f"v{k} w{k}" if f"w{k}" in sizes else f"v{k}", f"v{k + 1}", name=f"n{k}")
        for k in range(n)
    ]
    return graph(nodes, "v0", f"v{n}", sizes)


def homes(plan: Plan) -> list[str]:
    return [p.provider for p in plan.placements if not p.path]


def test_peers_are_the_instances_of_the_first_providers_kind() -> None:
    providers = [FakeProvider(name) for name in ("gpu:1", "gpu:0", "cpu", "gpu:2", "gpus")]
    assert peers_of(providers) == (0, 1, 3)


def test_equal_nodes_are_dealt_evenly_in_the_order_of_the_providers() -> None:
    plan = staged(chain(6), [*gpus(3), FakeProvider("cpu")])
    assert homes(plan) == ["gpu:0"] * 2 + ["gpu:1"] * 2 + ["gpu:2"] * 2
    assert [p.child for p in plan.partitions] == [0, 1, 2]
    assert [p.stage for p in plan.placements] == [0, 0, 1, 1, 2, 2]
    assert [(s.number, s.child) for s in plan.stages] == [(0, 0), (1, 1), (2, 2)]
    assert all(not p.rejected for p in plan.placements)


def test_measured_times_decide_where_to_cut() -> None:
    slow = staged(chain(4), gpus(2), {"n0": 3.0, "n1": 1.0, "n2": 1.0, "n3": 1.0})
    assert homes(slow) == ["gpu:0", "gpu:1", "gpu:1", "gpu:1"]
    assert [s.time_ps for s in slow.stages] == [3 * 10**12, 3 * 10**12]


def test_nodes_without_a_measured_time_are_estimated_to_the_scale_of_the_others() -> None:
    times = costs_of(chain(3), {"n0": 2.0, "n1": 4.0}).times_ps
    assert times == [2 * 10**12, 4 * 10**12, 3 * 10**12]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_refused(seconds: float) -> None:
    with pytest.raises(PlanError, match="must be 0 or more seconds") as caught:
        costs_of(chain(2), {"n1": seconds})
    assert caught.value.node == "n1"


def test_a_time_for_a_node_that_does_not_exist_is_refused_unless_it_is_in_a_body() -> None:
    with pytest.raises(PlanError, match="does not have") as caught:
        costs_of(chain(2), {"typo": 1.0})
    assert caught.value.node == "typo"
    assert costs_of(chain(2), {"inner": 1.0}, ["inner"]) == costs_of(chain(2))


def test_what_the_devices_do_not_take_still_falls_back() -> None:
    g = graph(
        [
            node("my::A", "x", "a"),
            node("my::B", "a", "b"),
            node("my::A", "b", "c"),
            node("my::A", "c", "d"),
        ],
        "x",
        "d",
    )
    plan = staged(g, [*gpus(2, ops=["my::A"]), FakeProvider("cpu")])
    assert homes(plan)[1] == "cpu"
    assert [p.stage for p in plan.placements][1] is None
    assert [r.provider for r in plan.placements[1].rejected] == ["gpu:0", "gpu:1"]
    assert {"gpu:0", "gpu:1"} <= set(homes(plan))


def test_strict_allows_every_stage_and_no_fallback() -> None:
    assert staged(chain(4), [*gpus(2), FakeProvider("cpu")], strict=True).stages
    mixed = graph([node("my::A", "x", "a"), node("my::B", "a", "b")], "x", "b")
    with pytest.raises(PlanError, match="strict"):
        staged(mixed, [*gpus(2, ops=["my::A"]), FakeProvider("cpu")], strict=True)


def test_weights_are_kept_within_each_devices_memory() -> None:
    g = chain(4, {"w0": 10, "w1": 1, "w2": 1, "w3": 1})  # of 8 bytes each
    assert homes(staged(g, gpus(2))) == ["gpu:0", "gpu:0", "gpu:1", "gpu:1"]
    small = [FakeProvider("gpu:0", memory=80), FakeProvider("gpu:1", memory=24)]
    plan = staged(g, small)
    assert homes(plan) == ["gpu:0", "gpu:1", "gpu:1", "gpu:1"]
    assert [s.weight_bytes for s in plan.stages] == [80, 24]


def test_weights_that_fit_nowhere_are_an_error_with_bytes_per_device() -> None:
    with pytest.raises(PlanError) as caught:
        staged(chain(4, {"w0": 10, "w1": 5, "w2": 5, "w3": 1}), gpus(2, memory=80))
    text = str(caught.value)
    assert "gpu:0: 80 bytes needed, 80 bytes available, from node 'n0' on" in text
    assert "gpu:1: 88 bytes needed, 80 bytes available, from node 'n1' on" in text


def test_a_shared_weight_counts_on_every_device_that_reads_it() -> None:
    g = graph([node("my::A", "x w", "a"), node("my::A", "a w", "b")], "x", "b", {"w": 4})
    plan = staged(g, gpus(2, memory=32))
    assert [s.weight_bytes for s in plan.stages] == [32, 32]
    assert plan.weights == (("w",), ("w",))
    assert homes(plan) == ["gpu:0", "gpu:1"]
    one = staged(g, [FakeProvider("gpu:0", memory=32), FakeProvider("gpu:1", memory=31)])
    assert homes(one) == ["gpu:0", "gpu:0"]


def test_a_node_that_a_filter_keeps_off_one_instance_is_not_dealt_but_counts() -> None:
    g = graph(
        [
            node("my::B", "x w", "a"),
            node("my::A", "a", "b"),
            node("my::A", "b", "c"),
            node("my::A", "c", "d"),
        ],
        "x",
        "d",
        {"w": 2},
    )
    providers = [FakeProvider("gpu:0"), FakeProvider("gpu:1", never=["my::B"])]
    plan = staged(g, providers, {"make_a": 3.0, "make_b": 1.0, "make_c": 1.0, "make_d": 1.0})
    assert homes(plan) == ["gpu:0", "gpu:1", "gpu:1", "gpu:1"]
    with pytest.raises(PlanError, match="gpu:0: 16 bytes needed, 8 bytes available"):
        staged(g, [FakeProvider("gpu:0", memory=8), FakeProvider("gpu:1", never=["my::B"])])


def test_shape_arithmetic_never_makes_a_value_go_backwards() -> None:
    rng = random.Random(5)
    for _ in range(60):
        nodes, tensors, shapes = [], ["x"], ["k"]
        for k in range(14):
            if rng.random() < 0.4:
                nodes.append(node("Shape", rng.choice(tensors), f"s{k}"))
                shapes.append(f"s{k}")
            elif rng.random() < 0.4:
                nodes.append(node("Add", f"{rng.choice(shapes)} {rng.choice(shapes)}", f"s{k}"))
                shapes.append(f"s{k}")
            else:
                nodes.append(node("my::A", f"{rng.choice(tensors)} {rng.choice(shapes)}", f"t{k}"))
                tensors.append(f"t{k}")
        g = graph(nodes, "x", " ".join([*tensors[1:], *shapes[1:]]), {"k": 2}, {s: ints(2) for s in shapes})
        plan = staged(g, gpus(3))
        assert all(t.source < t.destination or CALLER in (t.source, t.destination) for t in plan.transfers)
        assert len(plan.partitions) == len({p.child for p in plan.partitions})


def test_plans_are_the_same_every_time_and_say_their_stages() -> None:
    g, providers = chain(6, {"w0": 4, "w5": 1}), [*gpus(2, memory=64), FakeProvider("cpu")]
    plan = staged(g, providers)
    assert plan == staged(g, providers)
    assert plan != staged(g, providers, {"n0": 9.0})
    text = plan.explain()
    assert "  0: gpu:0, 3 nodes, 32 B of weights, 3" in text
    assert "  1: gpu:1, 3 nodes, 8 B of weights, 3" in text


def test_another_word_for_stages_is_refused() -> None:
    with pytest.raises(OptionError, match="stages must be"):
        Wishes(stages="balanced")
