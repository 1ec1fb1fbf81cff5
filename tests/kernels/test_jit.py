"""The door to numba: compiled variants and twins agree, and what compiled code cannot take goes to the twin."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from hetero.kernels.jit import _fingerprint, inline, jit, prange


@inline
def half(x: Any) -> Any:
    return x * np.float32(0.5)


@inline
def quarter(x: Any) -> Any:
    return half(half(x))


def _twin(x: Any, y: Any, shift: int) -> None:
    y[...] = x * np.float32(0.25) + shift


@jit("f4[2], f4[2]!, i8", twin=_twin)
def scaled(x: Any, y: Any, shift: int) -> None:
    for i in prange(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = quarter(x[i, j]) + shift


def operands() -> tuple[Any, Any]:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    x.flags.writeable = False
    return x, np.empty_like(x)


@pytest.mark.parametrize("parallel", [False, True])
def test_variants_give_the_twins_result_and_take_read_only_inputs(parallel: bool) -> None:
    x, y = operands()
    function = scaled.variant(x, y, parallel=parallel)
    assert function is not _twin
    function(x, y, 3)
    assert (y == x / 4 + 3).all()


def test_a_variant_is_compiled_once() -> None:
    x, y = operands()
    assert scaled.variant(x, y) is scaled.variant(y)
    assert scaled.variant(x) is not scaled.variant(x, parallel=True)


def test_the_switch_gives_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_JIT", "0")
    assert scaled.variant(*operands()) is _twin


def test_an_unaligned_array_goes_to_the_twin() -> None:
    raw = np.zeros(4 * 4 + 1, np.uint8)
    x = raw[1:].view(np.float32).reshape(2, 2)
    assert not x.flags.aligned
    assert scaled.variant(x) is _twin


def test_a_dtype_without_a_signature_goes_to_the_twin() -> None:
    x, _ = operands()
    assert scaled.variant(x.astype(np.float64)) is _twin
    assert scaled.variant(x.astype(np.float16)) is _twin


@pytest.mark.parametrize("text", ["f4[2", "f4[0]", "x4[1]!", "f4!", ""])
def test_a_malformed_signature_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no argument"):
        jit(text, twin=_twin)


def test_a_changed_helper_changes_the_name_that_compiled_code_is_cached_under() -> None:
    @inline
    def changed(x: Any) -> Any:
        return x * np.float32(0.75)

    def over(helper: Any) -> Any:
        scope = {**scaled.function.__globals__, "half": helper}
        deeper = types.FunctionType(quarter.__code__, scope)
        inline(deeper)
        return types.FunctionType(scaled.function.__code__, {**scope, "quarter": deeper})

    assert _fingerprint(over(half)) == _fingerprint(scaled.function)
    assert _fingerprint(over(changed)) != _fingerprint(scaled.function)
