"""What was begun by one plan goes on by another: values keep their names, states their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser

from actors.journal import Call, Journal, RayParcel, StateBound, StateChanged, StepRecord
from actors.parcels import unpack
from actors.rerouting import Rerouting
from hetero.model import load_model
from hetero.planner.failover import replanned
from hetero.planner.homes import withheld
from hetero.planner.plan import Plan
from hetero.planner.planner import Wishes, plan_model
from hetero.providers.registry import resolve
from hetero.routes import Routes
from hetero.runtime.pins import OnDevice
from hetero.runtime.state import StateChange, StateSpec
from hetero.runtime.state_copy import Piece, StateCopy
from hetero.types import TensorSpec

HEAD = '<ir_version: 10, opset_import: ["": 18]> '
SPREAD = HEAD + (
    "g (float[4] x, float[4] w) => (float[4] y, float[4] z) { y = Exp(x) a = Neg(y) z = Mul(a, w) }"
)
STATES = HEAD + (
    "g (float[4] h, float[past, 4] k, float[1, 4] n) => (float[4] h2, float[all, 4] k2)"
    " { h2 = Exp(h) k2 = Concat<axis=0>(k, n) }"
)


def plans(text: str, overrides: dict[str, str], **options: Any) -> tuple[Plan, Plan]:
    """By name of the operator; and without sim:0."""
    model = load_model(onnx.parser.parse_model(text))
    nodes = {n.op_type: n.name or "" for n in model.ir.graph}
    wishes = Wishes(overrides={nodes[op]: where for op, where in overrides.items()})
    before = plan_model(model, resolve(["sim:0", "sim:1", "cpu"]), wishes=wishes)
    return before, replanned(model, before, resolve(["sim:1", "cpu"]), (), wishes, **options)


def launched(journal: Journal, plan: Plan, step: int, values: dict[str, Any]) -> dict[str, RayParcel]:
    """A step by this plan; returns the parcels that its caller waits for, by the value in each."""
    routes, record = Routes(plan), journal.record(step)
    parcels = {p.id: RayParcel(step, [values[v] for v in p.values], given=True) for p in routes.from_caller}
    on_device = OnDevice({}, {"z": None}, frozenset({(99, "z")})) if "z" in values else None  # type: ignore[dict-item]
    for partition, receives, sends in routes.calls:
        made = {k: RayParcel(step, f"of {partition.id}") for k in sends}
        parcels |= made
        taken = tuple(parcels[k] for k in receives)
        record.calls.append(
            Call(partition.child, partition.id, "verify", taken, tuple(made.values()), on_device=on_device)
        )
    return {p.values[0]: parcels[p.id] for p in routes.to_caller}


def test_a_step_has_the_calls_of_the_other_plan_and_its_caller_still_waits_for_what_it_waited_for() -> None:
    before, after = plans(SPREAD, {"Exp": "sim:0", "Neg": "sim:1", "Mul": "cpu"})
    assert [p.child for p in before.partitions] == [0, 1, 2]
    assert [p.child for p in after.partitions] == [1, 2]
    journal, x, w = Journal(), np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    waiting = launched(journal, before, 7, {"x": x, "w": w, "z": None})
    Rerouting(before, after).reroute(journal)
    record = journal.open[7]
    assert [(c.child, c.partition, c.graph_slot) for c in record.calls] == [
        (1, 0, "verify"),
        (2, 1, "verify"),
    ]
    assert all(c.done is None and all(s.content is None for s in c.sends) for c in record.calls)
    given = [p for c in record.calls for p in c.receives if p.given]
    assert [unpack(p.content)[0].tolist() for p in given] == [x.tolist(), w.tolist()]
    on_device = record.calls[0].on_device
    assert on_device is not None
    assert on_device.withheld == frozenset(withheld(after, ["z"])) != {(99, "z")}
    first = {name: parcel.sources() for name, parcel in waiting.items()}
    assert first["y"][0][0] in record.calls[0].sends
    assert first["z"][0][0] in record.calls[1].sends
    Rerouting(after, before).reroute(journal)  # and on to a third
    record = journal.open[7]
    ((parcel, place),) = waiting["z"].sources()
    assert parcel in record.calls[2].sends
    assert place == 0


def test_inputs_are_dealt_anew_where_other_children_read_them_and_stay_where_not() -> None:
    before, after = plans(SPREAD, {"Exp": "sim:0", "Neg": "cpu", "Mul": "cpu"})
    together = plan_model(load_model(onnx.parser.parse_model(SPREAD)), resolve(["sim:0", "sim:1", "cpu"]))
    journal, x, w = Journal(), np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    launched(journal, before, 1, {"x": x, "w": w, "z": None})
    old = [p for c in journal.open[1].calls for p in c.receives if p.given]
    Rerouting(before, after).reroute(journal)
    assert [p for c in journal.open[1].calls for p in c.receives if p.given] == old, "the same objects"
    Rerouting(after, together).reroute(journal)
    (call,) = journal.open[1].calls
    (parcel,) = call.receives
    assert [v.tolist() for v in unpack(parcel.content)] == [x.tolist(), w.tolist()]


def spec(read: str, made: str, shape: tuple[int, ...], axis: int | None) -> StateSpec:
    return StateSpec(read, made, TensorSpec(np.dtype(np.float32), shape), axis)


def test_states_of_one_child_go_to_several_with_their_rows_and_what_happened_to_them() -> None:
    h, k = spec("h", "h2", (4,), None), spec("k", "k2", (8, 4), 0)
    where = {"Exp": "sim:0", "Concat": "sim:0"}
    before, _ = plans(STATES, where)
    model = load_model(onnx.parser.parse_model(STATES))
    after = replanned(
        model, before, resolve([("sim:1", {"except_ops": ["Concat"]}), "cpu"]), states={"h": "h2", "k": "k2"}
    )
    assert [p.child for p in after.partitions] == [1, 2]
    journal = Journal()
    assert journal.bind(StateBound(0, (h, k), ()))
    step = launched(journal, before, 1, {"h": None, "k": None, "n": np.ones((1, 4), np.float32)})
    journal.finish(1)
    values = {"h": np.arange(4, dtype=np.float32), "k": np.arange(12, dtype=np.float32).reshape(3, 4)}
    pieces = tuple(
        Piece(name, TensorSpec(v.dtype, v.shape), at)
        for (name, v), at in zip(values.items(), (0, 64), strict=True)
    )
    body = np.zeros(128, np.uint8)
    copied = StateCopy((h, k), (), pieces, body)
    for name, view in copied.values().items():
        view[...] = values[name]
    journal.checkpointed(1, {0: (copied,)})
    launched(journal, before, 2, {"h": None, "k": None, "n": np.ones((1, 4), np.float32)})
    journal.finish(2)
    journal.change(0, StateChange(length=2))
    Rerouting(before, after).reroute(journal)
    assert step.keys() == {"h2"}
    assert {child: [s.input for s in bound.specs] for child, bound in journal.bound.items()} == {
        1: ["h"],
        2: ["k"],
    }
    assert journal.beginning == journal.bound
    assert journal.bound[2].withheld == withheld(after, ["k2"])
    assert {
        c: {n: v.tolist() for n, v in copies[0].values().items()} for c, copies in journal.base.items()
    } == {
        1: {"h": values["h"].tolist()},
        2: {"k": values["k"].tolist()},
    }
    assert journal.base[2][0].specs == (k,)
    kept, *changes = journal.entries()
    assert isinstance(kept, StepRecord)
    assert [(c.child, c.change.length) for c in changes if isinstance(c, StateChanged)] == [(1, 2), (2, 2)]
    assert len(changes) == 2


def test_states_of_two_children_are_bound_together_where_they_meet() -> None:
    h, k = spec("h", "h2", (4,), None), spec("k", "k2", (8, 4), 0)
    before, after = plans(STATES, {"Exp": "sim:0", "Concat": "sim:1"}, states={"h": "h2", "k": "k2"})
    assert {p.child for p in after.partitions} == {1}
    journal = Journal()
    journal.bind(StateBound(0, (h,), ()))
    journal.bind(StateBound(1, (k,), ()))
    Rerouting(before, after).reroute(journal)
    entries = list(journal.entries())
    assert [e.child for e in entries if isinstance(e, StateBound)] == [1] * len(entries)
    last = entries[-1]
    assert isinstance(last, StateBound)
    assert set(last.specs) == {h, k}, "the second would else be all that the child keeps"
    assert {s.input for s in journal.bound[1].specs} == {"h", "k"}
