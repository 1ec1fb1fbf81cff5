"""Tapes: float32 elementwise operations written down once, to be run in one call that keeps what lies between two of
them in the first cache."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels import tape_layout as layout
from hetero.kernels.base import Call
from hetero.kernels.jit import PARALLEL_ELEMENTS
from hetero.kernels.jit_call import bound
from hetero.kernels.tape_loops import run_tape
from hetero.kernels.tape_shape import Shape, Walk, collapse
from hetero.types import Array

Words = np.ndarray[Any, np.dtype[np.int64]]
_ANY: Words = np.zeros(1, np.int64)
_MOST_PARTS, _PART_BLOCKS = 32, 8
"""Of a tape that runs on threads: how many parts at most, and how many blocks each has at least (the registers of a
part are memory too)."""
_HEAVY = frozenset(range(layout.EXP, layout.ADD))
_HEAVY_COST = 8
"""What a transcendental costs, in additions."""


def load_tapes() -> None:
    """Bring in the compiled code that runs tapes, where it can be used: seconds where nobody has compiled it yet."""
    run_tape.variant(_ANY)


@dataclass(frozen=True, slots=True, eq=False)
class Tape:
    """A tape without its addresses. `places`: for each input, then for each output, where its address belongs (nowhere
    for an input that is not read). `constants` are the immediates that the tape points to."""

    words: Words
    places: tuple[tuple[int, ...], ...]
    scratch_bytes: int
    function: Callable[[Words], None]
    constants: Array

    def bind(self, arrays: Sequence[Array], addresses: Sequence[int], scratch: Array | None) -> partial[None]:
        """A call over the inputs and the outputs: contiguous, aligned float32 of the shapes that the tape was written
        for, at these addresses.

        `scratch`: `scratch_bytes` bytes, aligned to float32, whose contents are lost.
        """
        call = bound(self.function, self.words_at(addresses, scratch))
        call.__dict__["operands"] = arrays, scratch, self.constants  # the words are only numbers
        return call

    def words_at(self, addresses: Sequence[int], scratch: Array | None) -> Words:
        """The tape with its addresses; as `bind`."""
        words = self.words.copy()
        for places, found in zip(self.places, addresses, strict=True):
            for place in places:
                words[place] = found
        if scratch is not None:
            words[layout.SCRATCH] = address(scratch)
        return words


class MovableCall:
    """A tape's call whose operands may move from one call to the next; `arrays` that are None do."""

    def __init__(self, tape: Tape, arrays: Sequence[Array | None], scratch: Array | None) -> None:
        self._arrays = list(arrays)
        self._places = tape.places
        addresses = [0 if a is None else address(a) for a in arrays]
        self._words = tape.words_at(addresses, scratch)
        self._kept = scratch, tape.constants  # the words are only numbers
        self.call: Call = bound(tape.function, self._words)

    def point(self, k: int, array: Array | None) -> None:
        """Operand `k` (inputs first, then outputs) is `array` from now on; None: nothing is held there any more."""
        self._arrays[k] = array
        if array is not None:
            found = address(array)
            for place in self._places[k]:
                self._words[place] = found


def address(array: Array) -> int:
    """Where the first element of a contiguous array lies, which is not empty."""
    if array.flags.writeable:  # a quarter of the time, which counts where operands move from run to run
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    found: int = array.__array_interface__["data"][0]
    return found


@dataclass(frozen=True, slots=True)
class _Step:
    code: int
    first: int
    second: int


class TapeWriter:
    """Writes a tape whose results all have the elements of `shape`. Values are numbers that `input`, `constant` and
    `emit` return."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.steps: list[_Step | None] = []
        """By value; None where it is an input or a constant."""
        self._inputs: dict[int, Shape] = {}
        self._constants: dict[int, np.float32] = {}

    def _value(self, step: _Step | None) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def input(self, shape: Shape) -> int:
        """The next input, which broadcasts to the result."""
        value = self._value(None)
        self._inputs[value] = shape
        return value

    def constant(self, number: Any) -> int:
        """The number, in float32."""
        value = self._value(None)
        self._constants[value] = np.float32(number)
        return value

    def emit(self, code: int, first: int, second: int | None = None) -> int:
        """One operation."""
        return self._value(_Step(code, first, first if second is None else second))

    def fits(self) -> bool:
        """Whether a tape can walk the operands' broadcasts."""
        return collapse(self.shape, list(self._inputs.values())) is not None

    def finish(self, outputs: Sequence[int], shared: Iterable[int] = ()) -> Tape | None:
        """The tape that writes the values `outputs`, which are results of operations. None where the operands'
        broadcasts are beyond it.

        `shared`: positions of outputs that lie in an input's memory (that of a full input, element for element).
        """
        found = collapse(self.shape, list(self._inputs.values()))
        if found is None or not math.prod(self.shape):
            return None
        rows, cols, walks = found
        return _Layout(self, rows, cols, dict(zip(self._inputs, walks, strict=True))).tape(
            outputs, frozenset(shared), self._constants
        )


