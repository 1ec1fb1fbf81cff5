"""Tiles of a product of bytes: four at a time for each lane, added up in int32 that wraps. Integers, so the same on
every machine; one instruction of the processor does sixty-four of them where it has AVX-512's VNNI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.kernels.jit import floats_at, native
from hetero.kernels.jit_lanes import LANES, rows_at
from hetero.kernels.jit_tiles import Tile, columns, machine_has, tile_intrinsic, vectors

QUAD = 4
"""Bytes of one row of the depth that lie together: a lane's share."""


def fast_bytes() -> bool:
    """Whether this machine multiplies bytes faster than float32."""
    return machine_has("avx512vnni")


def byte_tile(
    rows: int, a: int, a_step: int, panel: int, out: int, out_step: int, depth: int, start: int, width: int
) -> None:
    """What the tiles do, by whole arrays."""
    c = columns()
    left = rows_at(a, a_step, rows, depth).copy().view(np.uint8).astype(np.int64)
    right = rows_at(panel, 4 * c, depth, c).copy().view(np.int8).reshape(depth, c, QUAD).astype(np.int64)
    found = left @ right.transpose(0, 2, 1).reshape(depth * QUAD, c) + floats_at(start, c).view(np.int32)
    rows_at(out, out_step, rows, width).view(np.int32)[:] = found[:, :width].astype(np.int32)


def _byte_tile_of(rows: int) -> Callable[..., Any]:
    @native(lambda numba: tile_intrinsic(numba, _ByteTile, rows))
    def tile(
        a: int, a_step: int, panel: int, out: int, out_step: int, depth: int, start: int, width: int
    ) -> Any:
        byte_tile(rows, a, a_step, panel, out, out_step, depth, start, width)
        return 0

    return tile


byte_tile_of_6, byte_tile_of_4, byte_tile_of_2, byte_tile_of_1 = map(_byte_tile_of, (6, 4, 2, 1))
"""(a, a_step, panel, out, out_step, depth, start, width): out = start + a panel; so many rows of `depth` times four
uint8 that lie `a_step` bytes apart, with the first `width` columns of a panel of int8, which holds four bytes of each
of its `columns()` in turn; `start` has an int32 for each column; into rows of int32 `out_step` bytes apart."""


class _ByteTile(Tile):
    """A tile whose elements are four bytes each."""

    def element_type(self) -> Any:
        return self.write.ir.IntType(32)

    def begin(self, start: Any) -> list[Any]:
        write = self.write
        return [write.load(self.vector, start, write.number(LANES * v)) for v in range(vectors())]

    def multiplied(self, factor: Any, part: Any, total: Any) -> Any:
        ir, builder = self.write.ir, self.builder
        if fast_bytes():
            type_ = ir.FunctionType(self.vector, [self.vector] * 3)
            name = "llvm.x86.avx512.vpdpbusd.512"
            function = self.write.tools.get_or_insert_function(builder.module, type_, name)
            return builder.call(function, [total, factor, part])

        def number(value: int) -> Any:
            return ir.Constant(self.vector, [value] * LANES)

        for byte in range(QUAD):
            unsigned = builder.and_(builder.lshr(factor, number(8 * byte)), number(255))
            signed = builder.ashr(builder.shl(part, number(24 - 8 * byte)), number(24))
            total = builder.add(total, builder.mul(unsigned, signed))
        return total

    def left(self, value: Any, target: Any, at: Any, start: Any) -> Any:
        return value
