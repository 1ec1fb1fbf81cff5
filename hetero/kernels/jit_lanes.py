"""Sums and products over float32 rows in sixteen lanes: LLVM's vectors, which numba's own loops do not become since
their sums keep one order. The lanes fix another order, the same at every address and for every number of threads."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from hetero.kernels.jit import floats_at, native
from hetero.types import Array

LANES = 16


def _compiled(name: str) -> Callable[[Any], Any]:
    return lambda numba: _intrinsics(numba)[name]


def rows_at(address: int, step: int, count: int, n: int) -> Array:
    """`count` rows of `n` float32 that lie `step` bytes apart, as an array over that memory; for twins."""
    if not count or not n:
        return np.empty((count, n), np.float32)
    flat = floats_at(address, (count - 1) * step // 4 + n)
    return np.lib.stride_tricks.as_strided(flat, (count, n), (step, 4))


@native(_compiled("sum"))
def sum_at(address: int, n: int) -> Any:
    """Σ a[i] of `n` float32 at an address."""
    return floats_at(address, n).sum(dtype=np.float32)


@native(_compiled("squares"))
def squares_at(address: int, n: int) -> Any:
    """Σ a[i]² of `n` float32 at an address."""
    return np.square(floats_at(address, n)).sum(dtype=np.float32)


@native(_compiled("max"))
def max_at(address: int, n: int) -> Any:
    """The maximum of `n` float32 at an address; -inf of none. Elements that are NaN do not count."""
    return np.fmax.reduce(floats_at(address, n), initial=np.float32(-np.inf))


@native(_compiled("dots"))
def dots_at(row: int, rows: int, step: int, out: int, n: int, count: int) -> Any:
    """out[t] = Σ row[i] rows[t][i]: `n` float32 at `row` with each of `count` rows that lie `step` bytes apart."""
    floats_at(out, count)[:] = rows_at(rows, step, count, n) @ floats_at(row, n)
    return 0


@native(_compiled("weighted"))
def add_weighted_at(weights: int, rows: int, step: int, sums: int, n: int, count: int) -> Any:
    """sums[i] += Σ weights[t] rows[t][i]: `count` rows of `n` float32 that lie `step` bytes apart."""
    floats_at(sums, n)[:] += floats_at(weights, count) @ rows_at(rows, step, count, n)
    return 0


@native(_compiled("turn"))
def turn_at(source: int, step: int, target: int, target_step: int) -> Any:
    """Eight rows of eight float32, `step` bytes apart, as the columns of rows `target_step` bytes apart."""
    rows_at(target, target_step, 8, 8)[:] = rows_at(source, step, 8, 8).T
    return 0


class Writer:
    """Writes loops over vectors of float32 as LLVM's intermediate code, through one builder."""

    def __init__(self, builder: Any) -> None:
        self.ir: Any = importlib.import_module("llvmlite.ir")
        self.tools: Any = importlib.import_module("numba.core.cgutils")
        self.builder = builder
        self.word = self.ir.IntType(64)
        self.single = self.ir.FloatType()
        self.vector = self.ir.VectorType(self.single, LANES)

    def number(self, value: int) -> Any:
        """An int64."""
        return self.ir.Constant(self.word, value)

    def loop(self, start: Any, stop: Any, step: int) -> Any:
        """A with statement's loop; it gives (index, number of rounds)."""
        return self.tools.for_range_slice(self.builder, start, stop, self.number(step), self.word, inc=True)

    def variable(self, type_: Any, start: float) -> Any:
        """Memory for one value, which becomes a register."""
        filled = [start] * LANES if type_ is self.vector else start
        value = self.ir.Constant(type_, filled)
        slot = self.tools.alloca_once(self.builder, type_)
        self.builder.store(value, slot)
        return slot

    def pointer(self, type_: Any, base: Any, i: Any) -> Any:
        """To element `i` of the float32 at `base`."""
        at = self.builder.add(base, self.builder.shl(i, self.number(2)))
        return self.builder.inttoptr(at, type_.as_pointer())

    def load(self, type_: Any, base: Any, i: Any) -> Any:
        """Elements from `i` on of the float32 at `base`."""
        return self.builder.load(self.pointer(type_, base, i), align=4)

    def store(self, value: Any, base: Any, i: Any) -> None:
        """As `load`."""
        self.builder.store(value, self.pointer(value.type, base, i), align=4)

    def whole(self, n: Any, lanes: int = LANES) -> Any:
        """`n` down to a multiple of `lanes`."""
        return self.builder.and_(n, self.number(-lanes))

    def multiplied(self, a: Any, b: Any, added: Any) -> Any:
        """a b + added, in one rounding where the machine has an instruction for that."""
        name = f"llvm.fmuladd.v{LANES}f32" if a.type == self.vector else "llvm.fmuladd.f32"
        type_ = self.ir.FunctionType(a.type, [a.type] * 3)
        function = self.tools.get_or_insert_function(self.builder.module, type_, name)
        return self.builder.call(function, [a, b, added])

    def shuffled(self, a: Any, b: Any, order: list[int]) -> Any:
        """Elements of `a`, then of `b`, by number."""
        mask = self.ir.Constant(self.ir.VectorType(self.ir.IntType(32), len(order)), order)
        return self.builder.shuffle_vector(a, b, mask)

    def halves(self, a: Any, join: Callable[[Any, Any], Any]) -> Any:
        """The first half joined with the second."""
        n = a.type.count // 2
        return join(self.shuffled(a, a, list(range(n))), self.shuffled(a, a, list(range(n, 2 * n))))

    def spread(self, value: Any) -> Any:
        """One value in all lanes."""
        vector = self.ir.VectorType(value.type, LANES)
        first = self.builder.insert_element(
            self.ir.Constant(vector, self.ir.Undefined), value, self.ir.Constant(self.ir.IntType(32), 0)
        )
        return self.shuffled(first, first, [0] * LANES)

    def joined(self, address: Any, n: Any, start: float, take: Callable[[Any, Any], Any], join: Any) -> Any:
        """One value of `n` elements: `take(lanes, elements)` for each vector of them, the lanes halved with `join`,
        then `take` for each element that is left over."""
        lanes = self.variable(self.vector, start)
        whole = self.whole(n)
        with self.loop(self.number(0), whole, LANES) as (i, _):
            self.builder.store(take(self.builder.load(lanes), self.load(self.vector, address, i)), lanes)
        found = self.builder.load(lanes)
        while found.type.count > 1:
            found = self.halves(found, join)
        total = self.variable(self.single, start)
        self.builder.store(
            self.builder.extract_element(found, self.ir.Constant(self.ir.IntType(32), 0)), total
        )
        with self.loop(whole, n, 1) as (i, _):
            self.builder.store(take(self.builder.load(total), self.load(self.single, address, i)), total)
        return self.builder.load(total)

    def greater(self, a: Any, b: Any) -> Any:
        """b where it is greater (so never where it is NaN), else a."""
        return self.builder.select(self.builder.fcmp_ordered(">", b, a), b, a)

    def dots(self, row: Any, rows: Any, step: Any, out: Any, n: Any, count: Any) -> Any:
        """Four products at a time, then one at a time, each added up in the same order."""
        fours = self.whole(count, 4)
        with self.loop(self.number(0), fours, 4) as (t, _):
            self._dots(4, t, row, rows, step, out, n)
        with self.loop(fours, count, 1) as (t, _):
            self._dots(1, t, row, rows, step, out, n)
        return self.number(0)

    def _dots(self, many: int, t: Any, row: Any, rows: Any, step: Any, out: Any, n: Any) -> None:
        builder, plus = self.builder, self.builder.fadd
        at = [builder.add(rows, builder.mul(builder.add(t, self.number(k)), step)) for k in range(many)]
        lanes = [self.variable(self.vector, 0.0) for _ in at]
        whole = self.whole(n)
        with self.loop(self.number(0), whole, LANES) as (i, _):
            q = self.load(self.vector, row, i)
            for base, sums in zip(at, lanes, strict=True):
                builder.store(self.multiplied(q, self.load(self.vector, base, i), builder.load(sums)), sums)
        found = [builder.load(sums) for sums in lanes]
        while found[0].type.count > 4:
            found = [self.halves(f, plus) for f in found]
        if many == 1:
            found += [found[0]] * 3
        pairs = [
            plus(self.shuffled(a, b, [0, 1, 4, 5]), self.shuffled(a, b, [2, 3, 6, 7]))
            for a, b in (found[:2], found[2:])
        ]
        sums = plus(
            self.shuffled(pairs[0], pairs[1], [0, 2, 4, 6]), self.shuffled(pairs[0], pairs[1], [1, 3, 5, 7])
        )
        for k, base in enumerate(at):
            total = self.variable(self.single, 0.0)
            builder.store(builder.extract_element(sums, self.ir.Constant(self.ir.IntType(32), k)), total)
            with self.loop(whole, n, 1) as (i, _):
                product = self.multiplied(
                    self.load(self.single, row, i), self.load(self.single, base, i), builder.load(total)
                )
                builder.store(product, total)
            self.store(builder.load(total), out, builder.add(t, self.number(k)))

    def weighted(self, weights: Any, rows: Any, step: Any, sums: Any, n: Any, count: Any) -> Any:
        """Columns by four vectors, then by one, then one by one; each is added up row after row."""
        start = self.number(0)
        for type_, many in ((self.vector, 4), (self.vector, 1), (self.single, 1)):
            width = many * (LANES if type_ is self.vector else 1)
            stop = self.whole(n, width)
            with self.loop(start, stop, width) as (j, _):
                self._columns(type_, many, j, weights, rows, step, sums, count)
            start = stop
        return self.number(0)

    def _columns(
        self, type_: Any, many: int, j: Any, weights: Any, rows: Any, step: Any, sums: Any, count: Any
    ) -> None:
        builder = self.builder
        columns = [builder.add(j, self.number(LANES * k)) for k in range(many)]
        totals = [self.variable(type_, 0.0) for _ in columns]
        with self.loop(self.number(0), count, 1) as (t, _):
            weight = self.load(self.single, weights, t)
            if type_ is self.vector:
                weight = self.spread(weight)
            base = builder.add(rows, builder.mul(t, step))
            for column, total in zip(columns, totals, strict=True):
                value = self.load(type_, base, column)
                builder.store(self.multiplied(weight, value, builder.load(total)), total)
        for column, total in zip(columns, totals, strict=True):
            self.store(builder.fadd(self.load(type_, sums, column), builder.load(total)), sums, column)

    def turn(self, source: Any, step: Any, target: Any, target_step: Any) -> Any:
        """Neighbours change places, then pairs, then fours: each a shuffle of two vectors."""
        builder = self.builder
        eight = self.ir.VectorType(self.single, 8)
        at = [builder.add(source, builder.mul(step, self.number(r))) for r in range(8)]
        rows = [self.load(eight, each, self.number(0)) for each in at]
        for size in (1, 2, 4):
            low = [
                i for k in range(0, 8, 2 * size) for i in (*range(k, k + size), *range(8 + k, 8 + k + size))
            ]
            high = [i + size for i in low]
            turned = list(rows)
            for r in (r for r in range(8) if not r & size):
                turned[r] = self.shuffled(rows[r], rows[r + size], low)
                turned[r + size] = self.shuffled(rows[r], rows[r + size], high)
            rows = turned
        for r, row in enumerate(rows):
            self.store(row, builder.add(target, builder.mul(target_step, self.number(r))), self.number(0))
        return self.number(0)


