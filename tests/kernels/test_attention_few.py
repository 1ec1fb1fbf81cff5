"""Attention of a few queries: the general path's result, and bits that hang on what is seen alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels import attention, attention_few
from hetero.kernels.attention import Attention, Extras, Reach
from hetero.kernels.attention_few import is_few, takes
from hetero.kernels.attention_few_loops import attend_few
from hetero.kernels.jit import enabled
from hetero.kernels.workspace import carve, carved_bytes

pytestmark = pytest.mark.skipif(not enabled(), reason="nothing is compiled")
SINGLE = np.dtype(np.float32)


def sized(**changes: Any) -> Attention:
    given_sizes = {
        "batch": 2, "heads": 6, "kv_heads": 2, "queries": 2, "keys": 37, "size": 20, "value_size": 24,
        "dtype": SINGLE, "scale": 0.3,
    }  # fmt: skip
    return Attention(**(given_sizes | changes))


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operands(sizes: Attention, room: int = 0, gap: int = 0) -> list[Any]:
    """Queries, keys and values; these lie in buffers with `room` steps and `gap` heads more."""
    b, kv, t = sizes.batch, sizes.kv_heads, sizes.keys
    found = [numbers(b, sizes.heads, sizes.queries, sizes.size)]
    for seed, width in ((1, sizes.size), (2, sizes.value_size)):
        buffer = np.full((b, kv + gap, t + room, width), np.nan, np.float32)
        buffer[:, :kv, :t] = numbers(b, kv, t, width, seed=seed)
        found.append(buffer[:, :kv, :t])
    return found


def attended(sizes: Attention, arrays: list[Any], extras: Extras) -> Any:
    out = np.full((sizes.batch, sizes.heads, sizes.queries, sizes.value_size), np.nan, np.float32)
    parts = sizes.parts(np)
    scratch = carve(np.full(carved_bytes(*parts), 0xFF, np.uint8), *parts)
    call = sizes.bind(np, *arrays, out, scratch, extras)
    call()
    first = out.copy()
    call()
    assert first.tobytes() == out.tobytes()
    return out


def in_general(sizes: Attention, arrays: list[Any], extras: Extras, patch: pytest.MonkeyPatch) -> Any:
    with patch.context() as patched:
        patched.setattr(attention, "is_few", lambda *_: False)
        return attended(sizes, arrays, extras)


def causal(sizes: Attention, window: int | None = None, masked: float = -np.inf) -> Reach:
    last = np.arange(sizes.keys - sizes.queries, sizes.keys).reshape(1, -1)
    return Reach(last, None if window is None else last - window + 1, masked)


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "plain": ({}, lambda s: Extras()),
    "one query": ({"queries": 1}, lambda s: Extras(reach=causal(s), zero_empty=True)),
    "causal": ({}, lambda s: Extras(reach=causal(s))),
    "window": ({}, lambda s: Extras(reach=causal(s, 5), zero_empty=True)),
    "finite mask": ({}, lambda s: Extras(reach=causal(s, masked=-1e4))),
    "soft cap": ({"softcap": 2.0}, lambda s: Extras(reach=causal(s))),
    "biases": ({}, lambda s: Extras([numbers(1, 6, 2, 37, seed=4), numbers(2, 1, 1, 37, seed=5)])),
    "sink": ({}, lambda s: Extras(reach=causal(s), sink=numbers(6, seed=6))),
    "lengths": ({}, lambda s: Extras(reach=Reach(np.array([[3, 4], [20, 36]]), None, -np.inf))),
    "nothing seen": ({}, lambda s: Extras(reach=Reach(np.array([[-1, 0]]), None, -np.inf), zero_empty=True)),
    "every key a value": ({"heads": 2, "value_size": 70, "size": 64, "keys": 300}, lambda s: Extras()),
    "beyond the keys": ({}, lambda s: Extras(reach=Reach(np.array([[99, 99]]), None, -np.inf))),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_the_general_path_gives(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, make = CASES[case]
    sizes = sized(**changes)
    extras, arrays = make(sizes), operands(sizes)
    assert is_few(sizes, np)
    assert takes(extras)
    found, expected = attended(sizes, arrays, extras), in_general(sizes, arrays, extras, monkeypatch)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_the_twin_and_threads_give_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, make = CASES[case]
    sizes = sized(**changes)
    extras, arrays = make(sizes), operands(sizes)
    serial = attended(sizes, arrays, extras)
    with monkeypatch.context() as patched:
        patched.setattr(attention_few, "PARALLEL_PRODUCTS", 0)
        assert attended(sizes, arrays, extras).tobytes() == serial.tobytes()
    with monkeypatch.context() as patched:
        patched.setattr(type(attend_few), "variant", lambda self, *_, **__: self.twin)
        np.testing.assert_allclose(attended(sizes, arrays, extras), serial, rtol=2e-5, atol=2e-6)


@settings(deadline=None)
@given(st.integers(0, 9), st.integers(0, 2), st.integers(1, 4), st.integers(1, 70), st.integers(1, 40))
def test_bits_do_not_depend_on_where_the_operands_lie(
    room: int, gap: int, queries: int, keys: int, size: int
) -> None:
    sizes = sized(queries=queries, keys=keys, size=size)
    extras = Extras(reach=Reach(np.full((1, queries), keys // 2), None, -np.inf), zero_empty=True)
    dense = attended(sizes, operands(sizes), extras)
    assert attended(sizes, operands(sizes, room, gap), extras).tobytes() == dense.tobytes()


@settings(deadline=None)
@given(st.integers(0, 80), st.integers(1, 100))
def test_what_is_not_seen_may_be_anything_and_is_not_read(seen: int, more: int) -> None:
    short, long = (sized(batch=1, queries=1, keys=n) for n in (seen + 1, seen + 1 + more))
    reach = Reach(np.array([[seen]]), None, -np.inf)
    whole = operands(long, room=1)
    for array in whole[1:]:
        array[:, :, seen + 1 :] = np.nan
    front = [whole[0], *(a[:, :, : seen + 1] for a in whole[1:])]
    extras = Extras(reach=reach, zero_empty=True)
    found = attended(long, whole, extras)
    assert not np.isnan(found).any()
    assert found.tobytes() == attended(short, front, extras).tobytes()


def test_rows_that_are_not_dense_or_aligned_are_copied_first() -> None:
    sizes = sized()
    plain = operands(sizes)
    strided = [np.repeat(a, 2, axis=-1)[..., ::2] for a in plain]
    odd = []
    for a in plain:
        raw = np.zeros(a.nbytes + 1, np.uint8)
        odd.append(raw[1:].view(np.float32).reshape(a.shape))
        odd[-1][...] = a
    expected = attended(sizes, plain, Extras()).tobytes()
    assert attended(sizes, strided, Extras()).tobytes() == expected
    assert attended(sizes, odd, Extras()).tobytes() == expected


def test_nan_and_infinity_are_not_lost() -> None:
    sizes = sized(batch=1, heads=1, kv_heads=1, queries=1, keys=3)
    q, k, v = operands(sizes)
    k[0, 0, 1] = np.nan
    assert np.isnan(attended(sizes, [q, k, v], Extras(zero_empty=True))).all()


def test_sizes_alone_decide() -> None:
    assert is_few(sized(queries=4), np)
    assert not is_few(sized(queries=5), np)
    assert not is_few(sized(heads=34), np)
    assert not is_few(sized(dtype=np.dtype(np.float64)), np)
    assert not is_few(sized(), object())
    assert not takes(Extras(taps={attention.WEIGHTS: numbers(1)}))
