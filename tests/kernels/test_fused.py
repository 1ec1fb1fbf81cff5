"""Chains run in pieces, and calls under errstate."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from hetero.kernels.base import Compiled
from hetero.kernels.fused import PIECE_BYTES, chain, in_turn
from hetero.kernels.quiet import Quiet, bare, quiet
from hetero.types import TensorSpec


def squared_plus_one(x: Any, out: Any, t: Any) -> None:
    np.multiply(x, x, t)
    np.add(t, 1.0, out)


def compiled(n: int) -> Compiled:
    return chain(np, TensorSpec(np.dtype(np.float32), (n,)), squared_plus_one, scratch=(np.float32,))


@pytest.mark.parametrize("n", [0, 1, PIECE_BYTES // 4, PIECE_BYTES // 4 + 1, PIECE_BYTES])
def test_a_chain_covers_every_element_with_scratch_for_one_piece(n: int) -> None:
    kernel = compiled(n)
    assert kernel.bind is not None
    assert kernel.workspace_bytes <= PIECE_BYTES
    x, out = np.arange(n, dtype=np.float32), np.full(n, np.nan, np.float32)
    kernel.bind([x], [out], np.empty(kernel.workspace_bytes, np.uint8))()
    np.testing.assert_array_equal(out, x * x + 1)


def test_calls_run_in_turn_and_a_single_one_as_it_is() -> None:
    seen: list[int] = []
    in_turn([lambda: seen.append(1), lambda: seen.append(2)])()
    assert seen == [1, 2]
    only = lambda: None  # noqa: E731
    assert in_turn([only]) is only


def test_a_quiet_call_warns_of_nothing_and_its_bare_call_does() -> None:
    zero, out = np.zeros(1, np.float32), np.empty(1, np.float32)
    call = quiet(np.divide, zero, zero, out)
    call()
    assert np.isnan(out[0])
    with pytest.warns(RuntimeWarning, match="invalid value"):
        bare(call)()
    with np.errstate(all="raise"):
        call()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Quiet(bare(call))()


def test_a_call_that_is_not_quiet_is_bare_already() -> None:
    call = in_turn([])
    assert bare(call) is call
