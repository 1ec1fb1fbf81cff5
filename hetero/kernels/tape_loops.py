"""The tape interpreter: compiled once, it runs any short program of float32 elementwise operations block by block."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.kernels.elementary import (
    erf_exact,
    exp_exact,
    expm1_exact,
    gelu_exact,
    gelu_tanh_exact,
    log1p_exact,
    sigmoid_exact,
    tanh_exact,
)
from hetero.kernels.jit import floats_at, inline, jit, prange
from hetero.kernels.tape_layout import (
    ABS,
    ADD,
    BLOCK_COLS,
    BLOCK_ROWS,
    COLS,
    COPY,
    DIV,
    ERF,
    EXP,
    EXPM1,
    FILL,
    FILLS,
    FULL,
    GELU,
    GELU_TANH,
    HEADER,
    LOG1P,
    MAX,
    MIN,
    MUL,
    NEG,
    OP,
    OPS,
    PART_BYTES,
    PARTS,
    RECIPROCAL,
    REGISTER,
    ROW,
    ROWS,
    SCRATCH,
    SIGMOID,
    SPLAT,
    SQRT,
    STREAM,
    SUB,
    TANH,
)
from hetero.kernels.tape_twin import tape_twin

_ONE = np.float32(1)


@inline
def _address(tape: Any, streams: int, stream: int, scratch: int, row: int, col: int) -> Any:
    at = streams + STREAM * stream
    kind, base = tape[at], tape[at + 1]
    if kind == REGISTER:
        return scratch + base
    if kind == FULL:
        return base + 4 * (row * tape[COLS] + col)
    base += (row // tape[at + 2]) % tape[at + 3] * tape[at + 4]
    if kind == ROW:
        return base + 4 * col
    return base


@inline
def _fill(tape: Any, fill: int, scratch: int, row: int, rows: int) -> None:
    """Repeat a table's rows or cells into a register, for `rows` rows from `row` on."""
    cols = tape[COLS]
    base, div, mod, row_bytes, col_bytes = (
        tape[fill],
        tape[fill + 1],
        tape[fill + 2],
        tape[fill + 3],
        tape[fill + 4],
    )
    for r in range(rows):
        source = base + ((row + r) // div) % mod * row_bytes
        target = floats_at(scratch + tape[fill + 5] + 4 * r * cols, cols)
        if col_bytes == 0:
            value = floats_at(source, 1)[0]
            for j in range(cols):
                target[j] = value
        else:
            values = floats_at(source, cols)
            for j in range(cols):
                target[j] = values[j]


@inline
def _block(tape: Any, scratch: int, row: int, col: int, n: int) -> None:
    """Every operation, over the `n` elements from (row, col) on."""
    ops = HEADER + FILL * tape[FILLS]
    streams = ops + OP * tape[OPS]
    for k in range(tape[OPS]):
        op = ops + OP * k
        code = tape[op]
        first = _address(tape, streams, tape[op + 1], scratch, row, col)
        second = _address(tape, streams, tape[op + 2], scratch, row, col)
        a, b = floats_at(first, n), floats_at(second, n)
        out = floats_at(_address(tape, streams, tape[op + 3], scratch, row, col), n)
        if code == ADD:
            for j in range(n):
                out[j] = a[j] + b[j]
        elif code == ADD + 1:
            s = b[0]
            for j in range(n):
                out[j] = a[j] + s
        elif code == ADD + 2:
            s = a[0]
            for j in range(n):
                out[j] = s + b[j]
        elif code == MUL:
            for j in range(n):
                out[j] = a[j] * b[j]
        elif code == MUL + 1:
            s = b[0]
            for j in range(n):
                out[j] = a[j] * s
        elif code == MUL + 2:
            s = a[0]
            for j in range(n):
                out[j] = s * b[j]
        elif code == SUB:
            for j in range(n):
                out[j] = a[j] - b[j]
        elif code == SUB + 1:
            s = b[0]
            for j in range(n):
                out[j] = a[j] - s
        elif code == SUB + 2:
            s = a[0]
            for j in range(n):
                out[j] = s - b[j]
        elif code == DIV:
            for j in range(n):
                out[j] = a[j] / b[j]
        elif code == DIV + 1:
            s = b[0]
            for j in range(n):
                out[j] = a[j] / s
        elif code == DIV + 2:
            s = a[0]
            for j in range(n):
                out[j] = s / b[j]
        elif code == MAX:  # NumPy's order: of equal ones the second, of a NaN and a number the NaN
            for j in range(n):
                out[j] = a[j] if a[j] > b[j] or a[j] != a[j] else b[j]
        elif code == MAX + 1:
            s = b[0]
            for j in range(n):
                out[j] = a[j] if a[j] > s or a[j] != a[j] else s
        elif code == MAX + 2:
            s = a[0]
            for j in range(n):
                out[j] = s if s > b[j] or s != s else b[j]
        elif code == MIN:
            for j in range(n):
                out[j] = a[j] if a[j] < b[j] or a[j] != a[j] else b[j]
        elif code == MIN + 1:
            s = b[0]
            for j in range(n):
                out[j] = a[j] if a[j] < s or a[j] != a[j] else s
        elif code == MIN + 2:
            s = a[0]
            for j in range(n):
                out[j] = s if s < b[j] or s != s else b[j]
        elif code == COPY:
            for j in range(n):
                out[j] = a[j]
        elif code == SPLAT:
            s = a[0]
            for j in range(n):
                out[j] = s
        elif code == NEG:
            for j in range(n):
                out[j] = -a[j]
        elif code == ABS:
            for j in range(n):
                out[j] = abs(a[j])
        elif code == SQRT:
            for j in range(n):
                out[j] = np.sqrt(a[j])
        elif code == RECIPROCAL:
            for j in range(n):
                out[j] = _ONE / a[j]
        elif code == EXP:
            for j in range(n):
                out[j] = exp_exact(a[j])
        elif code == EXPM1:
            for j in range(n):
                out[j] = expm1_exact(a[j])
        elif code == SIGMOID:
            for j in range(n):
                out[j] = sigmoid_exact(a[j])
        elif code == TANH:
            for j in range(n):
                out[j] = tanh_exact(a[j])
        elif code == ERF:
            for j in range(n):
                out[j] = erf_exact(a[j])
        elif code == LOG1P:
            for j in range(n):
                out[j] = log1p_exact(a[j])
        elif code == GELU:
            for j in range(n):
                out[j] = gelu_exact(a[j])
        elif code == GELU_TANH:
            for j in range(n):
                out[j] = gelu_tanh_exact(a[j])


@inline
def _stretch(tape: Any, part: int) -> None:
    """The blocks of one part, in order."""
    rows, cols, block_rows, block_cols = tape[ROWS], tape[COLS], tape[BLOCK_ROWS], tape[BLOCK_COLS]
    across = (cols + block_cols - 1) // block_cols
    blocks = (rows + block_rows - 1) // block_rows * across
    scratch = tape[SCRATCH] + part * tape[PART_BYTES]
    first, last = part * blocks // tape[PARTS], (part + 1) * blocks // tape[PARTS]
    for block in range(first, last):
        row, col = block // across * block_rows, block % across * block_cols
        height = min(block_rows, rows - row)
        for k in range(tape[FILLS]):
            fill = HEADER + FILL * k
            if block == first or tape[fill + 2] != 1:  # the same in every block, where there is one row
                _fill(tape, fill, scratch, row, height)
        _block(tape, scratch, row, col, height * min(block_cols, cols - col))


@jit("i8[1]", twin=tape_twin, exact=True)
def run_tape(tape: Any) -> None:
    for part in prange(tape[PARTS]):
        _stretch(tape, part)
