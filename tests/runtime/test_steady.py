"""Steady runs: outputs, errors and counters are those of the general road, which takes over once anything changed."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import ClosedError, HeteroError, KernelError, TransportError
from hetero.executor import plan
from hetero.options import RuntimeOptions
from hetero.providers.registry import create
from hetero.runtime.assignment import Assignment, Send, assignment
from hetero.runtime.child import ChildExecutor
from hetero.runtime.pins import Binding
from hetero.runtime.state import StateChange, StateSpec
from hetero.runtime.steady import Steady
from hetero.types import TensorSpec

HEAD = '<ir_version: 10, opset_import: ["": 21]> '
# results that are computed, drawn, rearranged, handed on, known while shapes are, constant; an error for bad `i`
ALL = HEAD + (
    "g (float[n, 4] x, float[n, 4] h, int64[1] i) =>"
    " (float[n, 4] y, float[n, 4] h2, float[n, 4] r, float[4, n] t, float[n, 4] x2, int64[2] d, float[2] w,"
    " float[1, 4] z)"
    " <float[2] w = {1, 2}> { s = Add(x, h) h2 = Tanh(s) r = RandomNormalLike(x) t = Transpose(h2) x2 = Identity(x)"
    " d = Shape(x) a = Neg(s) b = Abs(a) c = Exp(h2) e = Mul(b, c) f = Sub(e, x) k = Softmax(f) y = Sqrt(k)"
    " z = Gather(s, i) }"
)
RELU = HEAD + "g (float[n] x) => (float[n] y) { y = Relu(x) }"
PICK = HEAD + "g (float[n] x, int64[1] i) => (float[n] y, float[1] z) { y = Relu(x) z = Gather(y, i) }"
CHAIN = HEAD + (
    "g (float[n] x, int64[k] i) => (float[k] z) { a = Sin(x) b = Cos(a) c = Sin(b) d = Cos(c) e = Sin(d) f = Cos(e)"
    " k = Sin(f) l = Cos(k) m = Sin(l) [picks] z = Gather(m, i) }"
)


class Probe:
    """A child of one partition, driven by hand. `forgets`: it takes the general road in every run."""

    def __init__(self, text: str, *, forgets: bool = False, **options: Any) -> None:
        planned = plan(onnx.parser.parse_model(text), ["cpu"])
        self.assignment = assignment(planned, 0)
        self.child = ChildExecutor(create(planned.providers[0]), RuntimeOptions(**options))
        self.weights = {"w": np.array([1, 2], np.float32)}
        self.forgets = forgets
        self.child.prepare(self.assignment, self.weights)
        assert self.assignment.tasks[0].straight

    def __call__(self, step: int, *inputs: Any, slot: str = "primary") -> list[Any]:
        return self.parcels(step, [inputs], slot)

    def parcels(
        self,
        step: int,
        parcels: Sequence[Sequence[Any]],
        slot: str = "primary",
        binding: Binding | None = None,
    ) -> list[Any]:
        if self.forgets:
            self.child._forget_steady()
        (sent,) = self.child.run(0, step, parcels, slot, binding)
        return sent

    @property
    def counters(self) -> dict[str, Any]:
        return {name: count for name, count in self.child.stats().items() if name != "busy_s"}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each run that could be steady, whether it was."""
    found: list[bool] = []
    run = Steady.run

    def noted(self: Steady, parcels: Sequence[Sequence[Any]]) -> list[list[Any]] | None:
        found.append(True)  # also where it raises
        sent = run(self, parcels)
        found[-1] = sent is not None
        return sent

    monkeypatch.setattr(Steady, "run", noted)
    return found


