"""Nothing of an earlier run shows in a later one: values that decide shapes, arrays changed in place, loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.acceptance.harness import NAMES, PROVIDERS, executor

everywhere = pytest.mark.parametrize("providers", PROVIDERS, ids=NAMES)


@everywhere
def test_an_input_that_decides_shapes_may_differ_in_every_run_beside_results_that_depend_on_data(
    providers: list[Any],
) -> None:
    text = """g (float[m] x, int64[1] n) => (float[k] y) { a = Neg(x) b = Exp(a) z = NonZero(b) f = Cast<to=1>(z)
        s = ReduceSum<keepdims=0>(f) c = Add(b, a) d = Add(c, s) e = Expand(d, n) g = Neg(e) h = NonZero(g)
        i = Cast<to=1>(h) j = ReduceSum<keepdims=0>(i) l = Mul(b, j) y = Add(l, d) }"""
    x = np.ones(1, np.float32)
    with executor(text, providers, max_specializations=1) as ex:
        for n in range(1, 30):
            want = np.exp(-x) * np.float32(n * (n - 1) // 2) + (np.exp(-x) - x)
            np.testing.assert_allclose(ex.run({"x": x, "n": np.array([n])})["y"], want, rtol=1e-5)


@everywhere
def test_the_number_of_an_iteration_may_decide_shapes_in_a_body(providers: list[Any]) -> None:
    text = """g (float[m] x, int64 M) => (float[k] y, float[k, m] s) { t = Constant<value = bool {1}>()
      y, s = Loop<body = b (int64 i, bool c, float[q] v) => (bool c2, float[q] v2, float[m] w) {
        c2 = Identity(c) axes = Constant<value_ints=[0]>() one = Constant<value_int=1>() i1 = Add(i, one)
        n = Unsqueeze(i1, axes) f = Constant<value_floats=[1.0]>() e = Expand(f, n) k = ReduceSum<keepdims=0>(e)
        p = Neg(v) z = NonZero(p) zf = Cast<to=1>(z) zs = ReduceSum<keepdims=0>(zf) h = Exp(p) hk = Mul(h, k)
        r = Add(hk, zs) v2 = Tanh(r) w = Mul(x, k) }>(M, t, x) }"""
    x = np.ones(2, np.float32)
    with executor(text, providers) as ex:
        for trips in (40, 3, 0, 40):
            v = x
            for i in range(trips):
                v = np.tanh(np.exp(-v) * np.float32(i + 1) + np.float32(np.nonzero(v)[0].sum()))
            got = ex.run({"x": x, "M": np.array(trips)})
            np.testing.assert_allclose(got["y"], v, rtol=1e-5)
            np.testing.assert_array_equal(got["s"][:, 0] if trips else [], np.arange(1, trips + 1))


@everywhere
def test_one_array_may_be_changed_in_place_and_fed_again(providers: list[Any]) -> None:
    text = """g (float[n] x, int64[1] k, int64[2] pads, float[1] v) => (e, t, p, o, q) { a = Exp(x) e = Expand(v, k)
        t, i = TopK(a, k) p = Pad(a, pads) values = Constant<value_floats=[0.0, 1.0]>() o = OneHot(k, k, values)
        q = Tile(a, k) }"""
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {
        "x": np.zeros(8, np.float32),
        "k": np.array([1]),
        "pads": np.array([0, 0]),
        "v": np.ones(1, np.float32),
    }
    with executor(text, providers, max_specializations=2) as kept:
        for _ in range(25):
            feeds["x"][...] = rng.standard_normal(8)
            feeds["k"][...] = rng.integers(1, 9)
            feeds["pads"][...] = rng.integers(0, 4, 2)
            with executor(text) as fresh:
                want = fresh.run(feeds)
            for name, got in kept.run(feeds).items():
                np.testing.assert_array_equal(got, want[name])


@everywhere
def test_what_the_caller_writes_into_outputs_is_his_alone(providers: list[Any]) -> None:
    text = """g (float[n, 3] x) => (s, e, f, k, w, c) <float[2] w = {1, 2}> { s = Shape(x) e = Exp(x) f = Neg(e)
        k = ConstantOfShape(s) c = Add(w, w) }"""
    first: dict[str, bytes] = {}
    with executor(text, providers) as ex:
        for _ in range(4):
            got = ex.run({"x": np.ones((2, 3), np.float32)})
            bits = {name: value.tobytes() for name, value in got.items()}
            first = first or bits
            assert bits == first
            for value in got.values():
                if value.flags.writeable:  # weights, and what follows from weights alone, are not
                    value[...] = 99


def test_random_draws_are_those_of_the_step_however_the_graph_is_split() -> None:
    text = """g (float[n] x) => (a, b, c) { h = Abs(x) y = Exp(h) a = RandomNormalLike(y) b = RandomUniform<shape=[3]>()
        z = Softmax(y) c = Bernoulli(z) }"""
    x = np.linspace(0, 1, 9, dtype=np.float32)
    draws: list[list[list[bytes]]] = []
    for providers, seed in ((["cpu"], 0), (["sim:0", "cpu"], 0), (["cpu"], 7)):
        with executor(text, providers, seed=seed) as ex:
            draws.append([[v.tobytes() for v in ex.run({"x": x}).values()] for _ in range(3)])
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert draws[0][0] != draws[0][1]
