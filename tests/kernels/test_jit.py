"""The door to numba: compiled variants and twins agree, and what compiled code cannot take goes to the twin."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from hetero.kernels import tape_loops
from hetero.kernels.jit import _helpers_stamp, floats_at, inline, jit, prange


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


def _sum_of_products(x: Any, y: Any, z: Any) -> None:
    z[...] = x * y + z


@jit("f4[1], f4[1], f4[1]!", twin=_sum_of_products, exact=True)
def exact(x: Any, y: Any, z: Any) -> None:
    for i in range(x.shape[0]):
        z[i] = x[i] * y[i] + z[i]


@jit("f4[1], f4[1], f4[1]!", twin=_sum_of_products)
def contracted(x: Any, y: Any, z: Any) -> None:
    for i in range(x.shape[0]):
        z[i] = x[i] * y[i] + z[i]


def test_exact_code_rounds_every_operation_as_the_twin_does() -> None:
    rng = np.random.default_rng(0)
    x, y, z = rng.standard_normal((3, 1000)).astype(np.float32)
    results = [z.copy() for _ in range(3)]
    exact.variant(x)(x, y, results[0])
    _sum_of_products(x, y, results[1])
    contracted.variant(x)(x, y, results[2])
    assert np.array_equal(results[0], results[1])
    np.testing.assert_allclose(results[2], results[1], atol=1e-6)


def _by_address_twin(addresses: Any) -> None:
    floats_at(int(addresses[1]), 5)[...] = floats_at(int(addresses[0]), 5) * np.float32(2)


@jit("i8[1]", twin=_by_address_twin)
def by_address(addresses: Any) -> None:
    source, target = floats_at(addresses[0], 5), floats_at(addresses[1], 5)
    for i in range(5):
        target[i] = source[i] * np.float32(2)


def test_memory_is_found_by_its_address() -> None:
    x = np.arange(5, dtype=np.float32)
    for switch in (by_address.variant(np.zeros(2, np.int64)), _by_address_twin):
        y = np.zeros_like(x)
        switch(np.array([x.ctypes.data, y.ctypes.data]))
        assert np.array_equal(y, 2 * x)


def test_helpers_of_other_files_have_a_part_in_the_name_of_the_cache() -> None:
    assert _helpers_stamp(scaled.function) == ""
    stamp = _helpers_stamp(tape_loops.run_tape.function)
    assert len(stamp) == 9
    assert stamp == _helpers_stamp(tape_loops.run_tape.function)


def test_every_kernel_is_there_without_numba() -> None:
    program = (
        "import sys; sys.modules['numba'] = None\n"
        "from hetero.kernels import load_all; load_all()\n"
        "from hetero.kernels.jit import enabled; assert not enabled()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
