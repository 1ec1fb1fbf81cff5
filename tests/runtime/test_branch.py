"""An If is not run again while nothing changed; whatever may have changed runs it again."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.runtime.analysis import analyse
from tests.acceptance.harness import executor

PLACES = pytest.mark.parametrize("providers", [["cpu"], ["sim:0", "cpu"]], ids=["cpu", "sim"])


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def counters(ex: HeterogeneousExecutor) -> tuple[int, int]:
    """(bodies run, runs answered from memory), over all children."""
    children = ex.stats()["children"].values()
    return sum(c["body_runs"] for c in children), sum(c["if_memo_hits"] for c in children)


FORK = (
    "g (bool c, float[n] x) => (float[n] y) { y = If (c)"
    " <then_branch = t () => (float[n] a) { a = Add(x, x) }, else_branch = e () => (float[n] b) { b = Neg(x) }> }"
)


def test_an_if_runs_again_only_when_its_condition_or_a_captured_byte_changed() -> None:
    x = f32(1, 2)
    with executor(FORK) as ex:
        expected = [
            (True, x, [2, 4], (1, 0)),
            (True, x, [2, 4], (1, 1)),
            (True, x.copy(), [2, 4], (1, 2)),  # other memory, same bytes
            (False, x, [-1, -2], (2, 2)),
            (False, x, [-1, -2], (2, 3)),
            (True, x, [2, 4], (3, 3)),
            (True, f32(1, 3), [2, 6], (4, 3)),
            (True, f32(1, 3, 5), [2, 6, 10], (5, 3)),
            (True, f32(1, 3, 5), [2, 6, 10], (5, 4)),
        ]
        for c, feed, y, counts in expected:
            assert ex.run({"c": np.array(c), "x": feed})["y"].tolist() == y
            assert counters(ex) == counts


def test_an_array_that_the_caller_changed_in_place_runs_the_branch_again() -> None:
    x, c = f32(1, 2), np.array(True)
    with executor(FORK) as ex:
        for k in range(6):
            x[0] = k // 2
            assert ex.run({"c": c, "x": x})["y"].tolist() == [2 * (k // 2), 4]
        c[...] = False
        assert ex.run({"c": c, "x": x})["y"].tolist() == [-2, -2]
        assert counters(ex) == (4, 3)


def test_a_result_that_the_caller_wrote_on_is_not_what_the_next_run_gets() -> None:
    through = FORK.replace("a = Add(x, x)", "a = Neg(x)").replace("b = Neg(x)", "b = Identity(x)")
    for c in (True, False):
        with executor(through) as ex:
            x = f32(1, 2)
            wanted = (-x if c else x).tolist()
            for _ in range(3):
                y = ex.run({"c": np.array(c), "x": x.copy()})["y"]
                assert y.tolist() == wanted
                y[...] = 99
            assert counters(ex)[1] == 2


def test_signed_zeros_and_nans_are_compared_by_their_bytes() -> None:
    with executor(FORK) as ex:
        y = [ex.run({"c": np.array(False), "x": f32(z)})["y"] for z in (0.0, -0.0, np.nan, np.nan)]
        assert [bool(np.signbit(v[0])) for v in y[:2]] == [True, False]
        assert counters(ex) == (3, 1)


def test_a_branch_that_draws_numbers_is_run_every_time() -> None:
    text = (
        "g (bool c) => (float[4] y) { y = If (c)"
        " <then_branch = t () => (float[4] a) { a = RandomNormal<shape=[4]>() },"
        " else_branch = e () => (float[4] b) { b = RandomUniform<shape=[4]>() }> }"
    )
    with executor(text) as ex:
        drawn = [ex.run({"c": np.array(True)})["y"].tolist() for _ in range(3)]
        assert len(set(map(tuple, drawn))) == 3
        assert counters(ex) == (3, 0)


def test_a_body_inside_a_branch_that_draws_numbers_counts_too() -> None:
    text = (
        "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] a) { a = If (c)"
        " <then_branch = t2 () => (float[2] a2) { r = RandomNormal<shape=[2]>() a2 = Add(r, x) },"
        " else_branch = e2 () => (float[2] b2) { b2 = Neg(x) }> }, else_branch = e () => (float[2] b) { b = Neg(x) }> }"
    )
    with executor(text) as ex:
        drawn = {tuple(ex.run({"c": np.array(True), "x": f32(0, 0)})["y"].tolist()) for _ in range(3)}
        assert len(drawn) == 3


@PLACES
def test_branches_that_capture_constants_alone_are_not_run_again_on_any_device(providers: list[Any]) -> None:
    text = (
        "g (bool c) => (float[2] y) { w = Constant<value_floats=[1.0, 2.0]>() y = If (c)"
        " <then_branch = t () => (float[2] a) { a = Exp(w) }, else_branch = e () => (float[2] b) { b = Neg(w) }> }"
    )
    with executor(text, providers) as ex:
        for c in (True, True, True, False, False):
            y = ex.run({"c": np.array(c)})["y"]
            assert y == pytest.approx(np.exp(f32(1, 2)) if c else f32(-1, -2))
        assert counters(ex) == (2, 3)


def test_what_a_device_captures_is_not_looked_at() -> None:
    with executor(FORK, ["sim:0", "cpu"]) as ex:
        for _ in range(3):
            assert ex.run({"c": np.array(True), "x": f32(1, 2)})["y"].tolist() == [2, 4]
        assert counters(ex) == (3, 0)


def test_captures_larger_than_the_limit_are_not_compared() -> None:
    with executor(FORK, memo_if_bytes=8) as ex:
        for n, counts in ((2, (1, 1)), (3, (3, 1))):
            for _ in range(2):
                ex.run({"c": np.array(True), "x": np.ones(n, np.float32)})
            assert counters(ex) == counts


def test_an_if_that_always_sees_something_new_stops_looking_for_a_while() -> None:
    with executor(FORK) as ex:
        for k in range(40):
            assert ex.run({"c": np.array(True), "x": f32(k)})["y"].tolist() == [2 * k]
        for _ in range(80):
            assert ex.run({"c": np.array(True), "x": f32(7)})["y"].tolist() == [14]
        runs, hits = counters(ex)
        assert runs + hits == 120
        assert 0 < hits < 80


def test_the_switch_runs_it_every_time_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = f32(0.1, 1e-30)
    with executor(FORK) as ex:
        wanted = [ex.run({"c": np.array(True), "x": x})["y"].tobytes() for _ in range(3)]
    monkeypatch.setenv("HETERO_MEMO_IF_BYTES", "0")
    with executor(FORK) as ex:
        assert [ex.run({"c": np.array(True), "x": x})["y"].tobytes() for _ in range(3)] == wanted
        assert counters(ex) == (3, 0)


@PLACES
def test_branches_may_differ_in_rank_and_extent(providers: list[Any]) -> None:
    text = (
        "g (bool c, float[2] x) => (float y) { y = If (c)"
        " <then_branch = t () => (float a) { a = ReduceSum<keepdims=0>(x) },"
        " else_branch = e () => (float[1, 4] b) { z = Constant<value_ints=[0]>() w = Concat<axis=0>(x, x)"
        " b = Unsqueeze(w, z) }> }"
    )
    with executor(text, providers) as ex:
        for c in (True, False, True):
            y = ex.run({"c": np.array(c), "x": f32(1, 2)})["y"]
            assert y.tolist() == (3 if c else [[1, 2, 1, 2]])


@PLACES
def test_a_branch_may_return_a_captured_value_a_constant_or_one_value_twice(providers: list[Any]) -> None:
    text = (
        "g (bool c, float[2] x) => (float[2] y, float[2] z, float[2] w) { t = Neg(x) y, z, w = If (c)"
        " <then_branch = th () => (float[2] x, float[2] t, float[2] t) { },"
        " else_branch = el () => (float[2] k, float[2] k, float[2] s) {"
        " k = Constant<value_floats=[5.0, 6.0]>() s = Add(x, t) }> }"
    )
    with executor(text, providers) as ex:
        for c in (True, False, True, False):
            out = ex.run({"c": np.array(c), "x": f32(1, 2)})
            found = [out[name].tolist() for name in "yzw"]
            assert found == ([[1, 2], [-1, -2], [-1, -2]] if c else [[5, 6], [5, 6], [0, 0]])


def test_names_inside_a_branch_may_be_those_of_the_graph_around_it_or_of_the_other_branch() -> None:
    text = (
        '<ir_version: 9, opset_import: ["": 18]>\n'
        "g (bool c, float[2] x) => (float[2] y) { z = Neg(x) r = If (c)"
        " <then_branch = t () => (float[2] u) { v = Add(z, z) u = Add(v, x) },"
        " else_branch = e () => (float[2] u) { v = Add(x, x) u = Add(v, z) }> y = Add(r, z) }"
    )
    model = onnx.parser.parse_model(text)
    with HeterogeneousExecutor(model, ["cpu"], children="inline", options=RuntimeOptions()) as ex:
        assert ex.run({"c": np.array(True), "x": f32(1, 2)})["y"].tolist() == [-2, -4]
        assert ex.run({"c": np.array(False), "x": f32(1, 2)})["y"].tolist() == [0, 0]


READ = (
    "g (bool c, float[n] x) => (float[n] y) { z = Neg(x) y = If (c)"
    " <then_branch = t () => (float[n] a) { u = Identity(z) a = Add(u, x) }, else_branch = e () => (float[n] b) {%s}> }"
)


@PLACES
@pytest.mark.parametrize(
    ("otherwise", "copied"),
    [(" b = Sub(z, x) ", True), (" b = Identity(z) ", False), (" u = If (c) <then_branch = tt () => (float[n] p)"
     " { p = Mul(z, z) }, else_branch = ee () => (float[n] q) { q = Identity(z) }> b = Identity(u) ", False)],
    ids=["read", "handed on", "handed on within"],
)  # fmt: skip
def test_what_branches_only_read_stays_where_it_is(
    providers: list[Any], otherwise: str, copied: bool
) -> None:
    with executor(READ % otherwise, providers) as ex:
        for k in range(4):
            c, x = k % 2 == 0, f32(1, k)
            y = ex.run({"c": np.array(c), "x": x})["y"]
            assert y.tolist() == ([0, 0] if c else [-2, -2 * k] if copied else [-1, -k])
        program = ex.plan.partitions[0].program
        (negated,) = (i.outputs[0] for i in program.instructions if i.op.id == "Neg")
        assert (negated not in analyse(program).lent) is copied


@PLACES
def test_what_a_branch_hands_on_outlives_what_follows(providers: list[Any]) -> None:
    text = (
        "g (bool c, float[2] x) => (float[2] y, float[2] w) { t = Neg(x) y = If (c)"
        " <then_branch = th () => (float[2] r) { s = Constant<value_ints=[1, 2]>() u = Reshape(t, s)"
        " v = Constant<value_ints=[2]>() r = Reshape(u, v) }, else_branch = el () => (float[2] r) { r = Add(t, x) }>"
        " a = Exp(x) b = Exp(a) d = Neg(b) w = Neg(d) }"
    )
    kept = []
    with executor(text, providers, fuse_elementwise=False) as ex:
        for k in range(4):
            x = f32(0.5, k / 4)
            kept.append((x, ex.run({"c": np.array(True), "x": x})))
    for x, out in kept:
        assert out["y"].tolist() == (-x).tolist()
        np.testing.assert_allclose(out["w"], np.exp(np.exp(x)), rtol=1e-5)
