"""If, Loop and Scan as the ONNX text says, over bodies that are bound once per signature."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.runtime.harness import rig

HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'
PROVIDERS = ["cpu", "sim:0"]


def f32(values: object) -> np.ndarray:
    return np.array(values, np.float32)


BRANCHES = HEAD + (
    "g (bool c, float[2] x) => (float[2] y) { z = Neg(x)"
    " y = If (c) <then_branch = t () => (float[2] a) { a = Add(z, x) },"
    " else_branch = e () => (float[2] b) { b = Mul(z, x) }> }"
)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_flipping_the_predicate_takes_the_other_branch_at_once(provider: str) -> None:
    r = rig(BRANCHES, provider, memo_if_bytes=0)
    x = f32([1, 2])
    for c in (True, False, False, True):
        assert np.array_equal(r(np.array(c), x)[0], f32([0, 0]) if c else -x * x)
    assert r.runner.statistics.body_runs == 4


def test_a_condition_that_is_not_one_boolean_is_an_error() -> None:
    r = rig(BRANCHES.replace("bool c", "bool[n] c"))
    with pytest.raises(KernelError, match=r"one boolean.*If"):
        r(np.array([True, False]), f32([1, 2]))
    assert np.array_equal(r(np.array([False]), f32([1, 2]))[0], f32([-1, -4]))


LOOP = HEAD + (
    "g (int64 M, bool cond, float a, float b0) => (float b, float[k] s) {"
    " b, s = Loop (M, cond, b0) <body = body (int64 i, bool c, float b_in) => (bool go, float b_out, float scan) {"
    " my = Add(a, b_in) b_out = Sub(a, b_in) go = Greater(my, b_out) scan = Add(b_out, b_out) }> }"
)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_loop_stops_by_its_condition_and_stacks_its_scans(provider: str) -> None:
    r = rig(LOOP, provider)
    for _ in range(2):
        b, s = r(np.array(10), np.array(True), f32(3), f32(6))
        assert b == 6
        assert np.array_equal(s, f32([-6, 12]))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("trips", "go"), [(0, True), (10, False)])
def test_a_loop_of_no_trips_returns_its_inputs_and_typed_empty_scans(
    provider: str, trips: int, go: bool
) -> None:
    b, s = rig(LOOP, provider)(np.array(trips), np.array(go), f32(3), f32(6))
    assert b == 6
    assert s.shape == (0,)
    assert s.dtype == np.float32


def test_a_body_may_hand_its_inputs_through() -> None:
    r = rig(
        HEAD
        + "g (int64 M, float[2] x) => (float[2] y, int64[k] s) { t = Constant<value_int=1>() tb = Cast<to=9>(t)"
        " y, s = Loop (M, tb, x) <body = body (int64 i, bool c, float[2] v) => (bool c, float[2] v, int64 i) { }> }"
    )
    y, s = r(np.array(3), f32([1, 2]))
    assert np.array_equal(y, f32([1, 2]))
    assert np.array_equal(s, [0, 1, 2])


def test_a_carried_value_may_change_its_shape() -> None:
    r = rig(
        HEAD + "g (int64 M, float[n] x) => (float[m] y) { t = Constant<value_int=1>() tb = Cast<to=9>(t)"
        " y = Loop (M, tb, x) <body = body (int64 i, bool c, float[a] v) => (bool c2, float[b] w)"
        " { c2 = Identity(c) w = Concat<axis=0>(v, v) }> }"
    )
    assert np.array_equal(r(np.array(3), f32([7]))[0], f32([7] * 8))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_scan_runs_forwards_and_backwards_over_its_axes(provider: str) -> None:
    r = rig(
        HEAD + "g (float[2] s0, float[2, 3] x) => (float[2] s, float[2, 3] y) {"
        " s, y = Scan (s0, x) <num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1],"
        " scan_output_axes=[1], scan_output_directions=[1],"
        " body = body (float[2] a, float[2] e) => (float[2] b, float[2] o) { b = Add(a, e) o = Identity(b) }> }",
        provider,
    )
    x = f32([[1, 2, 3], [10, 20, 30]])
    s, y = r(f32([0, 0]), x)
    assert np.array_equal(s, f32([6, 60]))
    assert np.array_equal(y, f32([[6, 5, 3], [60, 50, 30]]))


def test_bodies_inside_bodies_see_values_of_every_enclosing_scope() -> None:
    r = rig(
        HEAD + "g (bool c, int64 M, float x) => (float y) { k = Add(x, x) tb = Identity(c)"
        " y = If (c) <then_branch = t () => (float a) {"
        " a = Loop (M, tb, x) <body = body (int64 i, bool go, float v) => (bool go2, float w)"
        " { go2 = Identity(go) w = Add(v, k) }> },"
        " else_branch = e () => (float b) { b = Identity(k) }> }"
    )
    assert r(np.array(True), np.array(3), f32(1))[0] == 7
    assert r(np.array(False), np.array(3), f32(1))[0] == 2


def test_bodies_are_bound_once_and_reused_over_iterations() -> None:
    r = rig(LOOP)
    r(np.array(10), np.array(True), f32(3), f32(6))
    built = r.runner.statistics.sections_built
    for _ in range(5):
        r(np.array(10), np.array(True), f32(3), f32(6))
    assert r.runner.statistics.sections_built == built
    assert r.runner.statistics.bodies_built == 1


BATCHED = (
    '<ir_version: 3, opset_import: ["": 8]>\n'
    "g (int64[B] lens, float[B, 2] s0, float[B, T, 2] x) => (float[B, 2] s, float[B, T, 2] y) {"
    " s, y = Scan (lens, s0, x) <num_scan_inputs=1, directions=[0],"
    " body = body (float[2] a, float[2] e) => (float[2] b, float[2] o) { b = Add(a, e) o = Identity(b) }> }"
)
SAMPLES = np.arange(1, 13, dtype=np.float32).reshape(2, 3, 2)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [[3, 3], [2, 3], [0, 1], [0, 0]])
def test_a_batched_scan_runs_each_sample_to_its_own_length(
    provider: str, reverse: bool, lengths: list[int]
) -> None:
    r = rig(BATCHED.replace("directions=[0]", f"directions=[{int(reverse)}]"), provider)
    s, y = r(np.array(lengths), f32([[0, 0], [100, 200]]), SAMPLES)
    states, scanned = f32([[0, 0], [100, 200]]), np.zeros((2, 3, 2), np.float32)
    for sample, length in enumerate(lengths):
        for k in range(length):
            states[sample] += SAMPLES[sample, length - 1 - k if reverse else k]
            scanned[sample, k] = states[sample]
    assert np.array_equal(s, states)
    assert np.array_equal(y, scanned)
    assert y.dtype == np.float32


def test_a_batched_scan_without_lengths_runs_to_the_end() -> None:
    text = BATCHED.replace("int64[B] lens, ", "").replace("(lens,", '("",')
    s, y = rig(text)(f32([[0, 0], [100, 200]]), SAMPLES)
    assert np.array_equal(s, f32([[9, 12], [127, 230]]))
    assert np.array_equal(y[0], f32([[1, 2], [4, 6], [9, 12]]))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_batched_scan_of_an_empty_batch_has_empty_results(provider: str) -> None:
    s, y = rig(BATCHED, provider)(np.zeros(0, np.int64), f32(np.zeros((0, 2))), f32(np.zeros((0, 3, 2))))
    assert s.shape == (0, 2)
    assert y.shape == (0, 3, 2)


@pytest.mark.parametrize("lengths", [[4, 1], [-1, 1], [1], [[1, 1]]])
def test_lengths_that_do_not_fit_a_batched_scan_are_an_error(lengths: list[int]) -> None:
    with pytest.raises(KernelError, match=r"a length from 0 to 3 for each of 2 samples.*sequence_lens"):
        rig(BATCHED)(np.array(lengths), f32([[0, 0], [0, 0]]), SAMPLES)


def test_operands_of_a_batched_scan_must_agree_in_their_batch() -> None:
    with pytest.raises(KernelError, match="does not fit a batch of 2"):
        rig(BATCHED)(np.array([1, 1]), f32([[0, 0]]), SAMPLES)
