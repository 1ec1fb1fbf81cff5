"""Twins: layers that are alike are bound once when they grow, and nothing but that is different."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.errors import KernelError
from tests.runtime.harness import Rig, rig

HEAD = '<ir_version: 10, opset_import: ["" : 21]> '
PROVIDERS = ("cpu", "sim:0")
LAYERS = 4
HEADS, SIZE = 2, 8


def model(layers: int = LAYERS, cap: int = 1 << 20) -> str:
    """Attention layers over pasts of their own (the last one's `other` may have another length), after a matrix each,
    with shapes that the graph computes: repeated keys, a mask, a length that stops growing at `cap`."""
    inputs = ["float[1, 2, 1, 8] q", "float[1, t2] bias"]
    inputs += [f"float[1, 2, {'u' if k == layers - 1 else 't'}, 8] past{k}" for k in range(layers)]
    weights = ", ".join(
        f"float[8, 8] w{k} = {{{', '.join(f'{((7 * i + 3 * k) % 11 - 5) / 9}' for i in range(64))}}}"
        for k in range(layers)
    )
    nodes = (
        "one = Constant<value_ints=[1]>() two = Constant<value_ints=[2]>() minus = Constant<value_ints=[-1]>()"
        " zero = Constant<value_ints=[0]>() axis = Constant<value_int=2>() ends = Constant<value_ints=[1, 2]>()"
        " size = Constant<value_ints=[8]>() wide = Unsqueeze(bias, ends)"
        f" cap = Constant<value_ints=[{cap}]>() x0 = Mul(q, q)"
    )
    for k in range(layers):
        nodes += (
            f" n{k} = MatMul(x{k}, w{k}) p{k} = Concat<axis=2>(past{k}, n{k}) shape{k} = Shape(p{k})"
            f" length{k} = Gather<axis=0>(shape{k}, axis) rows{k} = Unsqueeze(length{k}, zero)"
            f" target{k} = Concat<axis=0>(one, two, two, rows{k}, size) lifted{k} = Unsqueeze(p{k}, two)"
            f" spread{k} = Expand(lifted{k}, target{k}) joined{k} = Concat<axis=0>(one, minus, rows{k}, size)"
            f" r{k} = Reshape(spread{k}, joined{k}) kt{k} = Transpose<perm=[0, 1, 3, 2]>(r{k})"
            f" qq{k} = Concat<axis=1>(x{k}, x{k}) scores{k} = MatMul(qq{k}, kt{k})"
            f" limit{k} = Min(rows{k}, cap) cut{k} = Slice(scores{k}, zero, limit{k}, minus, one)"
            f" chances{k} = Softmax<axis=-1>(cut{k}) values{k} = Slice(r{k}, zero, limit{k}, two, one)"
            f" mixed{k} = MatMul(chances{k}, values{k}) half{k} = Slice(mixed{k}, zero, two, one, one)"
            f" y{k} = Tanh(half{k}) a{k} = Add(y{k}, x{k}) b{k} = Mul(a{k}, y{k}) c{k} = Sub(b{k}, x{k})"
            f" x{k + 1} = Abs(c{k})"
        )
    presents = ", ".join(f"float[1, 2, s{k}, 8] p{k}" for k in range(layers))
    return (
        HEAD + f"g ({', '.join(inputs)}) => (float[1, 2, 1, 8] x{layers}, float[1, 1, 1, t2] m, {presents})"
        f" <{weights}> {{ {nodes} m = Neg(wide) }}"
    )


def feeds(t: int, u: int | None = None, layers: int = LAYERS) -> list[Any]:
    """Pasts of t rows, the last of u, and what goes with them."""
    draw = np.random.default_rng(t)
    pasts = [(1, HEADS, t, SIZE)] * (layers - 1) + [(1, HEADS, t if u is None else u, SIZE)]
    shapes = [(1, HEADS, 1, SIZE), (1, t + 1), *pasts]
    return [draw.standard_normal(shape).astype(np.float32) for shape in shapes]


def same(got: list[Any], want: list[Any]) -> bool:
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True))


@cache
def _unmemoised(text: str, provider: str) -> Rig:
    return rig(text, provider, decode_memo=False, capture=False)


def fresh(text: str, provider: str, *inputs: Any) -> list[Any]:
    """What a program gives that is built for each shape."""
    return _unmemoised(text, provider)(*inputs)


def twins_of(r: Rig) -> Any:
    return next(reversed(r.runner.roots.sections.values())).twins


@pytest.mark.parametrize("stage_bytes", [0, 64 << 10])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_alike_layers_are_bound_once_and_give_the_same_bits(provider: str, stage_bytes: int) -> None:
    text = model()
    r = rig(text, provider, verify_decode_memo=True, stage_bytes=stage_bytes)
    for t in range(5, 30):
        assert same(r(*feeds(t)), fresh(text, provider, *feeds(t)))
    assert r.runner.statistics.memo_replayed > 15
    twins = twins_of(r)
    records = next(reversed(r.runner.roots.sections.values())).records
    assert len(twins.steps) < 0.75 * len(records)
    assert any(others for step in twins.steps for _, others in step.results), "some have twins"
    assert any(step.kernel is not None for step in twins.steps), "some have only their kernel in common"


def test_a_step_compiles_no_kernel_twice() -> None:
    r = rig(model(8))
    for t in range(5, 12):
        r(*feeds(t, layers=8))
    kernels = r.runner.context.kernels
    before = kernels.misses
    r(*feeds(12, layers=8))
    many = kernels.misses - before
    r = rig(model(2))
    for t in range(5, 12):
        r(*feeds(t, layers=2))
    kernels, before = r.runner.context.kernels, r.runner.context.kernels.misses
    r(*feeds(12, layers=2))
    assert many == kernels.misses - before > 0


def test_following_counts_what_binding_one_by_one_counts() -> None:
    r = rig(model(), stage_bytes=0)
    counted = []
    for t in range(5, 14):
        before = asdict(r.runner.statistics)
        r(*feeds(t))
        after = asdict(r.runner.statistics)
        if after["memo_replayed"] > before["memo_replayed"]:
            counted.append({name: after[name] - before[name] for name in after})
    assert len(counted) > 4
    assert all(c == counted[0] for c in counted), "the first one bound them one by one"
    assert counted[0]["folded"] > 0 < counted[0]["views"]


def test_values_lie_and_live_as_in_a_program_that_is_bound_one_by_one() -> None:
    r, other = rig(model(), stage_bytes=0), rig(model(), stage_bytes=0, decode_memo=False)
    for t in range(5, 14):
        r(*feeds(t))
        other(*feeds(t))
    assert r.runner.statistics.memo_replayed > 3
    plan, want = r.runner.memory_plan(), other.runner.memory_plan()
    assert plan is not None
    assert want is not None
    assert (plan.values, plan.sum_bytes, plan.peak_bytes) == (want.values, want.sum_bytes, want.peak_bytes)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_inputs_that_were_alike_may_part(provider: str) -> None:
    text = model()
    r = rig(text, provider, verify_decode_memo=True)
    lengths = [(t, t) for t in range(5, 20)] + [(20, 21), (21, 23), (22, 22), (23, 23), (24, 21)]
    for t, u in lengths:
        assert same(r(*feeds(t, u)), fresh(text, provider, *feeds(t, u)))
    assert twins_of(r) is not None


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_value_that_stops_growing_and_starts_again_is_seen(provider: str) -> None:
    text = model(cap=12)
    r = rig(text, provider, verify_decode_memo=True)
    for t in (*range(5, 20), *range(19, 4, -1)):
        assert same(r(*feeds(t)), fresh(text, provider, *feeds(t)))
    assert r.runner.statistics.memo_replayed > 10


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_only_a_value_that_stopped_growing_reaches_is_seen_when_it_moves_again(provider: str) -> None:
    rest = " ".join(f"e{k + 1} = Abs(e{k})" for k in range(12))
    text = HEAD + (
        "g (float[t] x, float[64] w, float[4] e0) => (float[m] y, float[t] z, float[4] e12) {"
        " zero = Constant<value_ints=[0]>() cap = Constant<value_ints=[12]>() n = Shape(x) limit = Min(n, cap)"
        f" part = Slice(w, zero, limit) y = Sqrt(part) z = Neg(x) {rest} }}"
    )
    r = rig(text, provider, verify_decode_memo=True)
    w = np.linspace(0, 1, 64, dtype=np.float32)
    for t in (*range(14, 24), *range(22, 3, -1)):
        y, z, _ = r(np.arange(t, dtype=np.float32), w, np.ones(4, np.float32))
        assert np.array_equal(y, np.sqrt(w[: min(t, 12)]))
        assert np.array_equal(z, -np.arange(t))
    assert r.runner.statistics.memo_replayed > 15


def test_an_error_of_a_shared_kernel_names_its_own_node() -> None:
    nodes = " ".join(f"[part{k}] y{k} = Gather<axis=0>(x{k}, i{k}) z{k} = Neg(y{k})" for k in range(3))
    rest = " ".join(f"e{k + 1} = Abs(e{k})" for k in range(8))
    xs, indices = (
        ", ".join(f"{t} {n}{k}" for k in range(3)) for t, n in (("float[n]", "x"), ("int64[2]", "i"))
    )
    outputs = ", ".join(f"float[2] z{k}" for k in range(3))
    text = HEAD + f"g ({xs}, {indices}, float[4] e0) => ({outputs}, float[4] e8) {{ {nodes} {rest} }}"
    r = rig(text)

    def given_(n: int, bad: int | None = None) -> list[Any]:
        steady = [np.array([0, n if k == bad else -1]) for k in range(3)]
        return [np.arange(n, dtype=np.float32) + k for k in range(3)] + steady + [np.ones(4, np.float32)]

    for n in range(5, 12):
        got = r(*given_(n))
        assert [list(y) for y in got[:3]] == [[-k, -(n - 1.0 + k)] for k in range(3)]
    section = next(reversed(r.runner.roots.sections.values()))
    assert section.shared, "the kernels are one"
    for bad in (0, 1, 2):
        with pytest.raises(KernelError, match="out of range") as caught:
            r(*given_(12, bad))
        assert caught.value.node == f"part{bad}"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_caches_that_just_fill_their_buffers_lie_in_another_way(provider: str) -> None:
    outputs = []
    for memo in (True, False):
        options = RuntimeOptions(decode_memo=memo, verify_decode_memo=memo)
        proto = onnx.parser.parse_model(model())
        with HeterogeneousExecutor(proto, [provider], children="inline", options=options) as ex:
            ex.bind_state({f"past{k}": f"p{k}" for k in range(LAYERS)}, capacity=16)
            outputs.append([])
            for _ in range(3):
                ex.reset_state()
                for t in range(16):
                    q, bias, *_ = feeds(t)
                    outputs[-1] += ex.run({"q": q, "bias": bias}).values()
            (child,) = ex.stats()["children"].values()
            assert (child["memo_replayed"] > 8) is memo
    assert same(*outputs)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 8)),
        st.tuples(st.just("jump"), st.integers(0, 40)),
        st.tuples(st.just("part"), st.integers(0, 40)),
        st.tuples(st.just("slot"), st.sampled_from([0, 1])),
    ),
    min_size=3,
    max_size=8,
)


@settings(max_examples=10, deadline=None)
@given(
    steps=STEPS,
    provider=st.sampled_from(PROVIDERS),
    stage_bytes=st.sampled_from([0, 256, 64 << 10]),
    cap=st.sampled_from([1 << 20, 10]),
)
def test_no_trace_of_lengths_gives_other_bits(
    steps: list[tuple[str, int]], provider: str, stage_bytes: int, cap: int
) -> None:
    text = model(3, cap)
    r = rig(text, provider, verify_decode_memo=True, stage_bytes=stage_bytes)
    t, apart = 3, 0
    for what, n in steps:
        if what == "jump":
            t, apart = n, 0
        elif what == "part":
            apart = n
        elif what == "slot":
            r.runner.context.drive(("primary", "verify")[n])
        for _ in range(n if what == "grow" else 3):
            t += 1
            given_ = feeds(t, t + apart, layers=3)
            assert same(r(*given_), fresh(text, provider, *given_))
