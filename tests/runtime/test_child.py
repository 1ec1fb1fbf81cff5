"""The child executor: one step at a time from parcel to parcel, values resident in between, errors that drop a step."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero.errors import ClosedError, KernelError, ProgramError, TransportError
from hetero.executor import plan
from hetero.model import load_model
from hetero.options import RuntimeOptions
from hetero.providers.registry import create
from hetero.runtime.assignment import assignment
from hetero.runtime.child import ChildExecutor

# sim:0 runs Exp and Add around cpu's Tanh; `kept` stays on sim:0 between its two partitions.
MODEL = (
    '<ir_version: 9, opset_import: ["": 17]>\n'
    "g (float[n] x, int64[1] i) => (float[n] y, float[1] z)"
    " { kept = Exp(x) t = Tanh(kept) y = Add(t, kept) z = Gather(y, i) }"
)
PROVIDERS: list[Any] = [("sim:0", {"except_ops": ["Tanh"]}), "cpu"]
X = np.array([0, 1], np.float32)
I0 = np.array([0])


class Pair:
    """Both children of MODEL, driven by hand."""

    def __init__(self, **options: Any) -> None:
        proto = onnx.parser.parse_model(MODEL)
        self.plan = plan(proto, PROVIDERS)
        self.assignments = [assignment(self.plan, k) for k in (0, 1)]
        self.weights = load_model(proto).weights
        self.children = [ChildExecutor(create(c), RuntimeOptions(**options)) for c in self.plan.providers]
        for child, part in zip(self.children, self.assignments, strict=True):
            child.prepare(part, self.weights)

    def first(self, step: int) -> list[Any]:
        (from_caller,) = self.assignments[0].tasks[0].receives
        return self.children[0].run(0, step, [[{"x": X, "i": I0}[n] for n in from_caller.values]])

    def second(self, step: int, sent: list[Any]) -> list[Any]:
        return self.children[1].run(1, step, sent)


def test_a_plan_of_three_partitions_says_what_each_receives_keeps_and_sends() -> None:
    pair = Pair()
    assert [p.child for p in pair.plan.partitions] == [0, 1, 0]
    first, last = pair.assignments[0].tasks[0], pair.assignments[0].tasks[2]
    assert [s.values for s in first.sends] == [("kept",)]
    assert "kept" not in first.drops
    assert "kept" in last.drops
    assert (first.last, last.last) == (False, True)


def test_values_stay_resident_between_two_partitions_of_a_step() -> None:
    pair = Pair()
    sent = {step: pair.first(step) for step in (1, 2)}
    assert pair.children[0].stats()["resident_steps"] == 2
    for step in (2, 1):
        (y, z) = pair.children[0].run(2, step, pair.second(step, sent[step]))[0]
        np.testing.assert_allclose(y, np.tanh(np.exp(X)) + np.exp(X), rtol=1e-6)
        assert z == y[:1]
    assert pair.children[0].stats()["resident_steps"] == 0


def test_dropping_a_step_frees_what_it_kept() -> None:
    pair = Pair()
    pair.first(1)
    pair.children[0].drop(1)
    pair.children[0].drop(1)
    assert pair.children[0].stats()["resident_steps"] == 0


def test_a_failed_partition_drops_its_step_and_no_other() -> None:
    pair = Pair()
    one, two = pair.first(1), pair.first(2)
    task = pair.assignments[0].tasks[2]
    assert len(task.receives) == 1
    pair.children[0]._steps[1]["i"] = np.array([9])
    with pytest.raises(KernelError) as caught:
        pair.children[0].run(2, 1, pair.second(1, one))
    assert (caught.value.step, caught.value.device, caught.value.op) == (1, "sim:0", "Gather")
    assert pair.children[0].stats()["resident_steps"] == 1
    assert pair.children[0].run(2, 2, pair.second(2, two))


def test_an_error_on_the_stream_belongs_to_the_partition_that_enqueued_it_though_it_sends_nothing() -> None:
    pair = Pair()
    child, sent = pair.children[0], pair.second(1, pair.first(1))
    child._tasks[2] = dataclasses.replace(child._tasks[2], sends=(), last=False)
    child._steps[1]["i"] = np.array([9])
    with pytest.raises(KernelError) as caught:
        child.run(2, 1, sent)
    assert (caught.value.step, caught.value.op) == (1, "Gather")


def test_what_does_not_belong_to_the_child_is_refused() -> None:
    pair = Pair()
    with pytest.raises(TransportError, match="partition 1"):
        pair.children[0].run(1, 1, [])
    with pytest.raises(TransportError, match="parcels"):
        pair.children[0].run(0, 1, [])
    with pytest.raises(TransportError, match="values"):
        pair.children[0].run(0, 1, [[X]])
    with pytest.raises(TransportError, match="no earlier partition") as caught:
        pair.children[0].run(2, 2, pair.second(1, pair.first(1)))
    assert caught.value.operand
    pair.children[0].drop(1)
    assert pair.children[0].stats()["resident_steps"] == 0


def test_preparing_without_the_weights_changes_nothing() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }'
    )
    whole = plan(proto, ["cpu"])
    child = ChildExecutor(create(whole.providers[0]), RuntimeOptions())
    with pytest.raises(ProgramError, match="'w'"):
        child.prepare(assignment(whole, 0), {})
    child.prepare(assignment(whole, 0), load_model(proto).weights)
    assert np.array_equal(child.run(0, 1, [[X]])[0][0], [1, 3])


def test_a_closed_child_refuses_everything_and_closes_once() -> None:
    pair = Pair()
    child = pair.children[0]
    child.close()
    child.close()
    with pytest.raises(ClosedError):
        pair.first(1)
    with pytest.raises(ClosedError):
        child.prepare(pair.assignments[0], pair.weights)


def test_spans_are_recorded_only_when_asked_for_and_handed_over_once() -> None:
    quiet, traced = Pair(), Pair(trace=True)
    for pair in (quiet, traced):
        pair.first(7)
    assert quiet.children[0].take_spans() == []
    (span,) = traced.children[0].take_spans()
    assert (span.track, span.step) == ("sim:0", 7)
    assert span.end_s >= span.start_s
    assert traced.children[0].take_spans() == []


def test_a_step_that_is_run_again_draws_the_same_numbers() -> None:
    text = (
        '<ir_version: 9, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = RandomUniformLike(x) }'
    )
    proto = onnx.parser.parse_model(text)
    the_plan = plan(proto, ["cpu"])
    child = ChildExecutor(create(the_plan.providers[0]), RuntimeOptions())
    child.prepare(assignment(the_plan, 0), {})
    drawn = []
    for step in (1, 1, 2, 1):
        ((y,),) = child.run(0, step, [[X]])
        drawn.append(y.tobytes())
        child.drop(step)
    assert drawn[0] == drawn[1] == drawn[3] != drawn[2]


DRAWN = (
    '<ir_version: 9, opset_import: ["": 17]>\n'
    "g (float[n] x) => (float[n] y, float[n] z)"
    " { y = Log(x) z = RandomNormalLike(x) }"
)


def test_a_thread_that_dwells_in_a_child_gets_the_same_bits_and_no_warning() -> None:
    planned = plan(onnx.parser.parse_model(DRAWN), ["cpu"])

    def ran(*, dwells: bool) -> list[list[bytes]]:
        child = ChildExecutor(create(planned.providers[0]), RuntimeOptions(seed=3))
        child.prepare(assignment(planned, 0), {})
        (wanted,) = child._tasks[0].sends
        if dwells:
            child.dwell()
        with np.errstate(all="raise") if not dwells else nullcontext():
            steps = [child.run(0, step, [[np.zeros(4, np.float32)]])[0] for step in (1, 2, 2, 5)]
        child.close()
        assert wanted.values == ("y", "z")
        return [[value.tobytes() for value in values] for values in steps]

    found: list[list[list[bytes]]] = []
    thread = threading.Thread(target=lambda: found.append(ran(dwells=True)))
    thread.start()
    thread.join()
    usual = ran(dwells=False)
    assert found == [usual]
    assert usual[1] == usual[2] != usual[3]
    assert np.geterr()["divide"] == "warn"  # here as it was


def test_a_parcel_of_too_few_values_is_refused_where_they_are_the_inputs() -> None:
    planned = plan(onnx.parser.parse_model(DRAWN), ["cpu"])
    child = ChildExecutor(create(planned.providers[0]), RuntimeOptions())
    child.prepare(assignment(planned, 0), {})
    assert child._tasks[0].straight
    for parcels in ([], [[]], [[X, X]], [[X], [X]]):
        with pytest.raises(TransportError, match="parcel"):
            child.run(0, 1, parcels)
    assert len(child.run(0, 2, [[X]])[0]) == 2