def _sum(write: Writer, address: Any, n: Any) -> Any:
    plus = write.builder.fadd
    return write.joined(address, n, 0.0, plus, plus)


def _squares(write: Writer, address: Any, n: Any) -> Any:
    return write.joined(address, n, 0.0, lambda total, x: write.multiplied(x, x, total), write.builder.fadd)


def _max(write: Writer, address: Any, n: Any) -> Any:
    return write.joined(address, n, float("-inf"), write.greater, write.greater)


@cache
def _intrinsics(numba: Any) -> dict[str, Any]:
    """By name, what numba compiles calls of the functions above to."""
    intrinsic: Any = importlib.import_module("numba.extending").intrinsic
    types = numba.types

    def made(write: Callable[..., Any], result: Any, operands: int) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return write(Writer(builder), *arguments)

        if operands == 2:

            def two(typing: Any, address: Any, n: Any) -> Any:
                return result(types.int64, types.int64), generate

            return intrinsic(two)

        if operands == 4:

            def four(typing: Any, first: Any, second: Any, third: Any, fourth: Any) -> Any:
                return result(*[types.int64] * 4), generate

            return intrinsic(four)

        def six(typing: Any, first: Any, second: Any, step: Any, third: Any, n: Any, count: Any) -> Any:
            return result(*[types.int64] * 6), generate

        return intrinsic(six)

    return {
        "sum": made(_sum, types.float32, 2),
        "squares": made(_squares, types.float32, 2),
        "max": made(_max, types.float32, 2),
        "dots": made(Writer.dots, types.int64, 6),
        "turn": made(Writer.turn, types.int64, 4),
        "weighted": made(Writer.weighted, types.int64, 6),
    }
