"""Compiled rotation: the very bits of the array operations, on threads and from wherever the heads lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError
from hetero.kernels import rotary, rotary_loops
from hetero.kernels.jit import enabled
from hetero.kernels.rotary_loops import bind_rotate, rotate
from tests.kernels.harness import run_op

pytestmark = pytest.mark.skipif(not enabled(), reason="nothing is compiled")
B, N, S, H, POSITIONS = 2, 3, 4, 16, 12


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tables(turned: int) -> tuple[Any, Any]:
    return numbers(POSITIONS, turned // 2, seed=1), numbers(POSITIONS, turned // 2, seed=2)


@settings(deadline=None)
@given(st.sampled_from([2, 8, 16]), st.booleans(), st.booleans(), st.integers(1, 4))
def test_it_has_the_bits_of_the_array_operations(
    turned: int, interleaved: bool, split: bool, length: int
) -> None:
    x = numbers(B, length, N * H)
    x = x.reshape(B, length, N, H).transpose(0, 2, 1, 3) if split else x.reshape(B, N, length, H)
    cos, sin = tables(turned)
    positions = np.random.default_rng(3).integers(0, POSITIONS, (B, length))
    found, expected = np.full((B, N, length, H), np.nan, "f4"), np.full((B, N, length, H), np.nan, "f4")
    bind_rotate(x, found, (cos, sin), positions, turned, interleaved)()
    plain = rotary.Rotation(H, turned, interleaved, x.dtype)
    scratch = np.empty((B, N, length, turned // 2), np.float32)
    for call in plain.bind(np, x, cos[positions][:, None], sin[positions][:, None], expected, scratch):
        call()
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("interleaved", [False, True])
def test_threads_and_the_twin_give_the_same(interleaved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, positions = numbers(B, N, S, H), np.arange(S).reshape(1, S)

    def turned() -> bytes:
        out = np.full_like(x, np.nan)
        bind_rotate(x, out, tables(8), positions, 8, interleaved)()
        return out.tobytes()

    serial = turned()
    with monkeypatch.context() as patched:
        patched.setattr(rotary_loops, "PARALLEL_ELEMENTS", 0)
        assert turned() == serial
    with monkeypatch.context() as patched:
        patched.setattr(type(rotate), "variant", lambda self, *_, **__: self.twin)
        assert turned() == serial


@pytest.mark.parametrize("length", [1, 9])
def test_positions_outside_of_the_tables_are_errors(length: int) -> None:
    x, (cos, sin) = numbers(1, N, length, H), tables(H)
    for position in (-1, POSITIONS):
        ids = np.full((1, length), position)
        with pytest.raises(KernelError, match="leave the table of 12 positions"):
            run_op("RotaryEmbedding", [x, cos, sin, ids], opset=23)
