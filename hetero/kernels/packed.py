"""Small unsigned integers packed into bytes, and weights quantised in blocks along their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.operands import fail
from hetero.program.operation import Operation
from hetero.types import Array

FLOAT32, UINT8 = np.dtype(np.float32), np.dtype(np.uint8)
WIDTHS = range(2, 9)
"""Bits that a packed integer may have."""
PIECE_ELEMENTS = 1 << 16
"""Integers unpacked at a time, so that what lies between the steps stays in the cache."""


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that hold `count` integers of `bits`."""
    return -(-count * bits // 8)


def unpack(xp: Any, packed: Array, bits: int, count: int) -> Array:
    """The first `count` integers along the last axis of `packed` (uint8), as uint8: (…, bytes) to (…, count).

    An integer may cross from one byte into the next; low bits come first.
    """
    if bits == 8:
        return packed[..., :count]
    mask = np.uint8((1 << bits) - 1)
    if 8 % bits == 0:
        per_byte = 8 // bits
        found = xp.empty((*packed.shape, per_byte), UINT8)
        for i in range(per_byte):
            xp.right_shift(packed, np.uint8(i * bits), out=found[..., i])
        xp.bitwise_and(found, mask, out=found)
        return found.reshape(*packed.shape[:-1], packed.shape[-1] * per_byte)[..., :count]
    first = xp.arange(count) * bits
    low, shift = first >> 3, (first & 7).astype(np.uint16)
    high = xp.minimum(low + 1, packed.shape[-1] - 1)
    pair = packed[..., low].astype(np.uint16) | (packed[..., high].astype(np.uint16) << np.uint16(8))
    return ((pair >> shift) & np.uint16(mask)).astype(UINT8)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix of `rows` x `depth` integers of `bits`, with a scale and zero point for each `block` of a row."""

    rows: int
    depth: int
    block: int
    bits: int

    @property
    def count(self) -> int:
        """Blocks of one row; the last may hold fewer than `block` elements."""
        return -(-self.depth // self.block)

    @property
    def middle(self) -> int:
        """The zero point where none is given."""
        return 1 << (self.bits - 1)

    @property
    def zero_bytes(self) -> int:
        """Bytes of one row's packed zero points."""
        return packed_bytes(self.count, self.bits)

    def zeros(self, xp: Any, zero: Array | None) -> Array | float:
        """Zero points as float32, (rows, count), from packed bytes (rows, zero_bytes) or floats."""
        if zero is None:
            return float(self.middle)
        if zero.dtype == UINT8:
            zero = unpack(xp, zero.reshape(self.rows, self.zero_bytes), self.bits, self.count)
        return zero.reshape(self.rows, self.count).astype(FLOAT32)

    def dequantize(
        self, xp: Any, packed: Array, scale: Array, zero: Array | None, out: Array, group: Array | None = None
    ) -> None:
        """(integer - zero point) * scale into `out` (rows, depth), float32.

        `packed`: (rows, bytes), in which no block shares a byte with the next. `scale`: rows * count floats; `zero`
        likewise, or as packed bytes. `group` (depth): the block whose scale a column takes, where it is not its own.
        """
        scales = scale.reshape(self.rows, self.count).astype(FLOAT32)
        zeros = self.zeros(xp, zero)
        column = xp.arange(self.depth) // self.block if group is None else group[: self.depth]
        step = max(1, PIECE_ELEMENTS // max(1, self.depth))
        for i in range(0, self.rows, step):
            rows = slice(i, i + step)
            piece = out[rows]
            piece[...] = unpack(xp, packed[rows], self.bits, self.depth)
            if isinstance(zeros, float):
                xp.subtract(piece, zeros, out=piece)
            else:
                xp.subtract(piece, zeros[rows].take(column, 1), out=piece)
            xp.multiply(piece, scales[rows].take(column, 1), out=piece)


def require_width(op: Operation, bits: int, allowed: Sequence[int] = WIDTHS) -> int:
    """`bits`. Raises: UnsupportedError for a width that is not in `allowed`."""
    if bits not in allowed:
        raise UnsupportedError(f"integers of {bits} bits", op=op.id, node=op.name, operand="bits")
    return bits


def require_block(op: Operation, block: int, *, least: int = 1) -> int:
    """`block`. Raises: KernelError unless it is a power of two from `least` on."""
    if block < least or block & (block - 1):
        fail(op, f"{block} is not a power of two from {least} on", "block_size")
    return block
