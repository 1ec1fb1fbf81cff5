"""The runner: bound once, called many times, right for every change of shape, value and stride."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

from hetero.errors import GuardError, KernelError
from hetero.runtime.slots import Table
from tests.runtime.harness import rig

HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'
PROVIDERS = ["cpu", "sim:0"]
MLP = HEAD + "g (float[n, 4] x) => (float[n, 4] y) { a = Add(x, x) b = Mul(a, x) c = Relu(b) y = Sub(c, a) }"


def f32(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_second_run_with_the_same_shapes_binds_nothing_new(provider: str) -> None:
    r = rig(MLP, provider)
    x = f32(3, 4)
    want = np.maximum((x + x) * x, 0) - (x + x)
    for seed in (0, 0, 0):
        assert np.array_equal(r(f32(3, 4, seed=seed))[0], want)
    statistics = r.runner.statistics
    assert statistics.sections_built == 1
    assert statistics.sections_reused == 2
    assert r.runner.context.kernels.misses == 4


def test_other_shapes_get_sections_of_their_own_and_the_first_ones_are_kept() -> None:
    r = rig(MLP)
    for rows in (3, 5, 3, 5, 3):
        x = f32(rows, 4, seed=rows)
        assert np.array_equal(r(x)[0], np.maximum((x + x) * x, 0) - (x + x))
    assert r.runner.statistics.sections_built == 2


def test_an_unchanged_shape_reuses_the_very_same_memory() -> None:
    r = rig(MLP)
    r(f32(3, 4))
    arena = r.runner.context.arena(0)
    held = {id(b) for b in arena._buffers.values()}
    takes = r.provider.stats()["takes"]
    for seed in range(5):
        r(f32(3, 4, seed=seed))
    assert {id(b) for b in arena._buffers.values()} == held
    assert r.provider.stats()["takes"] == takes


def test_a_thousand_shapes_keep_a_bounded_number_of_sections_and_flat_memory() -> None:
    r = rig(MLP, max_specializations=4)
    for rows in range(1, 1001):
        r(np.ones((1 + rows % 50 + rows // 500, 4), np.float32))
    assert len(r.runner.roots.sections) == 4
    assert r.runner.statistics.sections_evicted == r.runner.statistics.sections_built - 4
    assert r.provider.stats()["live_bytes"] < 16 * 1024


@pytest.mark.parametrize("provider", PROVIDERS)
def test_inputs_of_any_strides_are_read_in_place_and_never_written(provider: str) -> None:
    r = rig(MLP, provider)
    base = f32(4, 12)
    for x in (base.T[::2][:5], base[:, ::-3], np.broadcast_to(base[:1, :4], (6, 4)), base[:2, :4]):
        before = x.copy()
        x.flags.writeable = False
        assert np.array_equal(r(x)[0], np.maximum((x + x) * x, 0) - (x + x))
        assert np.array_equal(x, before)


def test_the_caller_may_change_an_input_in_place_between_runs() -> None:
    r = rig(MLP)
    x = np.ones((2, 4), np.float32)
    first = r(x)[0]
    x[...] = 2
    second = r(x)[0]
    assert np.array_equal(first, np.full((2, 4), 0, np.float32))
    assert np.array_equal(second, np.full((2, 4), 4, np.float32))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_outputs_of_earlier_runs_keep_their_values(provider: str) -> None:
    r = rig(MLP, provider)
    outputs = [(x := f32(2, 4, seed=k), r(x)[0]) for k in range(20)]
    for x, y in outputs:
        assert np.array_equal(y, np.maximum((x + x) * x, 0) - (x + x))


def test_terminal_layout_outputs_share_the_input_memory() -> None:
    r = rig(
        HEAD + "g (float[2,3] x) => (float[3,2] t, float[6] f, float[5,2,3] e, float[1,3] s) {"
        " t = Transpose<perm=[1,0]>(x) six = Constant<value_ints=[6]>() f = Reshape(x, six)"
        " shape = Constant<value_ints=[5,2,3]>() e = Expand(x, shape)"
        " lo = Constant<value_ints=[1]>() hi = Constant<value_ints=[2]>() s = Slice(x, lo, hi) }"
    )
    x = f32(2, 3)
    for _ in range(2):
        t, f, e, s = r(x)
        for y, want in ((t, x.T), (f, x.reshape(6)), (e, np.broadcast_to(x, (5, 2, 3))), (s, x[1:2])):
            assert np.shares_memory(x, y)
            assert np.array_equal(y, want)


REARRANGED = (
    HEAD + "g (float[n,3] x) => (float[n,3] y, float[3,n] t) { y = Neg(x) t = Transpose<perm=[1,0]>(y) }"
)


def test_a_large_view_of_a_computed_value_that_leaves_the_program_costs_no_copy() -> None:
    r = rig(REARRANGED, stage_bytes=64)
    y, t = r(f32(6, 3))
    assert np.shares_memory(y, t)
    assert r.runner.statistics.view_copies == 0


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_small_result_that_rearranges_another_is_a_copy_and_its_calls_stay_bound(provider: str) -> None:
    r = rig(REARRANGED, provider)
    kept = []
    for k in range(4):
        x = f32(2, 3, seed=k)
        kept.append((x, *r(x)))
    for x, y, t in kept:
        assert np.array_equal(y, -x)
        assert np.array_equal(t, -x.T)
        assert not np.shares_memory(y, t)
    assert r.runner.statistics.volatile_steps == 0


@pytest.mark.parametrize("provider", PROVIDERS)
def test_small_and_large_results_that_rearrange_one_another(provider: str) -> None:
    r = rig(
        HEAD + "g (float[n,4] x) => (float[4,n] t, float[2,4] s, float[3,n,4] e, float[n,4] z) { y = Exp(x)"
        " t = Transpose<perm=[1,0]>(y) lo = Constant<value_ints=[0]>() hi = Constant<value_ints=[2]>()"
        " s = Slice(y, lo, hi) a = Neg(x) shape = Constant<value_ints=[3,1,1]>() e = Expand(a, shape)"
        " b = Add(y, a) z = Mul(b, b) }",
        provider,
        stage_bytes=64,
    )
    for rows in (2, 4, 5, 2, 40):
        x = f32(rows, 4, seed=rows)
        t, s, e, z = r(x)
        np.testing.assert_allclose(t, np.exp(x).T, rtol=1e-5)
        np.testing.assert_allclose(s, np.exp(x)[:2], rtol=1e-5)
        assert np.array_equal(e, np.broadcast_to(-x, (3, rows, 4)))
        np.testing.assert_allclose(z, (np.exp(x) - x) ** 2, rtol=1e-5)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_chain_of_views_keeps_its_owner_alive_until_the_last_reader(provider: str) -> None:
    r = rig(
        HEAD + "g (float[4,4] x) => (float[4,4] y) { a = Neg(x) b = Transpose<perm=[1,0]>(a)"
        " c = Transpose<perm=[1,0]>(b) d = Exp(x) e = Add(d, d) f = Mul(e, d) g = Transpose<perm=[1,0]>(c)"
        " h = Add(f, g) y = Sub(h, x) }",
        provider,
    )
    x = f32(4, 4)
    for _ in range(3):
        (y,) = r(x)
        want = (np.exp(x) + np.exp(x)) * np.exp(x) + (-x).T - x
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("switch", ["fold_constants", "in_place", "reuse_buffers"])
def test_every_switch_off_gives_the_same_bits(provider: str, switch: str) -> None:
    text = (
        HEAD
        + "g (float[n, m] x) => (float[k] y, int64[2] s) { s = Shape(x) a = Exp(x) b = Tanh(a) c = Add(b, a)"
        " minus = Constant<value_ints=[-1]>() y = Reshape(c, minus) }"
    )
    x = f32(5, 3)
    on, off = rig(text, provider), rig(text, provider, **{switch: False})
    for _ in range(3):
        for got, want in zip(off(x), on(x), strict=True):
            assert got.dtype == want.dtype
            assert np.array_equal(got, want)


def test_buffers_are_shared_by_values_that_do_not_live_together() -> None:
    chain = " ".join(f"v{k + 1} = Sin(v{k})" for k in range(20))
    text = HEAD + f"g (float[1000] x) => (float[1000] y) {{ v0 = Cos(x) {chain} y = Neg(v20) }}"
    shared, apart = rig(text), rig(text, reuse_buffers=False, in_place=False)
    x = f32(1000)
    assert np.array_equal(shared(x)[0], apart(x)[0])
    assert shared.runner.context.arena(0).nbytes <= 2 * 4096
    assert apart.runner.context.arena(0).nbytes >= 20 * 4000
    assert shared.runner.statistics.peak_live_bytes <= 2 * 4096


@pytest.mark.parametrize("provider", PROVIDERS)
def test_shape_arithmetic_is_folded_while_shapes_hold(provider: str) -> None:
    r = rig(
        HEAD + "g (float[n, 2, 3] x) => (float[n, 6] y) { s = Shape(x) zero = Constant<value_int=0>()"
        " n = Gather(s, zero) axes = Constant<value_ints=[0]>() n1 = Unsqueeze(n, axes)"
        " six = Constant<value_ints=[6]>() shape = Concat<axis=0>(n1, six) r = Reshape(x, shape) y = Neg(r) }",
        provider,
    )
    for n in (2, 2, 5, 2):
        x = f32(n, 2, 3)
        assert np.array_equal(r(x)[0], -x.reshape(n, 6))
    assert r.runner.statistics.sections_built == 2
    assert r.runner.statistics.folded >= 8
    root = next(iter(r.runner.roots.sections.values()))
    assert (
        len({r.program.instructions[k].op.op_type for k in root.nodes} & {"Shape", "Gather", "Concat"}) == 0
    )


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_input_that_decides_a_shape_takes_part_in_the_signature(provider: str) -> None:
    r = rig(
        HEAD + "g (float[6] x, int64[2] shape) => (float[a, b] y) { r = Reshape(x, shape) y = Neg(r) }",
        provider,
    )
    x = f32(6)
    for shape in ([2, 3], [3, 2], [2, 3], [-1, 1]):
        assert np.array_equal(r(x, np.array(shape))[0], -x.reshape(shape))
    assert r.runner.statistics.sections_built == 3


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_shape_input_that_never_repeats_ends_up_computed_as_data(provider: str) -> None:
    r = rig(
        HEAD + "g (float[1] x, int64[1] n) => (float[m] y) { e = Expand(x, n) y = Neg(e) }",
        provider,
        max_specializations=2,
    )
    for n in range(1, 40):
        assert np.array_equal(r(np.ones(1, np.float32), np.array([n]))[0], np.full(n, -1, np.float32))
    assert r.runner.roots.value_inputs == ()


def test_a_result_whose_shape_depends_on_data_starts_a_section_per_shape() -> None:
    r = rig(
        HEAD + "g (float[n] x) => (int64[1, k] i, int64[1, k] j) { b = Relu(x) i = NonZero(b) j = Add(i, i) }"
    )
    for values in ([0, 1, 2], [3, 0, 0], [0, 4, 0], [1, 1, 1], [0, 0, 0]):
        x = np.array(values, np.float32)
        i, j = r(x)
        assert np.array_equal(i, np.stack(np.nonzero(x)))
        assert np.array_equal(j, 2 * i)
    assert r.runner.statistics.sections_built == 1 + 4  # 0, 1, 2 and 3 hits


def test_an_error_names_node_op_and_device_and_leaves_the_runner_usable() -> None:
    r = rig(HEAD + "g (float[3] x, int64[1] i) => (float[1] y) { a = Neg(x) [look] y = Gather(a, i) }")
    x = f32(3)
    for _ in range(2):
        with pytest.raises(KernelError, match=r"7.*look.*Gather.*cpu"):
            r(x, np.array([7]))
        assert r.runner.table.values == [None] * r.program.n_slots
        assert np.array_equal(r(x, np.array([2]))[0], -x[2:])


@pytest.mark.parametrize(("method", "runs_before"), [("bind", 0), ("bind", 1), ("run", 0)])
def test_an_error_that_is_not_ours_becomes_the_cause_of_one_that_is(
    method: str, runs_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = HEAD + "g (float[3] x) => (int64[1, k] i) { [clip] b = Relu(x) [look] i = NonZero(b) }"
    r = rig(text, stage_bytes=0)  # what reads the caller's own memory is bound in every run
    for _ in range(runs_before):
        r(f32(3))
    broken = ZeroDivisionError("of its own")

    def breaks(*_: object) -> None:
        raise broken

    monkeypatch.setattr(r.provider, method, breaks)
    with pytest.raises(KernelError, match="ZeroDivisionError: of its own") as caught:
        r(f32(3))
    assert caught.value.node == ("look" if method == "run" else "clip")
    assert caught.value.__cause__ is broken


def test_a_table_is_cleared_in_place() -> None:
    table = Table(3)
    values = table.values
    values[1] = object()
    table.clear()
    assert table.values is values
    assert values == [None] * 3


def test_steady_state_allocates_no_python_objects_per_node() -> None:
    chain = " ".join(f"v{k + 1} = Neg(v{k})" for k in range(300))
    r = rig(HEAD + f"g (float[2] x) => (float[2] y) {{ v0 = Abs(x) {chain} y = Tanh(v300) }}")
    x = np.ones(2, np.float32)
    for _ in range(3):
        r(x)
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        r.runner.run([x])
        grown = sys.getallocatedblocks() - before
    finally:
        gc.enable()
    assert grown < 50
    assert r.runner.statistics.volatile_steps == 0  # what arrives and leaves is small enough to be copied


STATIC = HEAD + (
    "g (float[2, 3] x) => (float[3, 2] y, float[6] f) { a = Exp(x) b = Tanh(a) c = Mul(b, a)"
    " y = Transpose<perm=[1, 0]>(c) six = Constant<value_ints=[6]>() f = Reshape(x, six) }"
)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_static_program_allocates_and_compiles_everything_when_it_is_prepared(provider: str) -> None:
    ready, lazy = rig(STATIC, provider), rig(STATIC, provider)
    ready.runner.prepare()
    held, misses = ready.runner.context.arena(0).nbytes, ready.runner.context.kernels.misses
    assert held > 0
    for seed in range(3):
        x = f32(2, 3, seed=seed)
        for got, want in zip(ready(x), lazy(x), strict=True):
            assert np.array_equal(got, want)
    assert ready.runner.context.arena(0).nbytes == held
    assert ready.runner.context.kernels.misses == misses
    assert ready.runner.statistics.sections_built == 1


def test_preparing_a_symbolic_program_waits_for_the_first_shapes() -> None:
    r = rig(MLP)
    r.runner.prepare()
    assert r.runner.statistics.sections_built == 0


def test_preparing_runs_nothing_and_leaves_what_depends_on_data_to_the_run() -> None:
    r = rig(
        HEAD + "g (float[3] x) => (int64[1, k] j) { b = Relu(x) i = NonZero(b) j = Add(i, i) }",
    )
    r.runner.prepare()
    assert r.runner.statistics.runs == 0
    assert np.array_equal(r(np.array([0, 1, 2], np.float32))[0], [[2, 4]])
    assert r.runner.statistics.sections_built == 2


def test_what_can_never_run_says_so_in_the_run() -> None:
    r = rig(
        HEAD
        + "g (float[6] x) => (float[k] y) { four = Constant<value_ints=[4, -1]>() [bad] y = Reshape(x, four) }"
    )
    r.runner.prepare()
    with pytest.raises(GuardError, match="bad"):
        r(f32(6))


def test_many_shapes_do_not_count_as_values_that_never_repeat() -> None:
    r = rig(
        HEAD + "g (float[k] x, int64[1] n) => (float[m] y) { e = Reshape(x, n) y = Neg(e) }",
        max_specializations=2,
    )
    for size in range(1, 40):
        assert r(np.ones(size, np.float32), np.array([-1]))[0].shape == (size,)
    assert r.runner.roots.value_inputs == (1,)