def f32(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def outcome(act: Any) -> Any:
    """What a call gives, or how it fails, to compare."""
    try:
        made = act()
    except HeteroError as error:
        return type(error), str(error), error.node, error.op, error.device, error.step
    except ValueError as error:
        return type(error), str(error)
    return [(v.dtype, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else repr(v) for v in made]


RUNS = st.tuples(
    st.sampled_from(
        ["as usual"] * 6 + ["bad index", "float64", "strided", "read-only", "too few", "two parcels"]
    ),
    st.sampled_from([2, 2, 2, 2, 3, 40]),
    st.sampled_from(["primary", "primary", "primary", "verify"]),
)
OTHERS = st.sampled_from(["drop", "prepare", "bind state", "bind none", "rewind", "pin", "again"])
ACTIONS = st.lists(st.one_of(st.lists(RUNS, min_size=1, max_size=4), OTHERS), min_size=2, max_size=14)


def acted(probe: Probe, action: Any, step: int) -> Any:
    """The outcome of an action: one run, or something that is done between two."""
    child = probe.child
    if isinstance(action, str):
        spec = StateSpec("h", "h2", TensorSpec(np.dtype(np.float32), (2, 4)), None)
        arrays = [f32(2, 4), f32(2, 4, seed=1), np.array([0])]
        acts: dict[str, Any] = {
            "drop": lambda: child.drop(step),
            "prepare": lambda: child.prepare(probe.assignment, probe.weights),
            "bind state": lambda: child.bind_state([spec], []),
            "bind none": lambda: child.bind_state([], []),
            "rewind": lambda: child.change_state(StateChange(reset=True)),
            "pin": lambda: probe.parcels(
                step, [arrays], "primary", Binding(frozenset(["x"]), {"y": f32(2, 4)})
            ),
            "again": lambda: probe(max(step - 1, 0), *arrays),
        }
        return outcome(lambda: acts[action]() or [])
    kind, n, slot = action
    x, h, i = f32(n, 4, seed=step), f32(n, 4, seed=step + 1), np.array([step % n])
    if kind == "bad index":
        i = np.array([n])
    elif kind == "float64":
        h = h.astype(np.float64)
    elif kind == "strided":
        x = np.asfortranarray(x)
    elif kind == "read-only":
        x.flags.writeable = False
    if kind == "too few":
        return outcome(lambda: probe(step, x, h, slot=slot))
    if kind == "two parcels":
        return outcome(lambda: probe.parcels(step, [[x], [h, i]], slot))
    return outcome(lambda: probe(step, x, h, i, slot=slot))


@settings(max_examples=60, deadline=None)
@given(
    ACTIONS,
    st.fixed_dictionaries(
        {
            "capture": st.booleans(),
            "stage_bytes": st.sampled_from([0, 100, 64 << 10]),
            "max_specializations": st.sampled_from([1, 2, 16]),
            "fuse_elementwise": st.booleans(),
        }
    ),
)
def test_whatever_happens_outputs_errors_and_counters_are_those_of_the_general_road(
    actions: list[Any], options: dict[str, Any]
) -> None:
    steady, general = Probe(ALL, **options), Probe(ALL, forgets=True, **options)
    flat = [a for action in actions for a in ([action] if isinstance(action, str) else action)]
    for step, action in enumerate(flat):
        assert acted(steady, action, step) == acted(general, action, step)
        assert steady.counters == general.counters
    for probe in (steady, general):
        probe.child.close()


@pytest.mark.parametrize("stage_bytes", [0, 64 << 10])
@pytest.mark.parametrize("capture", [True, False])
def test_a_third_run_of_the_same_specs_is_steady(taken: list[bool], capture: bool, stage_bytes: int) -> None:
    probe, general = (Probe(ALL, forgets=f, capture=capture, stage_bytes=stage_bytes) for f in (False, True))
    for step in range(5):
        inputs = f32(3, 4, seed=step), f32(3, 4, seed=step + 9), np.array([1])
        assert outcome(lambda i=inputs, s=step: probe(s, *i)) == outcome(
            lambda i=inputs, s=step: general(s, *i)
        )
    assert taken == [True] * 3


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans(), st.integers(0, 2))
def test_what_arrives_and_leaves_in_any_order_and_in_any_parcels_is_the_same(
    random: Random, capture: bool, left_out: int
) -> None:
    """Parcels of the inputs in another order, and of outputs some of which leave twice and some not at all."""
    probe, general = Probe(ALL, capture=capture), Probe(ALL, capture=capture)
    (task,) = probe.assignment.tasks.values()
    inputs, outputs = list(task.input_names), list(task.output_names)
    random.shuffle(inputs)
    random.shuffle(outputs)
    outputs = outputs[left_out:]
    at, out = random.randint(0, len(inputs)), random.randint(0, len(outputs))
    arranged = replace(
        task,
        receives=tuple(Send(k, tuple(names)) for k, names in enumerate((inputs[:at], inputs[at:]))),
        sends=tuple(Send(5 + k, tuple(names)) for k, names in enumerate((outputs[:out], outputs[out - 1 :]))),
    )
    assert arranged.straight
    rearranged = Assignment(0, {0: arranged}, probe.assignment.weights)
    for p in (probe, general):
        p.child.prepare(rearranged, p.weights)
    for step in range(5):
        n = (2, 2, 2, 3, 3)[step]
        values = {"x": f32(n, 4, seed=step), "h": f32(n, 4, seed=step + 9), "i": np.array([step % n])}
        parcels = [[values[name] for name in send.values] for send in arranged.receives]
        general.child._plain = False  # the road that knows values by name
        sent, want = (p.child.run(0, step, parcels) for p in (probe, general))
        assert list(map(len, sent)) == [out, len(outputs[out - 1 :])]
        for made, wanted in zip(sent, want, strict=True):
            assert [v.tobytes() for v in made] == [v.tobytes() for v in wanted]
    assert probe.child._next[0] is not None
    assert probe.counters == general.counters
    for p in (probe, general):
        p.child.close()


def test_results_are_the_callers_and_inputs_are_let_go(taken: list[bool]) -> None:
    for stage_bytes in (0, 64 << 10):
        probe = Probe(RELU, stage_bytes=stage_bytes)
        made = [probe(step, f32(8, seed=step))[0] for step in range(5)]
        for step, y in enumerate(made):
            assert np.array_equal(y, np.maximum(f32(8, seed=step), 0))
        x = f32(8)
        (y,) = probe(6, x)
        gone = weakref.ref(x), weakref.ref(y)
        del x, y
        gc.collect()
        assert [ref() for ref in gone] == [None, None]
    assert taken == [True] * 8


def test_shapes_in_turn_are_each_run_by_their_own_section(taken: list[bool]) -> None:
    probe = Probe(RELU, max_specializations=1)
    for step, n in enumerate([3, 3, 3, 4, 3, 3, 3, 4, 4, 4]):
        x = f32(n, seed=step)
        assert np.array_equal(probe(step, x)[0], np.maximum(x, 0))
    assert probe.counters["sections_evicted"] == 3
    assert taken == [True, False, True, False, True]


def test_a_section_that_grew_is_found_as_it_is_now(taken: list[bool]) -> None:
    text = HEAD + (
        "g (float[2, 3] q, float[2, n] x) => (float[2, 3] k, float[2, n] y)"
        " { a = Sin(q) b = Exp(a) c = Sqrt(b) d = Neg(c) e = Cos(d) k = Sin(e) y = Relu(x) }"
    )
    probe = Probe(text, verify_decode_memo=True, fuse_elementwise=False)
    lengths = [4, 5, 6, 7, 7, 7, 7, 8, 8, 8, 8, 9, 7, 7, 7]
    for step, n in enumerate(lengths):
        x = f32(2, n, seed=step)
        assert np.array_equal(probe(step, f32(2, 3), x)[1], np.maximum(x, 0))
    assert probe.counters["memo_replayed"] >= 2
    assert taken.count(True) == 5
    assert taken.count(False) == 2


def test_graph_slots_keep_their_steady_runs_apart(taken: list[bool]) -> None:
    probe, x = Probe(CHAIN, fuse_elementwise=False), f32(5)
    for step in range(10):
        probe(step, x, np.array([0]), slot=("primary", "verify")[step // 2 % 2])
    slots = probe.counters["graph_slots"]
    assert [slots[name]["recordings"] for name in ("primary", "verify")] == [1, 1]
    assert slots["primary"]["replays"] + slots["primary"]["eager_runs"] == 6
    assert slots["verify"]["replays"] + slots["verify"]["eager_runs"] == 4
    assert taken
    assert all(taken)


@pytest.mark.parametrize("text", [PICK, CHAIN])
def test_an_error_says_where_and_leaves_the_run_to_come_steady(taken: list[bool], text: str) -> None:
    probe, general = (Probe(text, forgets=f, fuse_elementwise=False) for f in (False, True))
    x = f32(6)
    for p in (probe, general):
        for step in range(4):
            p(step, x, np.array([2]))
    before = len(taken)
    bad = np.array([6])
    gone = weakref.ref(bad)
    with pytest.raises(KernelError) as caught:
        probe(4, x, bad)
    assert (caught.value.op, caught.value.device, caught.value.step) == ("Gather", "cpu", 4)
    del caught, bad
    gc.collect()
    assert gone() is None
    failed = [outcome(lambda p=p: p(4, x, np.array([6]))) for p in (probe, general)]
    assert failed[0] == failed[1]
    assert probe(5, x, np.array([2]))[-1].tobytes() == general(5, x, np.array([2]))[-1].tobytes()
    assert taken[before:] == [True] * 3
    assert probe.counters["bytes_in"] == general.counters["bytes_in"] + x.nbytes + 8


def test_an_error_behind_what_is_recorded_says_where(taken: list[bool]) -> None:
    probe, x = Probe(CHAIN, fuse_elementwise=False, stage_bytes=12), f32(3)  # two indices are not copied
    for step in range(4):
        probe(step, x, np.array([2, 1]))
    assert probe.counters["graph_slots"]["primary"]["segments"] == 1
    assert probe.counters["volatile_steps"] == 1
    with pytest.raises(KernelError) as caught:
        probe(4, x, np.array([2, 3]))
    assert (caught.value.op, caught.value.node, caught.value.step) == ("Gather", "picks", 4)
    section = next(iter(probe.child._runners[0].roots.sections.values()))
    section.captured["primary"].steps[-1] = lambda: 1 // 0
    with pytest.raises(KernelError, match="ZeroDivisionError") as caught:
        probe(5, x, np.array([2, 1]))
    assert (caught.value.op, caught.value.node, caught.value.step) == ("Gather", "picks", 5)
    assert taken == [True] * 4


def test_sections_that_were_dropped_are_not_run(taken: list[bool]) -> None:
    probe = Probe(RELU, capture=False)
    for step in range(4):
        probe(step, f32(6))
    probe.child._runners[0].drop_sections()
    x = f32(6, seed=1)
    assert np.array_equal(probe(4, x)[0], np.maximum(x, 0))
    assert taken == [True, True, False]


def test_a_recording_that_is_gone_is_made_anew(taken: list[bool]) -> None:
    probe, x = Probe(CHAIN, fuse_elementwise=False), f32(6)
    for step in range(4):
        probe(step, x, np.array([2]))
    want = probe(4, x, np.array([2]))[0].tobytes()
    context = probe.child._context
    assert context is not None
    context.recorder.artifacts.advance()
    assert [probe(step, x, np.array([2]))[0].tobytes() for step in (5, 6)] == [want, want]
    assert probe.counters["graph_slots"]["primary"]["recordings"] == 2
    assert taken == [True] * 3 + [False, True]


def test_other_parcels_than_the_partitions_are_refused_as_ever(taken: list[bool]) -> None:
    probe, x, i = Probe(PICK), f32(6), np.array([0])
    for step in range(3):
        probe(step, x, i)
    for parcels in ([], [[x]], [[x], [i]], [[x, i, i]]):
        with pytest.raises(TransportError, match="parcel"):
            probe.parcels(3, parcels)
    assert len(probe(3, x, i)) == 2
    assert taken == [True] + [False] * 4 + [True]


def test_a_closed_child_has_no_next_run() -> None:
    probe, x = Probe(RELU), f32(6)
    for step in range(4):
        probe(step, x)
    probe.child.close()
    with pytest.raises(ClosedError):
        probe(4, x)


def test_what_is_dropped_is_not_kept_for_the_next_run() -> None:
    probe, x = Probe(RELU, max_specializations=1), f32(6)
    for step in range(4):
        probe(step, x)
    runner = probe.child._runners[0]
    section = weakref.ref(next(iter(runner.roots.sections.values())).exit)
    probe(5, f32(7))
    gc.collect()
    assert section() is None


def test_runs_that_are_traced_leave_a_span_each() -> None:
    probe, x = Probe(RELU, trace=True), f32(6)
    for step in range(5):
        probe(step, x)
    assert [span.step for span in probe.child.take_spans()] == list(range(5))


def test_traced_instructions_are_called_one_by_one(taken: list[bool]) -> None:
    probe, x = Probe(RELU, trace_ops=True), f32(6)
    for step in range(5):
        probe(step, x)
    assert [span.step for span in probe.child.take_spans()] == list(range(1, 5))
    assert taken == []


def test_steady_runs_of_a_thread_that_dwells_draw_what_others_draw(taken: list[bool]) -> None:
    text = HEAD + "g (float[n] x) => (float[n] y, float[n] z) { y = Log(x) z = RandomNormalLike(x) }"
    found: list[list[bytes]] = []

    def ran(*, dwells: bool) -> None:
        probe = Probe(text, seed=5)
        if dwells:
            probe.child.dwell()
        made = [probe(step, np.zeros(4, np.float32)) for step in (1, 2, 3, 3, 4, 2)]
        found.append([v.tobytes() for values in made for v in values])

    thread = threading.Thread(target=lambda: ran(dwells=True))
    thread.start()
    thread.join()
    with np.errstate(all="raise"):
        ran(dwells=False)
    assert found[0] == found[1]
    assert found[0][5] == found[0][7] != found[0][9]
    assert found[0][3] == found[0][11]
    assert taken == [True] * 8