class _Layout:
    """Gives every value of one tape its stream, and registers to those that need one."""

    def __init__(self, writer: TapeWriter, rows: int, cols: int, walks: dict[int, Walk]) -> None:
        self.writer = writer
        self.rows, self.cols = rows, cols
        across = -(-cols // layout.BLOCK)
        self.block_cols = cols if across == 1 else -(-cols // across // 16) * 16
        self.block_rows = min(rows, max(1, layout.BLOCK // cols))
        self.walks = walks
        self.register_bytes = (-(-4 * self.block_rows * self.block_cols // 64) + 1) * 64
        self.registers = 0
        self.free: list[int] = []
        self.fills: list[list[int]] = []
        self.streams: list[list[int]] = []
        self.ops: list[tuple[int, int, int, int]] = []
        self.place: dict[int, int] = {}
        """Value -> its stream."""
        self.addresses: dict[int, list[tuple[str, int]]] = {}
        """Value -> the fill or stream that wants its address."""

    def _stream(self, kind: int, base: int = 0, div: int = 1, mod: int = 1, row_bytes: int = 0) -> int:
        self.streams.append([kind, base, div, mod, row_bytes])
        return len(self.streams) - 1

    def _register(self) -> int:
        """A stream over a free register."""
        if self.free:
            return self.free.pop()
        self.registers += 1
        return self._stream(layout.REGISTER, (self.registers - 1) * self.register_bytes)

    def _wants(self, value: int, table: str, number: int) -> None:
        self.addresses.setdefault(value, []).append((table, number))

    def _input(self, value: int, walk: Walk) -> None:
        row_bytes = 4 * self.cols if walk.wide else 4
        single = walk.mod == 1 and not walk.wide
        if walk.full:
            stream = self._stream(layout.FULL)
        elif single or self.block_rows == 1:
            stream = self._stream(layout.ROW if walk.wide else layout.CELL, 0, walk.div, walk.mod, row_bytes)
        else:
            stream = self._register()
            self.fills.append([0, walk.div, walk.mod, row_bytes, 4 * walk.wide, self.streams[stream][1]])
            self._wants(value, "fill", len(self.fills) - 1)
            self.place[value] = stream
            return
        self._wants(value, "stream", stream)
        self.place[value] = stream

    def _is_cell(self, stream: int) -> bool:
        return self.streams[stream][0] == layout.CELL

    def tape(self, outputs: Sequence[int], shared: frozenset[int], constants: dict[int, np.float32]) -> Tape:
        steps = self.writer.steps
        for value, walk in self.walks.items():
            self._input(value, walk)
        pool = np.array(list(constants.values()), np.float32)
        for k, value in enumerate(constants):
            self.place[value] = self._stream(layout.CELL, address(pool) + 4 * k)
        last: dict[int, int] = {}
        for value, step in enumerate(steps):
            if step is not None:
                last[step.first] = last[step.second] = value
        targets = {value: self._stream(layout.FULL) for value in outputs}
        held = {outputs[k] for k in shared}
        for value, step in enumerate(steps):
            if step is not None:
                self._step(value, step, None if value in held else targets.get(value))
                for operand in {step.first, step.second}:
                    if steps[operand] is not None and last[operand] == value and operand not in held:
                        self._let_go(operand, targets)
        # Only now is everything read that lies where these go.
        self.ops += [(layout.COPY, self.place[v], self.place[v], targets[v]) for v in outputs if v in held]
        return self._assemble(outputs, targets, pool)

    def _step(self, value: int, step: _Step, target: int | None) -> None:
        code, a, b = step.code, self.place[step.first], self.place[step.second]
        splat = None
        if self._is_cell(a) and (code < layout.ADD or self._is_cell(b)):
            splat = self._register()
            self.ops.append((layout.SPLAT, a, a, splat))
            b = splat if code < layout.ADD else b
            a = splat
        if code >= layout.ADD:
            code += 1 if self._is_cell(b) else 2 if self._is_cell(a) else 0
        # Never a register that is read here: compiled loops are vectorised only where input and output lie apart.
        stream = self._register() if target is None else target
        self.ops.append((code, a, b, stream))
        self.place[value] = stream
        if splat is not None:
            self.free.append(splat)

    def _let_go(self, value: int, targets: dict[int, int]) -> None:
        if value not in targets:
            self.free.append(self.place[value])

    def _assemble(self, outputs: Sequence[int], targets: dict[int, int], pool: Array) -> Tape:
        n = self.rows * self.cols
        cost = n * sum(_HEAVY_COST if code in _HEAVY else 1 for code, *_ in self.ops)
        blocks = -(-self.rows // self.block_rows) * -(-self.cols // self.block_cols)
        parts = min(_MOST_PARTS, blocks // _PART_BLOCKS)
        parallel = cost >= 2 * PARALLEL_ELEMENTS and parts > 1
        parts = parts if parallel else 1
        part_bytes = self.registers * self.register_bytes
        words = [self.rows, self.cols, self.block_rows, self.block_cols, parts, 0, part_bytes,
                 len(self.fills), len(self.ops), len(self.streams)]  # fmt: skip
        starts = {"fill": layout.HEADER}
        starts["stream"] = layout.HEADER + layout.FILL * len(self.fills) + layout.OP * len(self.ops)
        for table in (self.fills, self.ops, self.streams):
            for row in table:
                words.extend(row)

        def places(value: int) -> tuple[int, ...]:
            wants = self.addresses.get(value, ())
            return tuple(
                starts[t] + k * (layout.FILL if t == "fill" else layout.STREAM) + (t == "stream")
                for t, k in wants
            )

        return Tape(
            np.array(words, np.int64),
            (
                *(places(v) for v in self.walks),
                *((starts["stream"] + layout.STREAM * targets[v] + 1,) for v in outputs),
            ),
            parts * part_bytes,
            run_tape.variant(_ANY, parallel=parallel),
            pool,
        )
