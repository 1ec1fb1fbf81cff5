"""Tiles of a matrix product, held in registers while the depth goes by: LLVM's vectors, since no compiler makes these
of loops. Each element is one sum in the order of the depth, so its bits hang on no other row, column or thread."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

from hetero.kernels.jit import native
from hetero.kernels.jit_lanes import LANES, Writer, rows_at

ROWS = 6
"""Of the tallest tile."""
WIDE_VECTORS, NARROW_VECTORS = 4, 1
"""Of sixteen lanes in a tile's row: six rows of four fill most of AVX-512's 32 registers, six of one AVX2's 16."""
_AHEAD = 4
"""Rows of a panel that are on their way from the second cache: 2 to 4 % faster."""


@cache
def vectors() -> int:
    """Vectors of sixteen lanes in a tile's row, for the machine that numba compiles for."""
    config = importlib.import_module("numba.core.config")
    features = getattr(config, "CPU_FEATURES", None)
    if features is None:
        found = importlib.import_module("llvmlite.binding").get_host_cpu_features()
        return WIDE_VECTORS if found.get("avx512f") else NARROW_VECTORS
    return WIDE_VECTORS if "+avx512f" in features.split(",") else NARROW_VECTORS


def columns() -> int:
    """Columns of a tile, and of a panel of a packed matrix."""
    return LANES * vectors()


def _compiled(rows: int) -> Callable[[Any], Any]:
    return lambda numba: _intrinsic(numba, rows)


def _tile(rows: int, words: tuple[int, ...]) -> Any:
    a, a_step, panel, out, out_step, depth, adds, width = words
    target = rows_at(out, out_step, rows, width)
    found = rows_at(a, a_step, rows, depth) @ rows_at(panel, 4 * columns(), depth, columns())[:, :width]
    target[:] = target + found if adds else found
    return 0


@native(_compiled(6))
def tile_of_6(
    a: int, a_step: int, panel: int, out: int, out_step: int, depth: int, adds: int, width: int
) -> Any:
    """out = a panel (out += a panel, where `adds`): six rows of `depth` float32 that lie `a_step` bytes apart, with
    the first `width` columns of a panel, which holds `columns()` for each row; into rows `out_step` bytes apart."""
    return _tile(6, (a, a_step, panel, out, out_step, depth, adds, width))


@native(_compiled(4))
def tile_of_4(
    a: int, a_step: int, panel: int, out: int, out_step: int, depth: int, adds: int, width: int
) -> Any:
    """As `tile_of_6`, four rows."""
    return _tile(4, (a, a_step, panel, out, out_step, depth, adds, width))


@native(_compiled(2))
def tile_of_2(
    a: int, a_step: int, panel: int, out: int, out_step: int, depth: int, adds: int, width: int
) -> Any:
    """As `tile_of_6`, two rows."""
    return _tile(2, (a, a_step, panel, out, out_step, depth, adds, width))


@native(_compiled(1))
def tile_of_1(
    a: int, a_step: int, panel: int, out: int, out_step: int, depth: int, adds: int, width: int
) -> Any:
    """As `tile_of_6`, one row."""
    return _tile(1, (a, a_step, panel, out, out_step, depth, adds, width))


class _Tile:
    """Writes one tile's code."""

    def __init__(self, builder: Any, rows: int) -> None:
        self.write = Writer(builder)
        self.rows = rows
        self.sums = [
            [self.write.variable(self.write.vector, 0.0) for _ in range(vectors())] for _ in range(rows)
        ]

    def emit(self, arguments: Any) -> Any:
        write, builder, tools = self.write, self.write.builder, self.write.tools
        a, a_step, panel, out, out_step, depth, adds, width = arguments
        for sums in self.sums:  # a loop around this one comes here again
            for each in sums:
                builder.store(write.ir.Constant(write.vector, [0.0] * LANES), each)
        at = [builder.add(a, builder.mul(a_step, write.number(r))) for r in range(self.rows)]
        with write.loop(write.number(0), depth, 1) as (k, _):
            first = builder.mul(k, write.number(columns()))
            for v in range(vectors()):
                self._fetch(panel, builder.add(first, write.number(LANES * v + _AHEAD * columns())))
            row = [
                write.load(write.vector, panel, builder.add(first, write.number(LANES * v)))
                for v in range(vectors())
            ]
            for base, sums in zip(at, self.sums, strict=True):
                factor = write.spread(write.load(write.single, base, k))
                for part, each in zip(row, sums, strict=True):
                    builder.store(write.multiplied(factor, part, builder.load(each)), each)
        targets = [builder.add(out, builder.mul(out_step, write.number(r))) for r in range(self.rows)]
        whole = builder.icmp_signed("==", width, write.number(columns()))
        with builder.if_else(whole) as (all_of_them, some):
            with all_of_them:
                self._leave(targets, adds)
            with some:
                scratch = tools.alloca_once(builder, write.ir.ArrayType(write.single, columns()))
                address = builder.ptrtoint(scratch, write.word)
                for target, sums in zip(targets, self.sums, strict=True):
                    for v, each in enumerate(sums):
                        write.store(builder.load(each), address, write.number(LANES * v))
                    with write.loop(write.number(0), width, 1) as (j, _):
                        value = write.load(write.single, address, j)
                        write.store(self._added(value, target, j, adds), target, j)
        return write.number(0)

    def _fetch(self, base: Any, i: Any) -> None:
        """Begin to read the vector at element `i`; what lies there, or whether anything does, is of no matter."""
        write, builder = self.write, self.write.builder
        byte, word = write.ir.IntType(8), write.ir.IntType(32)
        at = write.pointer(byte, base, i)
        type_ = write.ir.FunctionType(write.ir.VoidType(), [at.type, word, word, word])
        function = write.tools.get_or_insert_function(builder.module, type_, "llvm.prefetch.p0")
        builder.call(
            function, [at, *(write.ir.Constant(word, n) for n in (0, 3, 1))]
        )  # read, all caches, data

    def _leave(self, targets: list[Any], adds: Any) -> None:
        write = self.write
        for target, sums in zip(targets, self.sums, strict=True):
            for v, each in enumerate(sums):
                at = write.number(LANES * v)
                write.store(self._added(write.builder.load(each), target, at, adds), target, at)

    def _added(self, value: Any, target: Any, at: Any, adds: Any) -> Any:
        """`value`, or what is there already and `value`: memory that nobody has written yet is not read."""
        write, builder = self.write, self.write.builder
        slot = write.tools.alloca_once(builder, value.type)
        builder.store(value, slot)
        with builder.if_then(builder.icmp_signed("!=", adds, write.number(0))):
            builder.store(builder.fadd(write.load(value.type, target, at), value), slot)
        return builder.load(slot)


@cache
def _intrinsic(numba: Any, rows: int) -> Any:
    """What numba compiles the calls of a tile to."""
    int64 = numba.types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _Tile(builder, rows).emit(arguments)

    def tile(
        typing: Any,
        a: Any,
        a_step: Any,
        panel: Any,
        out: Any,
        out_step: Any,
        depth: Any,
        adds: Any,
        width: Any,
    ) -> Any:
        return int64(*[int64] * 8), generate

    return importlib.import_module("numba.extending").intrinsic(tile)
