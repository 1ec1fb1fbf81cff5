"""GatherBlockQuantized against onnxruntime: every dtype, axis and form of zero point that it takes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import run_op
from tests.kernels.peer import onnxruntime

RNG = np.random.default_rng(22)
MS: dict[str, Any] = {"opset": 1, "domain": "com.microsoft"}
INDICES = np.array([[0, 3, -1], [2, 2, 99]])
"""Negative, repeated and out of range."""
FLOAT8 = [
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz
]  # fmt: skip


def table(
    dtype: Any,
    shape: tuple[int, ...],
    axis: int,
    block: int,
    *,
    bits: int = 4,
    zero: bool = False,
    scale: Any = None,
) -> tuple[Any, Any, Any]:
    """(data, scales, zero points)."""
    per_byte = 8 // bits if dtype == np.uint8 else 1
    whole = [*shape[:-1], shape[-1] * per_byte]
    whole[axis] = -(-whole[axis] // block) if block else 1
    scales = RNG.uniform(0.5, 2, scale or whole).astype(np.float32)

    def draw(extents: Any) -> Any:
        if dtype == np.uint8:
            return RNG.integers(0, 256, extents).astype(np.uint8)
        if dtype in (ml_dtypes.int4, ml_dtypes.uint4):
            low = -8 if dtype == ml_dtypes.int4 else 0
            return RNG.integers(low, low + 16, extents).astype(dtype)
        return RNG.standard_normal(extents).astype(np.float32).astype(dtype)

    stored = [*whole[:-1], -(-whole[-1] // per_byte)]
    return draw(shape), scales, draw(stored) if zero else None


def check(data: Any, scales: Any, zero: Any, indices: Any = INDICES, **attributes: Any) -> Any:
    inputs = [data, indices, scales] + ([zero] if zero is not None else [])
    (y,) = run_op("GatherBlockQuantized", inputs, **attributes, **MS)
    constant = (0, 2, 3)[: len(inputs) - 1]
    (expected,) = onnxruntime("GatherBlockQuantized", inputs, constant=constant, **attributes)
    assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
    assert (y == expected).all()
    return y


@pytest.mark.parametrize("zero", [False, True], ids=["", "zero points"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packed_bytes(bits: int, zero: bool) -> None:
    for shape, axis in (((5, 24), 1), ((5, 3, 24), -1)):
        data, scales, zeros = table(np.uint8, shape, axis, 16, bits=bits, zero=zero)
        y = check(data, scales, zeros, bits=bits, quantize_axis=axis, block_size=16)
        assert (y[1, 2] == 0).all()
        check(data, scales.astype(np.float16), zeros, bits=bits, quantize_axis=axis, block_size=16)


@pytest.mark.parametrize("zero", [False, True], ids=["", "zero points"])
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4], ids=["int4", "uint4"])
@pytest.mark.parametrize(("gather", "quantize"), [(0, 1), (1, 0), (2, 1), (0, 0), (1, 2), (-1, -1), (-1, -2)])
def test_four_bits_along_any_axes(gather: int, quantize: int, dtype: Any, zero: bool) -> None:
    data, scales, zeros = table(dtype, (5, 20, 34), quantize, 16, zero=zero)
    indices = INDICES.astype(np.int32)
    check(data, scales, zeros, indices, gather_axis=gather, quantize_axis=quantize, block_size=16)


@pytest.mark.parametrize("dtype", [*FLOAT8, ml_dtypes.float4_e2m1fn])
@pytest.mark.parametrize(
    ("gather", "quantize", "block", "scale"),
    [
        (0, 1, 16, None),
        (0, 1, 0, None),
        (0, 1, 0, (1, 1)),
        (1, 0, 16, (1, 20)),
        (0, 1, 16, (1, 2)),
        (0, 0, 16, (1, 1)),
    ],
)
def test_narrow_floats_and_scales_that_rows_share(
    dtype: Any, gather: int, quantize: int, block: int, scale: Any
) -> None:
    data, scales, _ = table(dtype, (5, 20), quantize, block, scale=scale)
    check(data, scales, None, gather_axis=gather, quantize_axis=quantize, block_size=block)


def test_bytes_quantised_along_another_axis_than_the_packed_one() -> None:
    data, scales, zeros = table(np.uint8, (5, 20, 8), 1, 16, zero=True)
    (y,) = run_op(
        "GatherBlockQuantized", [data, INDICES, scales, zeros], quantize_axis=1, block_size=16, **MS
    )
    values = np.stack([data & 15, data >> 4], -1).reshape(5, 20, 16).astype(np.float32)
    shifts = np.stack([zeros & 15, zeros >> 4], -1).reshape(5, 2, 16).astype(np.float32)
    block = np.arange(20) // 16
    expected = ((values - shifts[:, block]) * scales[:, block])[np.where(INDICES == 99, 0, INDICES)]
    expected[1, 2] = 0
    assert (y == expected).all()


def test_bfloat16_scales_and_indices_of_any_rank() -> None:
    data, scales, zeros = table(np.uint8, (5, 24), 1, 16, zero=True)
    narrow = scales.astype(ml_dtypes.bfloat16)
    for indices in (np.int64(2), np.zeros((0, 2), np.int64), np.arange(4).reshape(1, 2, 2, 1)):
        at = np.asarray(indices)
        (wide,) = run_op(
            "GatherBlockQuantized", [data, at, narrow.astype(np.float32), zeros], block_size=16, **MS
        )
        (y,) = run_op("GatherBlockQuantized", [data, at, narrow, zeros], block_size=16, **MS)
        assert y.shape == (*at.shape, 48)
        assert (y == wide.astype(ml_dtypes.bfloat16)).all()


def test_tables_that_contradict_themselves_are_errors() -> None:
    data, scales, zeros = table(np.uint8, (5, 24), 1, 16, zero=True)
    inputs = [data, INDICES, scales, zeros]
    with pytest.raises(KernelError, match="blocks of 32 need"):
        run_op("GatherBlockQuantized", inputs, block_size=32, **MS)
    with pytest.raises(KernelError, match="power of two"):
        run_op("GatherBlockQuantized", inputs, block_size=8, **MS)
    with pytest.raises(KernelError, match="not gathered along the last axis"):
        run_op("GatherBlockQuantized", inputs, block_size=16, gather_axis=1, quantize_axis=0, **MS)
    with pytest.raises(KernelError, match="of int8 for data of uint8"):
        run_op("GatherBlockQuantized", [*inputs[:3], zeros.astype(np.int8)], block_size=16, **MS)
    with pytest.raises(UnsupportedError, match="int32"):
        run_op("GatherBlockQuantized", [data.astype(np.int32), *inputs[1:3]], block_size=16, **MS)
