"""What is kept of a step that goes over channels: what it was given, until a replay asks for its calls."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import onnx.parser
import pytest

from actors.journal import RayParcel
from actors.parcels import unpack
from actors.whole_step import WholeStep
from hetero.model import load_model
from hetero.planner.plan import Plan
from hetero.planner.planner import plan_model
from hetero.providers.registry import resolve
from hetero.routes import Routes
from tests.actors.test_pool import executor

TEXT = (
    '<ir_version: 10, opset_import: ["": 18]> '
    "g (float[4] x, float[4] w) => (float[4] z, float[4] y) { y = Exp(x) a = Neg(y) z = Mul(a, w) }"
)
TWO: list[Any] = [("cpu:0", {"ops": ["Exp", "Mul"]}), "cpu:1"]
MOST_CALLS = 12


def planned() -> Plan:
    return plan_model(load_model(onnx.parser.parse_model(TEXT)), resolve(TWO))


def whole(step: int = 7) -> tuple[WholeStep, dict[str, Any]]:
    routes = Routes(planned())
    values = {"x": np.arange(4, dtype=np.float32), "w": np.ones(4, np.float32)}
    given = {parcel: [values[name] for name in names] for parcel, names in routes.given}
    return WholeStep(step, routes, given, "verify"), values


def test_its_calls_are_those_of_the_plan_and_pass_on_what_was_given() -> None:
    record, values = whole()
    calls = record.calls
    routes = record.routes
    assert [(c.child, c.partition, c.graph_slot) for c in calls] == [
        (partition.child, partition.id, "verify") for partition, _, _ in routes.calls
    ]
    given = {id(p): p for c in calls for p in c.receives if p.given}.values()
    arrived = [v.tolist() for p in given for v in unpack(p.content)]
    assert sorted(arrived) == sorted(v.tolist() for v in values.values())
    made = [p for c in calls for p in c.sends]
    assert all(p in made for c in calls for p in c.receives if not p.given)
    assert all(p in made for p in record.back), "the caller waits for what the calls make"


def test_its_calls_are_worked_out_once_and_what_was_given_is_let_go_of_then() -> None:
    record, _ = whole()
    back = record.back
    assert record.given
    assert record.calls is record.calls
    assert not record.given
    assert record.back is back


def test_calls_by_another_plan_take_the_place_of_its_own() -> None:
    record, _ = whole()
    record.calls = []
    assert record.calls == []
    assert not record.given


def test_what_has_come_back_has_names_in_the_order_of_the_plans_outputs() -> None:
    record, _ = whole()
    arrived = {parcel: [f"{name} came" for name in names] for parcel, names in record.routes.taken}
    assert list(record.named(arrived).items()) == [("z", "z came"), ("y", "y came")]
    assert all(isinstance(p, RayParcel) and p.step == 7 for p in record.back)


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.timeout(180)
def test_a_step_that_repeats_calls_few_functions() -> None:
    """Between two steps other processes have the caches, and each function that is called costs microseconds then."""
    feeds = {"x": np.arange(4, dtype=np.float32), "w": np.ones(4, np.float32)}
    called: list[str] = []
    channels: list[FrameType] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            if channels or frame.f_code.co_filename.endswith("channels/driver.py"):
                channels.append(frame)
            else:
                called.append(frame.f_code.co_qualname)
        elif event == "return" and channels:
            channels.pop()

    with executor(TEXT, TWO, transport="channels") as ex:
        want = [ex.run(feeds)["z"].tobytes() for _ in range(5)]
        sys.setprofile(note)
        try:
            got = ex.run(feeds)["z"].tobytes()
        finally:
            sys.setprofile(None)
    assert set(want) == {got}
    assert len(called) <= MOST_CALLS, called
