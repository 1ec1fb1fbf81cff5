"""Loop where its text is easily misread: what is left out, no trips, bodies that compute nothing, changing shapes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.acceptance.harness import executor
from tests.runtime.harness import rig

HEAD = '<ir_version: 9, opset_import: ["": 18]>\n'
PLACES = pytest.mark.parametrize("providers", [["cpu"], ["sim:0", "cpu"]], ids=["cpu", "sim"])
SWITCHES = pytest.mark.parametrize("frame_bytes", [16384, 8, 0])


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def run(
    text: str, providers: list[Any], times: int = 2, options: dict[str, Any] | None = None, **feeds: Any
) -> Any:
    """Outputs of the last of some runs, by name, as lists; all runs gave the same bytes."""
    with executor(text, providers, **(options or {})) as ex:
        seen = [{k: (v.dtype, v.shape, v.tobytes()) for k, v in ex.run(feeds).items()} for _ in range(times)]
        assert all(s == seen[0] for s in seen)
        return {k: v.tolist() for k, v in ex.run(feeds).items()}


def doubling(inputs: str, M: str, cond: str, go: str = "go = Identity(c)") -> str:
    return (
        f"g ({inputs} float[2] x) => (float[2] y) {{ y = Loop ({M}, {cond}, x)"
        f" <body = body (int64 i, bool c, float[2] v) => (bool go, float[2] w) {{ {go} w = Add(v, v) }}> }}"
    )


STOPS = "one = Constant<value_int=1>() go = Less(i, one)"  # after the second iteration


@PLACES
def test_with_a_trip_count_alone_the_body_s_condition_is_ignored(providers: list[Any]) -> None:
    assert run(doubling("int64 M,", "M", '""', STOPS), providers, M=np.array(4), x=f32(1, 2))["y"] == [16, 32]


@PLACES
def test_with_a_condition_alone_it_runs_until_the_body_says_no(providers: list[Any]) -> None:
    text = doubling("bool k,", '""', "k", STOPS)
    assert run(text, providers, k=np.array(True), x=f32(1, 2))["y"] == [4, 8]
    assert run(text, providers, k=np.array(False), x=f32(1, 2))["y"] == [1, 2]


@PLACES
def test_with_neither_the_body_s_condition_is_all_that_can_end_it(providers: list[Any]) -> None:
    assert run(doubling("", '""', '""', STOPS), providers, x=f32(1, 2))["y"] == [4, 8]


@PLACES
@pytest.mark.parametrize(("trips", "y"), [(3, [8, 16]), (0, [1, 2]), (-1, [1, 2]), (-(2**63), [1, 2])])
def test_a_trip_count_may_be_negative_and_either_operand_may_have_shape_1(
    providers: list[Any], trips: int, y: list[float]
) -> None:
    text = doubling("int64[1] M, bool[1] k,", "M", "k")
    assert run(text, providers, M=np.array([trips]), k=np.array([True]), x=f32(1, 2))["y"] == y


@PLACES
def test_the_largest_trip_count_ends_by_the_condition(providers: list[Any]) -> None:
    text = doubling("int64 M, bool k,", "M", "k", STOPS)
    assert run(text, providers, M=np.array(2**63 - 1), k=np.array(True), x=f32(1, 2))["y"] == [4, 8]


@PLACES
def test_the_condition_may_follow_from_captured_values(providers: list[Any]) -> None:
    text = (
        "g (int64 M, bool k, float[2] x, float high) => (float[2] y) { top = Neg(high) y = Loop (M, k, x)"
        " <body = body (int64 i, bool c, float[2] v) => (bool go, float[2] w) { w = Add(v, v)"
        " s = ReduceSum<keepdims=0>(w) high2 = Neg(top) go = Less(s, high2) }> }"
    )
    feeds = {"M": np.array(99), "k": np.array(True), "x": f32(1, 2)}
    for high, y in ((20, [8, 16]), (5, [2, 4]), (100, [64, 128])):
        assert run(text, providers, high=np.array(high, np.float32), **feeds)["y"] == y


@PLACES
@SWITCHES
def test_a_body_may_return_what_it_was_given_in_another_order(providers: list[Any], frame_bytes: int) -> None:
    text = (
        "g (int64 M, float[2] x, float[2] y, float[2] z) => (float[2] a, float[2] b, float[2] d, float[k,2] s) {"
        ' a, b, d, s = Loop (M, "", x, y, z) <body = body (int64 i, bool c, float[2] p, float[2] q, float[2] r)'
        " => (bool c, float[2] q2, float[2] r, float[2] p, float[2] p) { q2 = Identity(q) }> }"
    )
    feeds = {"x": f32(1, 1), "y": f32(2, 2), "z": f32(3, 3)}
    for trips in range(5):
        a, b, d, s = [1, 1], [2, 2], [3, 3], []
        for _ in range(trips):
            s.append(a)
            a, b, d = b, d, a
        found = run(text, providers, options={"frame_bytes": frame_bytes}, M=np.array(trips), **feeds)
        assert found == {"a": a, "b": b, "d": d, "s": s}


@PLACES
def test_a_body_may_return_a_capture_a_constant_and_one_value_twice(providers: list[Any]) -> None:
    text = (
        "g (int64 M, float[2] x) => (float[2] a, float[2] b, float[k,2] s, float[k,2] t) { n = Neg(x)"
        ' a, b, s, t = Loop (M, "", x, x) <body = body (int64 i, bool c, float[2] p, float[2] q)'
        " => (bool c, float[2] n, float[2] k, float[2] k, float[2] k) { k = Constant<value_floats=[5.0, 6.0]>() }> }"
    )
    assert run(text, providers, M=np.array(2), x=f32(1, 2)) == {
        "a": [-1, -2],
        "b": [5, 6],
        "s": [[5, 6]] * 2,
        "t": [[5, 6]] * 2,
    }


@PLACES
def test_outputs_that_nobody_wants_may_be_left_out(providers: list[Any]) -> None:
    text = (
        'g (int64 M, float[2] x) => (float[k,2] s) { "", "", s = Loop (M, "", x) <body = body'
        " (int64 i, bool c, float[2] v) => (bool c, float[2] w, float[2] v, float[2] w) { w = Add(v, x) }> }"
    )
    assert run(text, providers, M=np.array(3), x=f32(1, 2))["s"] == [[2, 4], [3, 6], [4, 8]]


@PLACES
def test_no_trips_give_typed_empty_scan_outputs_whose_extents_are_those_of_the_inputs(
    providers: list[Any],
) -> None:
    text = (
        'g (int64 M, float[n] x) => (float[n] y, float[k,n,2] s, int64[k] t) { y, s, t = Loop (M, "", x) <body = body'
        " (int64 i, bool c, float[n] v) => (bool c, float[n] w, float[n,2] u, int64 i)"
        " { w = Add(v, x) e = Constant<value_ints=[1]>() p = Unsqueeze(w, e) u = Concat<axis=1>(p, p) }> }"
    )
    with executor(text, providers) as ex:
        for _ in range(2):
            out = ex.run({"M": np.array(0), "x": f32(1, 2, 3)})
            assert (out["s"].dtype, out["s"].shape) == (np.float32, (0, 3, 2))
            assert (out["t"].dtype, out["t"].shape) == (np.int64, (0,))
            assert out["y"].tolist() == [1, 2, 3]
            assert ex.run({"M": np.array(2), "x": f32(1, 2, 3)})["s"].shape == (2, 3, 2)


@PLACES
def test_a_result_does_not_change_when_the_caller_writes_on_the_input_it_came_from(
    providers: list[Any],
) -> None:
    passing = doubling("int64 M,", "M", '""').replace("w = Add(v, v)", "w = Identity(v)")
    for text in (doubling("int64 M,", "M", '""'), passing):
        with executor(text, providers) as ex:
            for trips in (0, 1, 3):
                x = f32(1, 2)
                y = ex.run({"M": np.array(trips), "x": x})["y"]
                kept = y.tolist()
                x[...] = 99
                assert y.tolist() == kept
                y[...] = 7
                assert ex.run({"M": np.array(0), "x": f32(1, 2)})["y"].tolist() == [1, 2]


@PLACES
@SWITCHES
def test_carried_values_may_change_their_shapes_back_and_forth(
    providers: list[Any], frame_bytes: int
) -> None:
    text = (
        'g (int64 M, float[n] x, float[m] y) => (float[p] a, float[q] b) { a, b = Loop (M, "", x, y)'
        " <body = body (int64 i, bool c, float[r] v, float[s] w) => (bool c, float[t] v2, float[u] w2)"
        " { v2 = Neg(w) w2 = Concat<axis=0>(v, x) }> }"
    )
    x, y = f32(1, 2), f32(3)
    for trips in range(7):
        a, b = x, y
        for _ in range(trips):
            a, b = -b, np.concatenate([a, x])
        found = run(text, providers, options={"frame_bytes": frame_bytes}, M=np.array(trips), x=x, y=y)
        assert found == {"a": a.tolist(), "b": b.tolist()}


@PLACES
@SWITCHES
def test_large_and_small_values_are_carried_side_by_side(providers: list[Any], frame_bytes: int) -> None:
    text = (
        "g (int64 M, float[n,n] x, float[2] y) => (float[n,n] a, float[2] b, float[k,2] s) {"
        ' a, b, s = Loop (M, "", x, y) <body = body (int64 i, bool c, float[n,n] v, float[2] w)'
        " => (bool c, float[n,n] v2, float[2] w2, float[2] w2) { t = Add(v, x) v2 = Transpose(t)"
        " z = Constant<value_ints=[0, 1]>() top = ReduceMax<keepdims=0>(v, z) w2 = Add(w, top) }> }"
    )
    x, y = np.arange(4900, dtype=np.float32).reshape(70, 70) / 64, f32(1, 2)
    a, b, s = x, y, []
    for _ in range(4):
        a, b = (a + x).T, b + a.max()
        s.append(b.tolist())
    found = run(text, providers, options={"frame_bytes": frame_bytes}, M=np.array(4), x=x, y=y)
    assert found == {"a": a.tolist(), "b": b.tolist(), "s": s}


@PLACES
def test_the_iteration_number_counts_from_zero_in_every_run_and_every_nested_loop(
    providers: list[Any],
) -> None:
    text = (
        'g (int64 M) => (int64[k, j] s) { s = Loop (M, "") <body = outer (int64 i, bool c) => (bool c, int64[j] t) {'
        ' t = Loop (M, "") <body = inner (int64 k, bool d) => (bool d, int64 u) {'
        " ten = Constant<value_int=10>() v = Mul(i, ten) u = Add(v, k) }> }> }"
    )
    assert run(text, providers, M=np.array(3))["s"] == [[0, 1, 2], [10, 11, 12], [20, 21, 22]]


@PLACES
def test_the_same_names_may_be_used_inside_and_outside_of_a_body(providers: list[Any]) -> None:
    text = (
        "g (int64 M, float[2] x) => (float[2] y) { z = Neg(x) c = Constant<value_int=1>() k = Cast<to=9>(c)"
        " y = Loop (M, k, x) <body = body (int64 c, bool d, float[2] z) => (bool d, float[2] x) { x = Add(z, z) }> }"
    )
    assert run(text, providers, M=np.array(3), x=f32(1, 2))["y"] == [8, 16]


@PLACES
def test_deeply_nested_flow_reads_values_of_every_level(providers: list[Any]) -> None:
    text = (
        "g (bool c, int64 M, float[n,2] r, float[2] x) => (float[2] y) { k = Add(x, x) y = If (c)"
        " <then_branch = t () => (float[2] a) { k1 = Neg(k) a = Scan (x, r) <num_scan_inputs=1,"
        "   body = s (float[2] st, float[2] row) => (float[2] st2) { k2 = Add(k1, row)"
        '   st2 = Loop (M, "", st) <body = l (int64 i, bool go, float[2] v) => (bool go, float[2] w) {'
        "     one = Constant<value_int=1>() f = Less(i, one) w = If (f)"
        "       <then_branch = t2 () => (float[2] p) { q = Add(v, k2) p = Add(q, x) },"
        "        else_branch = e2 () => (float[2] p) { p = Sub(v, k) }> }> }> },"
        " else_branch = e () => (float[2] b) { b = Identity(k) }> }"
    )
    x, rows = f32(1, 2), f32(1, 2, 3, 4, 5, 6).reshape(3, 2)
    y = x.copy()
    for row in rows:
        for i in range(2):
            y = y + (-2 * x + row) + x if i < 1 else y - 2 * x
    assert run(text, providers, c=np.array(True), M=np.array(2), r=rows, x=x)["y"] == y.tolist()
    assert run(text, providers, c=np.array(False), M=np.array(2), r=rows, x=x)["y"] == [2, 4]


@PLACES
@SWITCHES
def test_shapes_that_follow_from_the_iteration_number_are_right_in_every_iteration(
    providers: list[Any], frame_bytes: int
) -> None:
    text = (
        "g (int64 M, float[n] x, float[2] y0) => (float[m] w, float[2] y) { e = Constant<value_floats=[0.5]>()"
        ' w, y = Loop (M, "", e, y0) <body = body (int64 i, bool c, float[k] v, float[2] a)'
        " => (bool c, float[l] v2, float[2] b) { zero = Constant<value_ints=[0]>() one = Constant<value_int=1>()"
        " n = Add(i, one) end = Unsqueeze(n, zero) v2 = Slice(x, zero, end) b = Add(a, y0) }> }"
    )
    x = np.arange(50, dtype=np.float32)
    for trips in (40, 3):
        found = run(text, providers, 1, {"frame_bytes": frame_bytes}, M=np.array(trips), x=x, y0=f32(1, 2))
        assert found == {"w": x[:trips].tolist(), "y": [trips + 1, 2 * (trips + 1)]}


@PLACES
def test_a_failure_in_the_middle_of_a_loop_leaves_nothing_behind(providers: list[Any]) -> None:
    text = (
        'g (int64 M, float[2] x, float[n] w) => (float[2] y, float[k,2] s) { y, s = Loop (M, "", x)'
        " <body = body (int64 i, bool c, float[2] v) => (bool c, float[2] u, float[2] u)"
        " { [pick] e = Gather(w, i) u = Add(v, e) }> }"
    )
    feeds = {"x": f32(1, 2), "w": f32(10, 20)}
    with executor(text, providers) as ex:
        for _ in range(2):
            with pytest.raises(KernelError) as caught:
                ex.run({"M": np.array(3), **feeds})
            assert caught.value.node == "pick"
            out = ex.run({"M": np.array(2), **feeds})
            assert out["y"].tolist() == [31, 32]
            assert out["s"].tolist() == [[11, 12], [31, 32]]


def test_bodies_are_built_once_for_each_of_four_signatures_and_run_once_per_iteration() -> None:
    text = (
        'g (int64 M, float[n] x) => (float[n] y) { y = Loop (M, "", x) <body = body (int64 i, bool c, float[n] v)'
        " => (bool c, float[n] w) { w = Add(v, v) }> }"
    )
    r = rig(HEAD + text)
    s = r.runner.statistics
    for n in range(1, 5):
        r(np.array(10), np.ones(n, np.float32))
    assert (s.bodies_built, s.body_runs) == (1, 40)
    built = s.sections_built
    for n in range(1, 5):
        r(np.array(10), np.ones(n, np.float32))
    assert (s.sections_built, s.sections_evicted, s.body_runs) == (built, 0, 80)
    r(np.array(10), np.ones(5, np.float32))
    assert s.sections_evicted == 1


def test_an_iteration_of_a_small_body_binds_nothing_and_calls_few_python_functions() -> None:
    text = (
        'g (int64 M, float[4] x) => (float[4] y, float[k,4] s) { y, s = Loop (M, "", x) <body = body'
        " (int64 i, bool c, float[4] v) => (bool d, float[4] w, float[4] t)"
        " { d = Identity(c) t = Mul(v, x) u = Neg(t) w = Add(u, x) }> }"
    )
    r = rig(HEAD + text)
    x = f32(1, 2, 3, 4)
    counts: dict[int, int] = {}
    for trips in (10, 110):
        r(np.array(trips), x)
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        volatile = r.runner.statistics.volatile_steps
        sys.setprofile(count)
        try:
            r(np.array(trips), x)
        finally:
            sys.setprofile(None)
        counts[trips] = calls
        assert r.runner.statistics.volatile_steps == volatile
    assert (counts[110] - counts[10]) / 100 <= 16


def test_a_captured_constant_is_uploaded_and_bound_once() -> None:
    text = (
        'g (int64 M, float[2,2] x) => (float[2,2] y) { y = Loop (M, "", x) <body = body (int64 i, bool c, float[2,2] v)'
        " => (bool c, float[2,2] w) { k = Constant<value_floats=[1.0, 0.0, 0.0, 2.0]>()"
        " shape = Constant<value_ints=[2, 2]>() m = Reshape(k, shape) w = MatMul(v, m) }> }"
    )
    x, costs = f32(1, 2, 3, 4).reshape(2, 2), []
    with executor(text, ["sim:0", "cpu"]) as ex:
        for trips in (5, 5, 20):
            before = ex.stats()["children"]["sim:0"]["memory"]
            y = ex.run({"M": np.array(trips), "x": x})["y"]
            after = ex.stats()["children"]["sim:0"]["memory"]
            assert y.tolist() == [[1, 2 * 2**trips], [3, 4 * 2**trips]]
            costs.append({k: after[k] - before[k] for k in ("uploads", "downloads", "syncs")})
    assert costs[2] == costs[1]  # nothing per iteration
