"""Sequences through the executor: handles move, bytes do not; on a device an element comes when it is read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.errors import HeteroError, KernelError
from hetero.types import SequenceValue
from tests.acceptance.harness import executor
from tests.runtime.harness import rig

HEAD = '<ir_version: 9, opset_import: ["": 18]>\n'
CHILDREN: list[list[Any]] = [["cpu"], ["sim:0", "cpu"]]
PLACES = pytest.mark.parametrize("providers", CHILDREN, ids=["cpu", "sim"])


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def memory(ex: HeterogeneousExecutor, child: str) -> dict[str, Any]:
    found: dict[str, Any] = ex.stats()["children"][child]["memory"]
    return found


def lists(value: Sequence[Any]) -> list[Any]:
    return [np.asarray(e).tolist() for e in value]


APPENDS = (
    "g (int64 M, float[2] x) => (seq(float[2]) s) { e = SequenceEmpty()"
    ' s = Loop (M, "", e) <body = body (int64 i, bool c, seq(float[2]) v) => (bool c, seq(float[2]) w)'
    " { w = SequenceInsert(v, x) }> }"
)


@PLACES
def test_appends_in_a_loop_copy_no_handle_and_share_the_one_element(providers: list[Any]) -> None:
    r = rig(HEAD + APPENDS, providers[0])
    x = f32(1, 2)
    (s,) = r(np.array(2_000), x)
    assert len(s) == 2_000
    assert s.handles_copied == 0
    assert len({id(e) for e in s}) == 1
    if providers[0] == "cpu":
        assert s[0] is x


@PLACES
def test_the_work_of_appending_in_a_loop_grows_with_the_number_of_appends(providers: list[Any]) -> None:
    r = rig(HEAD + APPENDS, providers[0])
    x, calls = f32(1, 2), 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    counts = []
    for trips in (10, 200, 400):
        r(np.array(trips), x)
        calls = 0
        sys.setprofile(count)
        try:
            r(np.array(trips), x)
        finally:
            sys.setprofile(None)
        counts.append(calls)
    few, some, many = counts
    assert many - few < 2.1 * (some - few) + 100


def test_a_stack_that_is_popped_and_pushed_in_a_loop_copies_no_handle_and_keeps_no_element() -> None:
    r = rig(
        HEAD + "g (int64 M, seq(float[2]) s0, float[2] x) => (seq(float[2]) s) {"
        ' s = Loop (M, "", s0) <body = body (int64 i, bool c, seq(float[2]) v) => (bool c, seq(float[2]) w)'
        " { y = Neg(x) a = SequenceInsert(v, y) b = SequenceInsert(a, x) d = SequenceErase(b) w = SequenceErase(d) }> }"
    )
    given = SequenceValue([f32(k, k) for k in range(50)])
    (s,) = r(np.array(500), given, f32(1, 2))
    assert [id(e) for e in s] == [id(e) for e in given]
    assert s.handles_copied == 0
    assert len(s._store.items) == 50


def test_elements_computed_in_a_loop_are_memory_of_their_own() -> None:
    r = rig(
        HEAD + "g (int64 M, float[2] x) => (seq(float[2]) s, float[2] y) { e = SequenceEmpty()"
        ' s, y = Loop (M, "", e, x) <body = body (int64 i, bool c, seq(float[2]) v, float[2] a)'
        " => (bool c, seq(float[2]) w, float[2] b) { b = Add(a, x) t = Neg(b) w = SequenceInsert(v, t) }> }"
    )
    for _ in range(2):
        s, y = r(np.array(4), f32(1, 10))
        assert lists(s) == [[-2, -20], [-3, -30], [-4, -40], [-5, -50]]
        assert y.tolist() == [5, 50]


def test_a_carried_value_that_enters_a_sequence_keeps_its_bytes() -> None:
    r = rig(
        HEAD + "g (int64 M, float[2] x) => (seq(float[2]) s, float[2] y) { e = SequenceEmpty()"
        ' s, y = Loop (M, "", e, x) <body = body (int64 i, bool c, seq(float[2]) v, float[2] a)'
        " => (bool c, seq(float[2]) w, float[2] b) { w = SequenceInsert(v, a) b = Add(a, x) }> }"
    )
    for _ in range(2):
        assert lists(r(np.array(3), f32(1, 10))[0]) == [[1, 10], [2, 20], [3, 30]]


def test_a_view_of_a_carried_value_that_enters_a_sequence_keeps_its_bytes() -> None:
    r = rig(
        HEAD + "g (int64 M, float[2] x) => (seq(float[1,2]) s, float[2] y) { e = SequenceEmpty()"
        ' s, y = Loop (M, "", e, x) <body = body (int64 i, bool c, seq(float[1,2]) v, float[2] a)'
        " => (bool c, seq(float[1,2]) w, float[2] b) { shape = Constant<value_ints=[1,2]>()"
        " t = Reshape(a, shape) w = SequenceInsert(v, t) b = Add(a, x) }> }"
    )
    assert lists(r(np.array(3), f32(1, 10))[0]) == [[[1, 10]], [[2, 20]], [[3, 30]]]


def test_split_to_sequence_gives_views_on_a_device_too() -> None:
    text = (
        HEAD
        + "g (float[4] x) => (seq(float[2]) s) { y = Neg(x) two = Constant<value_int=2>() s = SplitToSequence(y, two) }"
    )
    r = rig(text, "sim:0")
    (s,) = r(f32(1, 2, 3, 4))
    assert [r.provider.download(e).tolist() for e in s] == [[-1, -2], [-3, -4]]
    assert s[0].owner is s[1].owner
    assert s[1].data_ptr - s[0].data_ptr == 8


def test_a_device_moves_handles_without_touching_an_element() -> None:
    text = (
        "g (seq(float[n]) s, float[2] x) => (seq(float[n]) t, int64 n) { one = Constant<value_int=1>()"
        " a = SequenceErase(s, one) b = Identity(a) t = SequenceInsert(b, x) n = SequenceLength(t) }"
    )
    given = [f32(*range(1000)), f32(3, 4), f32(5)]
    with executor(text, ["sim:0"]) as ex:
        ex.run({"s": given, "x": f32(1, 2)})
        before = memory(ex, "sim:0")
        out = ex.run({"s": given, "x": f32(1, 2)})
        after = memory(ex, "sim:0")
    assert out["t"][0] is given[0]
    assert out["t"][1] is given[2]
    assert lists(out["t"])[2] == [1, 2]
    assert out["n"] == 3
    assert after["upload_bytes"] - before["upload_bytes"] <= 8 + 8 + 8  # x, and small counts
    assert after["download_bytes"] - before["download_bytes"] <= 8 + 8 + 8


def test_a_device_fetches_an_element_once_however_often_it_is_read() -> None:
    text = (
        "g (seq(float[n]) s) => (float[n] y, float[n] z, seq(float[n]) t) { k = Constant<value_int=0>()"
        " a = SequenceAt(s, k) b = SequenceAt(s, k) u = SequenceInsert(s, b) c = SequenceAt(u, k)"
        " y = Add(a, b) z = Mul(y, c) t = Identity(u) }"
    )
    given = [f32(*range(500)), f32(*range(500))]
    with executor(text, ["sim:0"]) as ex:
        ex.run({"s": given})
        before = memory(ex, "sim:0")["upload_bytes"]
        out = ex.run({"s": given})
        assert memory(ex, "sim:0")["upload_bytes"] - before == 2000
    assert np.array_equal(out["y"], given[0] * 2)
    assert np.array_equal(out["z"], given[0] * 2 * given[0])
    assert out["t"][1] is given[1]


def test_a_sequence_that_crosses_children_and_comes_back_holds_the_same_arrays() -> None:
    text = (
        "g (seq(float[n]) s, float[2] x) => (seq(float[n]) t) { e = Exp(x) k = Constant<value_int=0>()"
        " a = SequenceInsert(s, e, k) t = SequenceErase(a, k) }"
    )
    providers = [("sim:0", {"except_ops": ["Exp", "SequenceErase"]}), "cpu"]
    given = [f32(1, 2, 3), f32(4)]
    with executor(text, providers) as ex:
        out = ex.run({"s": given, "x": f32(0, 0)})
    assert [id(e) for e in out["t"]] == [id(e) for e in given]


@PLACES
def test_a_sequence_is_carried_captured_and_returned_by_branches(providers: list[Any]) -> None:
    text = (
        "g (bool c, int64 M, seq(float[2]) s, float[2] x) => (seq(float[2]) y, float[2] z) {"
        " y = If (c) <then_branch = t () => (seq(float[2]) a) {"
        '   a = Loop (M, "", s) <body = b (int64 i, bool k, seq(float[2]) v) => (bool k, seq(float[2]) w)'
        "     { e = SequenceAt(s, i) f = Add(e, x) w = SequenceInsert(v, f) }> },"
        " else_branch = e () => (seq(float[2]) b) { b = SequenceEmpty() }>"
        " n = SequenceLength(y) zero = Constant<value_int=0>() some = Greater(n, zero)"
        " z = If (some) <then_branch = t2 () => (float[2] a2) { a2 = SequenceAt(y, zero) },"
        " else_branch = e2 () => (float[2] b2) { b2 = Neg(x) }> }"
    )
    s = [f32(1, 2), f32(3, 4)]
    with executor(text, providers) as ex:
        for c in (True, False, True):
            out = ex.run({"c": np.array(c), "M": np.array(2), "s": s, "x": f32(10, 10)})
            assert lists(out["y"]) == ([[1, 2], [3, 4], [11, 12], [13, 14]] if c else [])
            assert out["y"].dtype == np.float32
            assert out["z"].tolist() == ([1, 2] if c else [-10, -10])


@PLACES
def test_sequence_map_takes_sequences_and_tensors_together(providers: list[Any]) -> None:
    text = (
        "g (seq(float[n]) s, seq(float[n]) r, float[1] x) => (seq(float[n]) y, seq(float[n]) z) {"
        " y, z = SequenceMap(s, r, x) <body = b (float[n] a, float[n] d, float[1] k) => (float[n] p, float[n] q)"
        " { t = Add(a, d) p = Add(t, k) q = Sub(a, d) }> }"
    )
    feeds = {"s": [f32(1, 2), f32(3)], "r": [f32(10, 20), f32(30)], "x": f32(100)}
    with executor(text, providers) as ex:
        for _ in range(2):
            out = ex.run(feeds)
            assert lists(out["y"]) == [[111, 122], [133]]
            assert lists(out["z"]) == [[-9, -18], [-27]]
        empty = ex.run({**feeds, "s": [], "r": []})
        assert (lists(empty["y"]), empty["y"].dtype) == ([], np.float32)


@PLACES
@pytest.mark.parametrize("opset", [16, 18, 21])
def test_optional_inputs_and_outputs_of_every_kind(providers: list[Any], opset: int) -> None:
    text = (
        f'<ir_version: 9, opset_import: ["": {opset}]>\n'
        "g (optional(float[2]) o, optional(seq(float[2])) q) => (bool h, bool k, optional(float[2]) p, int64 n) {"
        " h = OptionalHasElement(o) k = OptionalHasElement(q) p = Identity(o)"
        " n = If (k) <then_branch = t () => (int64 a) { s = OptionalGetElement(q) a = SequenceLength(s) },"
        " else_branch = e () => (int64 b) { b = Constant<value_int=-1>() }> }"
    )
    model = onnx.parser.parse_model(text)
    with HeterogeneousExecutor(model, providers=providers, children="inline") as ex:
        for o in (f32(1, 2), None):
            for q in ([f32(1, 2)] * 3, [], None):
                out = ex.run({"o": o, "q": q})
                assert bool(out["h"]) == (o is not None)
                assert bool(out["k"]) == (q is not None)
                assert (out["p"] is None) if o is None else out["p"].tolist() == [1, 2]
                assert out["n"] == (-1 if q is None else len(q))


@PLACES
def test_an_optional_is_carried_and_filled_by_a_loop(providers: list[Any]) -> None:
    text = (
        "g (int64 M, float[2] x) => (optional(float[2]) y) { o = Optional<type=float[2]>()"
        ' y = Loop (M, "", o) <body = b (int64 i, bool c, optional(float[2]) v) => (bool c, optional(float[2]) w)'
        " { t = Neg(x) w = Optional(t) }> }"
    )
    with executor(text, providers) as ex:
        for trips in (0, 2, 0, 1):
            y = ex.run({"M": np.array(trips), "x": f32(1, 2)})["y"]
            assert (y is None) if trips == 0 else y.tolist() == [-1, -2]


MISUSED = [
    ("int64 k) => (float[2] y) { [bad] y = SequenceAt(s, k)", np.array(2), "position 2"),
    ("int64 k) => (seq(float[2]) y) { [bad] y = SequenceErase(s, k)", np.array(-3), "position -3"),
    ("int64 k) => (seq(float[2]) y) { [bad] y = SequenceInsert(s, x, k)", np.array(3), "position 3"),
    ("int64 k) => (float[2] y) { t = SequenceEmpty() [bad] y = SequenceAt(t, k)", np.array(0), "no element"),
    (
        "int64 k) => (float[n] y) { t = SequenceEmpty() [bad] y = ConcatFromSequence<axis=0>(t)",
        np.array(0),
        "empty",
    ),
]


@PLACES
@pytest.mark.parametrize(("text", "k", "message"), MISUSED)
def test_a_misused_sequence_is_an_error_that_names_the_node_and_leaves_the_executor_usable(
    providers: list[Any], text: str, k: np.ndarray, message: str
) -> None:
    whole = f"g (seq(float[2]) s, float[2] x, {text} n = SequenceLength(s) }}".replace(
        " y) {", " y, int64 n) {"
    )
    with executor(whole, providers) as ex:
        for _ in range(2):
            with pytest.raises(KernelError, match=message) as caught:
                ex.run({"s": [f32(1, 2), f32(3, 4)], "x": f32(5, 6), "k": k})
            assert caught.value.op in whole
        if "SequenceEmpty" not in text:
            assert ex.run({"s": [f32(1, 2), f32(3, 4)], "x": f32(5, 6), "k": np.array(0)})["n"] == 2


@pytest.mark.parametrize(
    "nodes",
    [
        "x = Cast<to=11>(z) [bad] y = SequenceInsert(s, x)",
        "x = Cast<to=11>(z) [bad] y = SequenceConstruct(z, x)",
    ],
)
def test_elements_of_two_dtypes_are_refused_by_name(nodes: str) -> None:
    text = f"g (seq(float[2]) s, float[2] z) => (seq(float[2]) y) {{ {nodes} }}"
    with pytest.raises(HeteroError, match=r"bad|float64"), executor(text) as ex:
        ex.run({"s": [f32(1, 2)], "z": f32(1, 2)})


def test_an_executor_answers_the_same_with_a_sequence_value_as_with_a_list() -> None:
    text = "g (seq(float[2]) s) => (float[n,2] y) { y = ConcatFromSequence<axis=0, new_axis=1>(s) }"
    given = [f32(1, 2), f32(3, 4)]
    for providers in CHILDREN:
        with executor(text, providers) as ex:
            for s in (given, tuple(given), SequenceValue(given)):
                assert ex.run({"s": s})["y"].tolist() == [[1, 2], [3, 4]]


def test_options_do_not_change_what_a_loop_over_sequences_gives() -> None:
    text = APPENDS.replace(
        "w = SequenceInsert(v, x)",
        "n = SequenceLength(v) k = Cast<to=1>(n) y = Add(x, k) w = SequenceInsert(v, y)",
    )
    wanted = [[1 + k, 2 + k] for k in range(5)]
    for options in (
        RuntimeOptions(),
        RuntimeOptions(frame_bytes=0, memo_if_bytes=0, inline_single_scan=True),
    ):
        with HeterogeneousExecutor(
            onnx.parser.parse_model(HEAD + text), providers=["cpu"], children="inline", options=options
        ) as ex:
            assert lists(ex.run({"M": np.array(5), "x": f32(1, 2)})["s"]) == wanted
