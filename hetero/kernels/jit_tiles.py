"""Tiles of a matrix product, held in registers while the depth goes by: LLVM's vectors, since no compiler makes these
of loops. Each element is one sum in the order of the depth, so its bits hang on no other row, column or thread."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.kernels.jit import native
from hetero.kernels.jit_lanes import LANES, Writer, rows_at
from hetero.kernels.processor import features
from hetero.types import Array

ROWS = 6
"""Of the tallest tile."""
WIDE_VECTORS, NARROW_VECTORS = 4, 1
"""Of sixteen lanes in a tile's row: six rows of four fill most of AVX-512's 32 registers, six of one AVX2's 16."""
_AHEAD = 4
"""Rows of a panel that are on their way from the second cache: 2 to 4 % faster."""


@cache
def machine_has(feature: str) -> bool:
    """Whether the machine that numba compiles for has it; LLVM's name, such as "avx512f"."""
    chosen = os.environ.get("NUMBA_CPU_FEATURES")
    if chosen is not None:
        return f"+{feature}" in chosen.split(",")
    known = features()
    if known:
        return feature in known
    return bool(importlib.import_module("llvmlite.binding").get_host_cpu_features().get(feature))


def vectors() -> int:
    """Vectors of sixteen lanes in a tile's row."""
    return WIDE_VECTORS if machine_has("avx512f") else NARROW_VECTORS


def columns() -> int:
    """Columns of a tile, and of a panel of a packed matrix."""
    return LANES * vectors()


def lined_up(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """An array of zeros that begins at a multiple of 64 bytes, as panels do."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def _tile_of(rows: int) -> Callable[..., Any]:
    @native(lambda numba: tile_intrinsic(numba, Tile, rows))
    def tile(
        a: int, a_step: int, panel: int, out: int, out_step: int, depth: int, adds: int, width: int
    ) -> Any:
        target = rows_at(out, out_step, rows, width)
        found = rows_at(a, a_step, rows, depth) @ rows_at(panel, 4 * columns(), depth, columns())[:, :width]
        target[:] = target + found if adds else found
        return 0

    return tile


tile_of_6, tile_of_4, tile_of_2, tile_of_1 = map(_tile_of, (6, 4, 2, 1))
"""(a, a_step, panel, out, out_step, depth, adds, width): out = a panel, or out += a panel where `adds`; so many rows of
`depth` float32 that lie `a_step` bytes apart, with the first `width` columns of a panel, which holds `columns()` for
each row; into rows `out_step` bytes apart. Addresses and int64, for jitted functions."""


class Tile:
    """Writes the code of a tile of float32; of other elements in subclasses."""

    def __init__(self, builder: Any, rows: int) -> None:
        self.write = write = Writer(builder)
        self.builder = builder
        self.rows = rows
        self.element = self.element_type()
        self.vector = write.ir.VectorType(self.element, LANES)
        self.sums = [
            [write.tools.alloca_once(builder, self.vector) for _ in range(vectors())] for _ in range(rows)
        ]

    def element_type(self) -> Any:
        """Of `a`, of a panel and of `out`: four bytes."""
        return self.write.single

    def begin(self, start: Any) -> list[Any]:
        """The first value of each vector of a row; `start` is the tile's seventh operand."""
        return [self.write.ir.Constant(self.vector, [0.0] * LANES)] * vectors()

    def multiplied(self, factor: Any, part: Any, total: Any) -> Any:
        """total + factor part, vector by vector."""
        return self.write.multiplied(factor, part, total)

    def left(self, value: Any, target: Any, at: Any, start: Any) -> Any:
        """What element `at` of the row at `target` becomes: `value`, or what is there already and `value`: memory that
        nobody has written yet is not read."""
        write, builder = self.write, self.builder
        slot = write.tools.alloca_once(builder, value.type)
        builder.store(value, slot)
        with builder.if_then(builder.icmp_signed("!=", start, write.number(0))):
            builder.store(builder.fadd(write.load(value.type, target, at), value), slot)
        return builder.load(slot)

    def emit(self, arguments: Any) -> Any:
        """The whole tile; `arguments` are those of `tile_of_6`."""
        write, builder = self.write, self.builder
        a, a_step, panel, out, out_step, depth, start, width = arguments
        first = self.begin(start)
        for sums in self.sums:
            for value, each in zip(first, sums, strict=True):
                builder.store(value, each)
        at = [builder.add(a, builder.mul(a_step, write.number(r))) for r in range(self.rows)]
        with write.loop(write.number(0), depth, 1) as (k, _):
            here = builder.mul(k, write.number(columns()))
            places = [builder.add(here, write.number(LANES * v)) for v in range(vectors())]
            for place in places:
                self._fetch(panel, builder.add(place, write.number(_AHEAD * columns())))
            row = [write.load(self.vector, panel, place) for place in places]
            for base, sums in zip(at, self.sums, strict=True):
                factor = write.spread(write.load(self.element, base, k))
                for part, each in zip(row, sums, strict=True):
                    builder.store(self.multiplied(factor, part, builder.load(each)), each)
        targets = [builder.add(out, builder.mul(out_step, write.number(r))) for r in range(self.rows)]
        whole = builder.icmp_signed("==", width, write.number(columns()))
        with builder.if_else(whole) as (all_of_them, some):
            with all_of_them:
                for target, sums in zip(targets, self.sums, strict=True):
                    for v, each in enumerate(sums):
                        place = write.number(LANES * v)
                        write.store(self.left(builder.load(each), target, place, start), target, place)
            with some:
                self._leave_some(targets, start, width)
        return write.number(0)

    def _leave_some(self, targets: list[Any], start: Any, width: Any) -> None:
        """Element by element, by way of memory."""
        write, builder = self.write, self.builder
        scratch = write.tools.alloca_once(builder, write.ir.ArrayType(self.element, columns()))
        address = builder.ptrtoint(scratch, write.word)
        for target, sums in zip(targets, self.sums, strict=True):
            for v, each in enumerate(sums):
                write.store(builder.load(each), address, write.number(LANES * v))
            with write.loop(write.number(0), width, 1) as (j, _):
                write.store(self.left(write.load(self.element, address, j), target, j, start), target, j)

    def _fetch(self, base: Any, i: Any) -> None:
        """Begin to read the vector at element `i`; what lies there, or whether anything does, is of no matter."""
        write = self.write
        byte, word = write.ir.IntType(8), write.ir.IntType(32)
        at = write.pointer(byte, base, i)
        type_ = write.ir.FunctionType(write.ir.VoidType(), [at.type, word, word, word])
        function = write.tools.get_or_insert_function(self.builder.module, type_, "llvm.prefetch.p0")
        read, every_cache, data = (write.ir.Constant(word, n) for n in (0, 3, 1))
        self.builder.call(function, [at, read, every_cache, data])


@cache
def tile_intrinsic(numba: Any, tile: type[Tile], rows: int) -> Any:
    """What numba compiles the calls of a tile to."""
    int64 = numba.types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return tile(builder, rows).emit(arguments)

    def typed(
        typing: Any,
        a: Any,
        a_step: Any,
        panel: Any,
        out: Any,
        out_step: Any,
        depth: Any,
        start: Any,
        width: Any,
    ) -> Any:
        return int64(*[int64] * 8), generate

    return importlib.import_module("numba.extending").intrinsic(typed)
