"""The core of attention: blocks of any size, masks by reach, sinks, soft caps and taps, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.kernels import attention
from hetero.kernels.attention import BIASED, CAPPED, MASKED, PRODUCTS, WEIGHTS, Attention, Extras, Reach
from hetero.kernels.workspace import carve, carved_bytes
from tests.kernels.attention_peer import softmax

F32 = np.dtype(np.float32)


def sizes(queries: int = 5, *, kv_heads: int = 2, keys: int = 7, softcap: float = 0.0) -> Attention:
    return Attention(3, 4, kv_heads, queries, keys, 6, 8, F32, 0.4, softcap)


def operands(s: Attention) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = [
        (s.batch, s.heads, s.queries, s.size),
        (s.batch, s.kv_heads, s.keys, s.size),
        (s.batch, s.kv_heads, s.keys, s.value_size),
    ]
    return [rng.standard_normal(shape).astype(F32) for shape in shapes]


def run(s: Attention, arrays: list[Any], extras: Extras) -> Any:
    workspace = np.full(carved_bytes(*s.parts(np)), 0xFF, np.uint8)
    out = np.full((s.batch, s.queries, s.heads, s.value_size), np.nan, F32)
    call = s.bind(np, *arrays, out.transpose(0, 2, 1, 3), carve(workspace, *s.parts(np)), extras)
    call()
    first = out.copy()
    call()
    np.testing.assert_array_equal(out, first)
    return out.transpose(0, 2, 1, 3)


def products(s: Attention, arrays: list[Any]) -> Any:
    q, k, _ = (a.astype(np.float64) for a in arrays)
    return q @ np.repeat(k, s.heads // s.kv_heads, 1).swapaxes(-1, -2) * s.scale


def values(s: Attention, arrays: list[Any]) -> Any:
    return np.repeat(arrays[2].astype(np.float64), s.heads // s.kv_heads, 1)


@pytest.mark.parametrize("block_bytes", [1, 100, 200, 700, 5000, 1 << 20])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("queries", [1, 5])
def test_blocks_of_any_size_give_what_the_whole_gives(
    queries: int, kv_heads: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "BLOCK_BYTES", block_bytes)
    s = sizes(queries, kv_heads=kv_heads)
    arrays = operands(s)
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((1, 4, queries, 7)).astype(F32)
    last = rng.integers(0, 7, (3, queries))
    first = np.maximum(last - 2, 0)
    tap = np.full((3, 4, queries, 7), np.nan, F32)
    sink = rng.standard_normal(4).astype(F32)
    reach = Reach(last, first, -np.inf)
    out = run(s, arrays, Extras([bias], reach, sink, {WEIGHTS: tap}))
    places = np.arange(7)
    seen = (places <= last[:, None, :, None]) & (places >= first[:, None, :, None])
    scores = np.where(seen, products(s, arrays) + bias, -np.inf)
    weights = softmax(np.concatenate([scores, np.broadcast_to(sink[:, None, None], (3, 4, queries, 1))], -1))
    np.testing.assert_allclose(tap, weights[..., :-1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(out, weights[..., :-1] @ values(s, arrays), rtol=1e-4, atol=1e-5)


def test_each_block_is_looked_at_once_and_is_no_larger_than_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for block_bytes in (1, 60, 300, 1000, 1 << 20):
        monkeypatch.setattr(attention, "BLOCK_BYTES", block_bytes)
        s = sizes()
        seen = np.zeros((s.batch, s.kv_heads, *s.rows), int)
        for where in s.blocks(np):
            seen[where] += 1
            rows = seen[where].size
            assert rows * s.keys * 4 <= block_bytes or seen[where].shape[1] * seen[where].shape[3] == 1
        assert (seen == 1).all()


def test_taps_show_the_scores_at_every_stage() -> None:
    s = sizes(softcap=1.5)
    arrays = operands(s)
    bias = np.random.default_rng(2).standard_normal((3, 1, 1, 7)).astype(F32)
    last = np.arange(2, 7).reshape(1, 5)
    taps = {stage: np.empty((3, 4, 5, 7), F32) for stage in (PRODUCTS, CAPPED, BIASED, MASKED, WEIGHTS)}
    run(s, arrays, Extras([bias], Reach(last, None, -3.0), taps=taps))
    hidden = np.arange(7) > last[:, None, :, None]
    raw = products(s, arrays)
    capped = 1.5 * np.tanh(raw / 1.5)
    masked = np.where(hidden, -3.0, capped + bias)
    expected = {
        PRODUCTS: raw, CAPPED: capped, BIASED: capped + bias, MASKED: masked, WEIGHTS: softmax(masked)
    }  # fmt: skip
    for stage, array in expected.items():
        np.testing.assert_allclose(taps[stage], array, rtol=1e-4, atol=1e-5, err_msg=stage)


def test_blank_taps_hold_no_score_of_keys_out_of_reach() -> None:
    s = sizes()
    tap = np.empty((3, 4, 5, 7), F32)
    last = np.arange(1, 6).reshape(1, 5)
    run(s, operands(s), Extras(reach=Reach(last, None, -1e9), taps={BIASED: tap}, blank=True))
    hidden = np.broadcast_to(np.arange(7) > last[:, None, :, None], tap.shape)
    assert (tap[hidden] == 0).all()
    assert (tap[~hidden] != 0).all()


def test_a_query_that_sees_nothing_gives_zero_where_that_is_asked_for() -> None:
    s = sizes()
    last = np.array([[-1, 0, 6, -1, 3]])
    out = run(s, operands(s), Extras(reach=Reach(last, None, -np.inf), zero_empty=True))
    assert (out[:, :, [0, 3]] == 0).all()
    assert (out[:, :, [1, 2, 4]] != 0).all()
    out = run(s, operands(s), Extras(reach=Reach(last, None, -np.inf)))
    assert np.isnan(out[:, :, [0, 3]]).all()


@pytest.mark.parametrize("empty", ["batch", "queries", "keys"])
def test_without_elements_nothing_is_computed(empty: str) -> None:
    extents = {"batch": 2, "queries": 3, "keys": 4, empty: 0}
    s = Attention(extents["batch"], 2, 2, extents["queries"], extents["keys"], 4, 4, F32, 1.0)
    assert (run(s, operands(s), Extras()) == 0).all()
