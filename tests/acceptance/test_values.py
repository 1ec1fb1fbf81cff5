"""Sequences, optionals, text, empty folds and control flow, whole and split over a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.acceptance.harness import NAMES, PROVIDERS, executor

everywhere = pytest.mark.parametrize("providers", PROVIDERS, ids=NAMES)


@everywhere
def test_sequences_and_optionals_come_in_and_go_out(providers: list[Any]) -> None:
    text = """g (optional(float[n]) o, seq(float[n]) s) => (bool h, optional(float[n]) o2, seq(float[n]) s2, int64 l) {
        h = OptionalHasElement(o) o2 = Identity(o) s2 = Identity(s) l = SequenceLength(s) }"""
    one = np.ones(2, np.float32)
    with executor(text, providers) as ex:
        for o, s in ((None, []), (one, [one, one]), (None, [one])):
            got = ex.run({"o": o, "s": s})
            assert bool(got["h"]) is (o is not None)
            assert (got["o2"] is None) == (o is None)
            assert got["l"] == len(s) == len(got["s2"])
            assert got["s2"].dtype == np.float32
            assert all(np.array_equal(a, b) for a, b in zip(got["s2"], s, strict=True))


def test_a_sequence_that_crosses_to_a_device_arrives_with_its_elements_there() -> None:
    text = """g (float[n] x) => (float[n] y, seq(float[n]) s) { e = Exp(x) s = SequenceConstruct(e, x, e)
        zero = Constant<value_int=0>() t = SequenceErase(s, zero) y = SequenceAt(t, zero) }"""
    for ops in (["SequenceErase"], ["SequenceConstruct"], ["SequenceAt", "Exp"]):
        with executor(text, [("sim:0", {"ops": ops}), "cpu"]) as ex:
            x = np.ones(3, np.float32)
            got = ex.run({"x": x})
            assert np.array_equal(got["y"], x)
            assert np.array_equal(got["s"][2], got["s"][0])


@everywhere
def test_an_optional_that_is_empty_from_the_start_is_empty_for_its_readers(providers: list[Any]) -> None:
    text = "g (float[n] x) => (bool b, float[n] y) { o = Optional<type=float[1]>() b = OptionalHasElement(o)"
    text += " y = Exp(x) }"
    with executor(text, providers) as ex:
        for _ in range(2):
            assert not ex.run({"x": np.ones(2, np.float32)})["b"]


@everywhere
@pytest.mark.parametrize(
    ("nodes", "want"),
    [
        ("s = ReduceSum<keepdims=0>(k)", 2.0),
        ("s = ReduceMax<keepdims=1>(k)", 2.0),
        ("m = Squeeze(k1) s = Exp(m)", np.exp(np.float32(2))),
        ('s = Einsum<equation=",->">(k, k)', 4.0),
        ("t = Sqrt(k) u = Pow(t, k) s = Erf(u)", 0.99532227),
    ],
    ids=["sum", "max", "exp", "einsum", "pow"],
)
def test_constants_without_axes_fold_into_constants_without_axes(
    nodes: str, want: float, providers: list[Any]
) -> None:
    text = f"""g (float[m] x) => (float[m] y, float s) {{ k = Constant<value_float=2.0>()
        k1 = Constant<value_floats=[2.0]>() {nodes} y = Add(x, s) }}"""
    with executor(text, providers) as ex:
        got = ex.run({"x": np.zeros(2, np.float32)})
        assert got["s"].shape == ()
        np.testing.assert_allclose(got["y"], [want, want], rtol=1e-6)


@everywhere
def test_a_loop_stops_by_its_condition_and_reads_what_lies_outside(providers: list[Any]) -> None:
    text = """g (int64 M, bool c) => (float[1] b, float[q, 1] s) { a = Constant<value_floats=[3.0]>()
        b0 = Constant<value_floats=[6.0]>() b, s = Loop<body = body (int64 i, bool go, float[1] b1)
        => (bool on, float[1] b2, float[1] d) { my = Add(a, b1) b2 = Sub(a, b1) on = Greater(my, b2) d = Add(b2, b2) }>
        (M, c, b0) }"""
    with executor(text, providers) as ex:
        for trips, b, s in ((10, 6, [-6, 12]), (0, 6, []), (1, -3, [-6]), (10, 6, [-6, 12])):
            got = ex.run({"M": np.array(trips), "c": np.array(True)})
            assert got["b"].tolist() == [b]
            assert got["s"].shape == (len(s), 1)
            assert got["s"].dtype == np.float32
            assert got["s"][:, 0].tolist() == s


@everywhere
def test_nested_loops_read_captures_of_every_level(providers: list[Any]) -> None:
    text = """g (float[n] x, int64 M) => (float[n] y) { t = Constant<value = bool {1}>() z = Exp(x)
      two = Constant<value_int=2>()
      y = Loop<body = outer (int64 i, bool c, float[n] b) => (bool k, float[n] b2) { k = Identity(c) w = Neg(b)
        b2 = Loop<body = inner (int64 j, bool c3, float[n] d) => (bool k3, float[n] d2) { k3 = Identity(c3)
          u = Add(d, z) v = Mul(u, w) f = Cast<to=1>(i) r = Add(v, f) d2 = Tanh(r) }>(two, k, b) }>(M, t, x) }"""
    with executor(text, providers) as ex:
        for n, trips in ((2, 3), (2, 0), (0, 2), (3, 4), (2, 3)):
            x = np.full(n, 0.3, np.float32)
            b = x
            for i in range(trips):
                w = -b
                for _ in range(2):
                    b = np.tanh((b + np.exp(x)) * w + np.float32(i))
            np.testing.assert_allclose(ex.run({"x": x, "M": np.array(trips)})["y"], b, rtol=1e-5, atol=1e-6)


@everywhere
def test_slices_of_every_direction_end_where_onnx_says(providers: list[Any]) -> None:
    text = """g (int64[n] x, int64[1] a, int64[1] b, int64[1] c) => (y, z) { o = Constant<value_ints=[0]>()
        y = Slice(x, a, b, o, c) z = Neg(y) }"""
    far = 2**63 - 1
    with executor(text, providers) as ex:
        for n, start, end, step, want in (
            (10, 0, 5, -1, []), (10, 9, 0, -3, [9, 6, 3]), (10, -1, -far - 1, -1, list(range(9, -1, -1))),
            (10, far, -far - 1, -3, [9, 6, 3, 0]), (10, -1, -1, -1, []), (0, -1, -far - 1, -1, []),
        ):  # fmt: skip
            got = ex.run(
                {"x": np.arange(n), "a": np.array([start]), "b": np.array([end]), "c": np.array([step])}
            )
            assert got["y"].tolist() == want
            assert got["z"].tolist() == [-v for v in want]


def test_text_is_taken_in_every_form_of_text_and_nothing_else() -> None:
    with executor(
        "g (string s, string[n] t) => (string u, bool[n] w) { u = Identity(s) w = Equal(t, s) }"
    ) as ex:
        for s in ("a", np.str_("a"), np.array("a"), np.array("a", object)):
            got = ex.run({"s": s, "t": ["a", "b"]})
            assert got["u"].item() == "a"
            assert got["w"].tolist() == [True, False]
        for bad in (b"a", np.array(b"a"), np.array(None, object), np.array(3, object)):
            with pytest.raises(ValueError, match="'s'"):
                ex.run({"s": bad, "t": ["a"]})
