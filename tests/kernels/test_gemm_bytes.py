"""Products of bytes in integers: every sign, zero point and layout against int64, and the operators that use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.derived import Keeper
from hetero.kernels.gemm_bytes import (
    bind_bytes,
    byte_product,
    pack_bytes,
    panel_shape,
    sum_columns,
)
from hetero.kernels.jit_tiles import columns
from hetero.types import Array
from tests.kernels.harness import compile_op, run_op

BYTES = st.sampled_from([np.dtype(np.int8), np.dtype(np.uint8)])
RNG = np.random.default_rng(5)


def some(dtype: Any, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def constant(dtype: Any, *shape: int) -> Any:
    array = some(dtype, *shape)
    array.flags.writeable = False
    return array


def exactly(a: Array, a_zero: Array | None, b: Array, b_zero: Array | None) -> Array:
    wide = [
        x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))
        for x, zero in ((a, a_zero), (b, b_zero))
    ]
    product: Array = (wide[0] @ wide[1]).astype(np.int32)
    return product


@settings(deadline=None)
@given(
    st.integers(1, 60), st.integers(1, 300), st.integers(1, 200), BYTES, BYTES,
    st.booleans(), st.sampled_from(["none", "one", "columns"]),
)  # fmt: skip
def test_every_kind_of_operand_gives_the_exact_sums(
    m: int, k: int, n: int, a_dtype: Any, b_dtype: Any, has_zero: bool, zeros: str
) -> None:
    a, b = some(a_dtype, m, k), constant(b_dtype, k, n)
    a_zero = some(a_dtype) if has_zero else None
    b_zero = {"none": None, "one": some(b_dtype), "columns": some(b_dtype, n)}[zeros]
    out = np.full((m, n), 77, np.int32)
    bind_bytes(Keeper(), a, a_zero, b, b_zero, out)()
    assert np.array_equal(out, exactly(a, a_zero, b, b_zero))


def test_sums_wrap_as_int32_does() -> None:
    a, b = np.full((3, 70_000), 255, np.uint8), np.full((70_000, 20), 127, np.int8)
    b.flags.writeable = False
    out = np.empty((3, 20), np.int32)
    bind_bytes(Keeper(), a, None, b, None, out)()
    assert (out == np.int64(255 * 127 * 70_000).astype(np.int32)).all()


def test_transposed_factors_and_batches_are_read_as_they_lie() -> None:
    a, b = some(np.uint8, 2, 5, 64), constant(np.int8, 33, 64)
    out = np.empty((2, 5, 33), np.int32)
    bind_bytes(Keeper(), a, None, b.T, None, out)()
    assert np.array_equal(out, exactly(a, None, b.T, None))
    turned, out = some(np.int8, 64, 7), np.empty((7, 33), np.int32)
    bind_bytes(Keeper(), turned.T, None, b.T, None, out)()
    assert np.array_equal(out, exactly(turned.T, None, b.T, None))


def test_the_left_factor_and_its_zero_point_are_read_anew_by_each_call() -> None:
    a, zero, b = some(np.int8, 4, 50), some(np.int8), constant(np.uint8, 50, 70)
    out = np.empty((4, 70), np.int32)
    call = bind_bytes(Keeper(), a, zero, b, None, out)
    for _ in range(2):
        a[:], zero[...] = some(np.int8, 4, 50), some(np.int8)
        call()
        assert np.array_equal(out, exactly(a, zero, b, None))


@pytest.mark.parametrize("parallel", [False, True])
def test_compiled_code_and_its_twin_agree(parallel: bool) -> None:
    a, b = some(np.uint8, 103, 80), constant(np.int8, 80, 2 * columns() + 5)
    results = []
    for function in (byte_product.variant(np.zeros(1, np.int64), parallel=parallel), byte_product.twin):
        out = np.empty((103, b.shape[1]), np.int32)
        call: Any = bind_bytes(Keeper(), a, None, b, None, out)
        function(*call.arguments)
        results.append(out)
    assert np.array_equal(results[0], exactly(a, None, b, None))
    assert np.array_equal(*results)


def test_panels_hold_quads_of_each_column_and_then_zeros() -> None:
    b = some(np.uint8, 10, columns() + 3)
    out = np.full(panel_shape(*b.shape), 9, np.int8)
    pack_bytes(b, out)
    assert out.shape == (2, 3, columns(), 4)
    signed = (b.astype(np.int16) - 128).astype(np.int8)
    assert out[1, 2, 1].tolist() == [*signed[8:, columns() + 1].tolist(), 0, 0]
    assert not out[1, :, 3:].any()
    sums = np.zeros(b.shape[1], np.int32)
    sum_columns(b, sums)
    assert np.array_equal(sums, signed.sum(0, dtype=np.int32))


@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("op_type", ["MatMulInteger", "DynamicQuantizeMatMul"])
def test_operators_give_the_same_bits_by_either_route(
    op_type: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = constant(np.int8, 40, 24)
    if op_type == "MatMulInteger":
        inputs = [some(np.uint8, rows, 40), b, some(np.uint8), constant(np.int8, 24)]
        domain, opset, dtype = "", 13, np.int32
    else:
        inputs = [RNG.standard_normal((rows, 40)).astype(np.float32), b, np.asarray(np.float32(0.01))]
        domain, opset, dtype = "com.microsoft", 1, np.float32
    routes, results = [], []
    monkeypatch.setattr(
        "hetero.kernels.product_exact.bind_bytes", lambda *a: (routes.append("bytes"), bind_bytes(*a))[1]
    )
    for fast in (True, False):
        monkeypatch.setattr("hetero.kernels.gemm_bytes.fast_bytes", lambda fast=fast: fast)
        _, compiled = compile_op(op_type, inputs, domain=domain, opset=opset)
        out = np.empty((rows, 24), dtype)
        workspace = np.empty(compiled.workspace_bytes, np.uint8)
        assert compiled.bind is not None
        operands = [*inputs, *[None] * (5 - len(inputs))]
        compiled.bind(operands, [out], workspace)()
        results.append(out)
    assert routes == ["bytes"]
    assert np.array_equal(*results)
    if op_type == "MatMulInteger":
        assert np.array_equal(results[0], exactly(inputs[0], inputs[2], b, inputs[3]))


def test_a_range_with_nan_gives_nan() -> None:
    x = RNG.standard_normal((3, 40)).astype(np.float32)
    x[1, 2] = np.nan
    operands = [x, constant(np.int8, 40, 24), np.asarray(np.float32(0.01))]
    (y,) = run_op("DynamicQuantizeMatMul", operands, domain="com.microsoft", opset=1)
    assert np.isnan(y).all()
