"""The actor's class without Ray: what it answers, what it remembers of a failed step, how it ends."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx.parser
import pytest

from actors.child import ChildActor
from actors.parcels import pack, unpack
from hetero.errors import KernelError, ProgramError, TransportError
from hetero.executor import plan
from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan
from hetero.runtime.children import InlineChildren
from hetero.runtime.state import StateChange
from hetero.runtime.state_copy import StateCopy
from hetero.types import HostArray

TEXT = (
    '<ir_version: 9, opset_import: ["": 17]>'
    " g (float[n] x, int64[k] i) => (float[k] y) { a = Neg(x) y = Gather(a, i) }"
)


NOTHING = StateCopy((), (), (), np.empty(0, np.uint8))


@pytest.fixture
def the_plan() -> Plan:
    return plan(onnx.parser.parse_model(TEXT), ["cpu"])


@pytest.fixture
def child(the_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> ChildActor:
    monkeypatch.setattr("actors.child.set_threads", lambda count: None)
    actor = ChildActor()
    actor.prepare(1, as_array(the_plan), 0, RuntimeOptions(trace=True), 2, None, ())
    return actor


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.child.node_id", lambda: "here")


def as_array(the_plan: Plan) -> HostArray:
    return np.frombuffer(the_plan.to_bytes(), np.uint8)


def parcel(*indices: int) -> Any:
    return pack([np.array([1, 2, 3], np.float32), np.array(indices)])


def test_it_runs_a_partition_from_parcel_to_parcel(child: ChildActor) -> None:
    (y,) = unpack(child.run(1, 0, 1, "primary", parcel(2, 0)))
    assert y.tolist() == [-3, -1]


def test_after_a_failure_the_step_keeps_failing_with_the_first_error(child: ChildActor) -> None:
    with pytest.raises(KernelError) as first:
        child.run(1, 0, 1, "primary", parcel(7))
    with pytest.raises(KernelError) as second:
        child.run(1, 0, 1, "primary", parcel(0))
    assert second.value is first.value
    child.run(1, 0, 2, "primary", parcel(0))
    child.drop(1, 1)
    child.run(1, 0, 1, "primary", parcel(0))


def test_failed_steps_are_not_remembered_for_ever(child: ChildActor) -> None:
    for step in range(70):
        with pytest.raises(TransportError):
            child.run(1, 9, step, "primary")
    child.run(1, 0, 0, "primary", parcel(0))
    with pytest.raises(TransportError):
        child.run(1, 0, 69, "primary", parcel(0))


def test_it_says_what_it_did(child: ChildActor) -> None:
    assert child.ping() == 0
    child.run(1, 0, 1, "primary", parcel(0))
    stats = child.stats()
    assert stats["calls"] == 1
    assert "running" not in stats
    assert [s.step for s in child.take_spans()] == [1]


def test_it_answers_while_a_partition_runs(child: ChildActor, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(*_: Any) -> list[Any]:
        entered.set()
        leave.wait()
        return []

    monkeypatch.setattr(child._child, "run", slow)
    runner = threading.Thread(target=child.run, args=(1, 0, 5, "primary"))
    runner.start()
    entered.wait()
    assert child.ping() > 0
    stats = child.stats()
    assert stats["calls"] == 0
    assert (stats["running"]["partition"], stats["running"]["step"]) == (0, 5)
    leave.set()
    runner.join()
    assert child.ping() == 0


def test_closing_ends_the_wait_and_refuses_everything_after(child: ChildActor) -> None:
    waiter = threading.Thread(target=child.wait_closed)
    waiter.start()
    child.close()
    waiter.join()
    with pytest.raises(ProgramError, match="closed"):
        child.run(1, 0, 1, "primary", parcel(0))
    child.close()


def test_it_does_the_same_as_a_child_of_this_process(child: ChildActor, the_plan: Plan) -> None:
    from hetero.providers.registry import resolve

    inline = InlineChildren(resolve(["cpu"]), RuntimeOptions())
    inline.start(the_plan, {})
    values = [np.array([1.5, 2.5], np.float32), np.array([1])]
    ((mine,),) = [unpack(child.run(1, 0, 1, "primary", pack(values)))]
    ((theirs,),) = inline.get(inline.call(0, 0, 1, [inline.put(values)], 1, "primary"), None)
    assert mine.tobytes() == theirs.tobytes()
    inline.close()


def test_a_call_for_another_generation_is_refused(child: ChildActor) -> None:
    calls: list[Any] = [
        lambda: child.run(2, 0, 1, "primary", parcel(0)),
        lambda: child.drop(2, 1),
        lambda: child.bind_state(2, (), ()),
        lambda: child.restore_state(2, NOTHING),
    ]
    for call in calls:
        with pytest.raises(TransportError, match="generation 1 of the child, and the call is for 2"):
            call()
    child.run(1, 0, 1, "primary", parcel(0))


def test_a_copy_of_state_that_cannot_be_made_is_reported_where_it_is_asked_for(child: ChildActor) -> None:
    with pytest.raises(TransportError, match="generation 1"):
        child.copy_state(2, 7, None)
    with pytest.raises(TransportError, match="no copy of the state after step 7"):
        child.take_copy(7)
    child.copy_state(1, 7, None)
    assert child.take_copy(7).values() == {}
    with pytest.raises(TransportError, match="no copy of the state after step 7"):
        child.take_copy(7)


def test_a_copy_of_state_is_made_before_the_next_step_or_change_and_is_none_of_what_was_restored(
    child: ChildActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int | None]] = []
    executor: Any = child._child

    def copy_state(number: int, since: int | None) -> StateCopy:
        made.append((number, since))
        return NOTHING

    monkeypatch.setattr(executor, "copy_state", copy_state)
    child.copy_state(1, 7, 3)
    child.run(1, 0, 7, "primary", parcel(0))
    assert made == [], "it is due when the step is over"
    child.run(1, 0, 8, "primary", parcel(0))
    child.run(1, 0, 9, "primary", parcel(0))
    assert made == [(7, 3)]
    assert child.take_copy(7) is NOTHING
    child.copy_state(1, 9, 7)
    child.change_state(1, StateChange(length=0))
    assert made == [(7, 3), (9, 7)]
    child.restore_state(1, NOTHING)
    with pytest.raises(TransportError, match="no copy"):
        child.take_copy(9)
    child.copy_state(1, 11, 9)
    child.bind_state(1, (), ())
    with pytest.raises(TransportError, match="no copy"):
        child.take_copy(11)
    assert len(made) == 2


def test_a_copy_of_state_that_fails_is_an_error_of_whoever_takes_it(
    child: ChildActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_state(number: int, since: int | None) -> StateCopy:
        raise ProgramError("no memory")

    executor: Any = child._child
    monkeypatch.setattr(executor, "copy_state", copy_state)
    child.copy_state(1, 7, None)
    child.run(1, 0, 8, "primary", parcel(0))
    with pytest.raises(ProgramError, match="no memory"):
        child.take_copy(7)
