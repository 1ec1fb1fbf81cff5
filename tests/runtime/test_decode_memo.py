"""Decode memo: growing steps give what fresh programs give, and bind anew only what depends on what grew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.harness import Rig, rig

HEAD = '<ir_version: 10, opset_import: ["" : 21]> '
PROVIDERS = ("cpu", "sim:0")
ATTENTION = HEAD + (
    "g (float[b, h, 1, 8] q, float[b, h, t, 8] past, float[b, h, 1, 8] new, float[b, t2] bias)"
    " => (float[b, h, 1, 8] y, float[b, h, t2, 8] present, int64[4] shape) {"
    " scaled = Mul(q, q) present = Concat<axis=2>(past, new) kt = Transpose<perm=[0, 1, 3, 2]>(present)"
    " scores = MatMul(scaled, kt) ends = Constant<value_ints=[1, 2]>() wide = Unsqueeze(bias, ends)"
    " masked = Add(scores, wide) p = Softmax<axis=-1>(masked) mixed = MatMul(p, present) r = Neg(mixed)"
    " s = Tanh(r) u = Add(s, s) v = Mul(u, s) w = Abs(v) z = Sub(w, v) y = Exp(z) shape = Shape(present) }"
)


def feeds(t: int, seed: int = 0, b: int = 1, h: int = 2) -> list[Any]:
    draw = np.random.default_rng(seed + t)
    shapes = ((b, h, 1, 8), (b, h, t, 8), (b, h, 1, 8), (b, t + 1))
    return [draw.standard_normal(shape).astype(np.float32) for shape in shapes]


def same(got: list[Any], want: list[Any]) -> bool:
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True))


def fresh(t: int, provider: str, **keywords: Any) -> list[Any]:
    return rig(ATTENTION, provider, decode_memo=False, capture=False)(*feeds(t, **keywords))


@pytest.mark.parametrize("stage_bytes", [0, 64 << 10])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_growing_past_binds_anew_only_what_depends_on_it(provider: str, stage_bytes: int) -> None:
    r = rig(ATTENTION, provider, verify_decode_memo=True, stage_bytes=stage_bytes)
    for t in range(5, 60):
        assert same(r(*feeds(t)), fresh(t, provider))
    s = r.runner.statistics
    assert s.memo_primed >= 1
    assert s.memo_replayed > 40
    assert s.memo_primed + s.memo_rebuilt < 12, "room grows by half each time, so it is seldom outgrown"
    slot = r.runner.context.graph_slots["primary"]
    assert slot.seams["growing-symbol"] > 0
    assert len(r.runner.roots.sections) <= 16


def test_what_does_not_depend_on_the_growth_stays_captured_and_is_called_as_it_was() -> None:
    r = rig(ATTENTION, stage_bytes=0, fuse_elementwise=False)
    for t in range(5, 9):
        r(*feeds(t))
    section = next(reversed(r.runner.roots.sections.values()))
    kept = {k: call for k, call in enumerate(section.calls) if section.seams[k] is None}
    assert len(kept) >= 6
    r(*feeds(9))
    assert section is next(reversed(r.runner.roots.sections.values()))
    assert all(section.calls[k] is call for k, call in kept.items())


def test_another_growth_a_value_or_a_rank_builds_anew() -> None:
    r = rig(ATTENTION)
    for t in (5, 6, 7, 8, 9):
        r(*feeds(t))
    before = r.runner.statistics.memo_replayed
    assert same(r(*feeds(10, h=3)), fresh(10, "cpu", h=3))
    assert same(r(*feeds(11, b=2)), fresh(11, "cpu", b=2))
    assert r.runner.statistics.memo_replayed == before


def test_switched_off_every_length_is_built() -> None:
    r = rig(ATTENTION, decode_memo=False)
    for t in range(5, 15):
        assert same(r(*feeds(t)), fresh(t, "cpu"))
    assert r.runner.statistics.sections_built == 10
    assert r.runner.statistics.memo_primed == r.runner.statistics.memo_replayed == 0


def test_a_program_of_which_most_depends_on_the_growth_goes_back_to_building() -> None:
    r = rig(HEAD + "g (float[n] x) => (float[n] y) { a = Abs(x) b = Exp(a) c = Tanh(b) y = Neg(c) }")
    for n in range(1, 30):
        x = np.linspace(0, 1, n, dtype=np.float32)
        assert np.allclose(r(x)[0], -np.tanh(np.exp(x)), rtol=1e-5)
    assert r.runner.statistics.memo_replayed == 0
    assert r.runner.statistics.memo_rebuilt == 1, "and does not try again"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 12)),
        st.tuples(st.just("jump"), st.integers(0, 70)),
        st.tuples(st.just("heads"), st.integers(1, 3)),
        st.tuples(st.just("slot"), st.sampled_from([0, 1])),
    ),
    min_size=4,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, provider=st.sampled_from(PROVIDERS), stage_bytes=st.sampled_from([0, 256, 64 << 10]))
def test_no_trace_of_lengths_ever_meets_a_wrong_shape(
    steps: list[tuple[str, int]], provider: str, stage_bytes: int
) -> None:
    r: Rig = rig(ATTENTION, provider, verify_decode_memo=True, stage_bytes=stage_bytes)
    t, h = 3, 2
    for what, n in steps:
        if what == "jump":
            t = n
        elif what == "heads":
            h = n
        elif what == "slot":
            r.runner.context.drive(("primary", "verify")[n])
        for _ in range(n if what == "grow" else 1):
            t += 1
            assert same(r(*feeds(t, h=h)), fresh(t, provider, h=h))


def test_values_that_decide_shapes_may_grow_as_extents_do() -> None:
    body = " ".join(f"a{k + 1} = Abs(a{k})" for k in range(8))
    text = HEAD + (
        f"g (float[64] x, int64[1] n) => (float[m] y, float[64] z) {{ a0 = Neg(x) {body} z = Identity(a8)"
        " zero = Constant<value_ints=[0]>() s = Slice(a8, zero, n) y = Sqrt(s) }"
    )
    r = rig(text, verify_decode_memo=True)
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    for n in range(1, 40):
        y, z = r(x, np.array([n]))
        assert np.array_equal(y, np.sqrt(np.abs(x[:n])))
        assert np.array_equal(z, np.abs(x))
    assert r.runner.statistics.memo_replayed > 25


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_value_that_is_read_where_it_lies_counts_too(provider: str) -> None:
    body = " ".join(f"a{k + 1} = Abs(a{k})" for k in range(6))
    nodes = f"a0 = Neg(x) {body} z = Tanh(a6) y = SplitToSequence(x, n)"
    r = rig(HEAD + f"g (float[9] x, int64[2] n) => (y, float[9] z) {{ {nodes} }}", provider)
    x = np.arange(9, dtype=np.float32)
    for n in range(1, 9):
        y, _ = r(x, np.array([n, 9 - n]))
        assert [part.shape for part in y] == [(n,), (9 - n,)]
