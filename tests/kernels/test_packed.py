"""Packed integers against their bits written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.packed import Blocks, packed_bytes, require_block, require_width, unpack
from tests.kernels.harness import operation

RNG = np.random.default_rng(3)


def packed(values: Any, bits: int) -> Any:
    """The integers along the last axis as a stream of bits, low bits first."""
    stream = (values[..., None] >> np.arange(bits)) & 1
    return np.packbits(stream.reshape(*values.shape[:-1], -1).astype(np.uint8), axis=-1, bitorder="little")


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("count", [1, 5, 16])
def test_unpacking_gives_back_what_was_packed(bits: int, count: int) -> None:
    values = RNG.integers(0, 1 << bits, (3, count))
    stored = packed(values, bits)
    assert stored.shape[-1] == packed_bytes(count, bits)
    found = unpack(np, stored, bits, count)
    assert found.dtype == np.uint8
    assert (found == values).all()


@pytest.mark.parametrize("zero", [None, "packed", "float"])
def test_each_block_has_its_scale_and_zero_point(zero: str | None) -> None:
    blocks = Blocks(rows=3, depth=10, block=4, bits=4)
    values = RNG.integers(0, 16, (3, 10))
    scale = RNG.random((3, 3)).astype(np.float32)
    zeros = RNG.integers(0, 16, (3, 3))
    operand = {None: None, "packed": packed(zeros, 4), "float": zeros.astype(np.float32)}[zero]
    out = np.empty((3, 10), np.float32)
    blocks.dequantize(np, packed(values, 4), scale, operand, out)
    column = np.arange(10) // 4
    expected = (values - (8 if zero is None else zeros[:, column])).astype(np.float32) * scale[:, column]
    assert (out == expected).all()


def test_widths_and_blocks_that_make_no_sense_are_refused() -> None:
    op = operation("MatMulNBits", [None], opset=1, domain="com.microsoft")
    with pytest.raises(UnsupportedError, match="9 bits"):
        require_width(op, 9)
    with pytest.raises(KernelError, match="24 is not a power of two from 16 on"):
        require_block(op, 24, least=16)
