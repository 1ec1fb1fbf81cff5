"""What a tape is: an int64 array that spells a short program of float32 elementwise operations over addresses."""

from __future__ import annotations

BLOCK = 1024
"""Elements that a register holds. Eight registers are then as large as a core's first cache."""

ROWS, COLS = 0, 1
"""Places in the header: every result is that many rows of that many elements, contiguous."""
BLOCK_ROWS, BLOCK_COLS = 2, 3
"""What one block covers: several whole rows, or a part of one."""
PARTS = 4
"""Stretches of blocks that may run at the same time, each with its own registers."""
SCRATCH, PART_BYTES = 5, 6
"""Where the registers are, and how many bytes of them a part has."""
FILLS, OPS, STREAMS = 7, 8, 9
"""How many there are of each; after the header they follow in this order."""
HEADER = 10
FILL, OP, STREAM = 6, 4, 5
"""Their sizes. A fill is (address, div, mod, row bytes, column bytes, register's offset): what a register holds in row
r of a block is row (r // div) % mod of a table. An operation is (code, stream, stream, target's stream); a stream is
(kind, address or register's offset, div, mod, row bytes)."""

FULL, REGISTER, ROW, CELL = 0, 1, 2, 3
"""Kinds of streams: an element for each of the result's; a register; one row of a table, by (row // div) % mod; one
element, likewise."""

COPY, SPLAT, NEG, ABS, SQRT, RECIPROCAL = 0, 1, 2, 3, 4, 5
EXP, EXPM1, SIGMOID, TANH, ERF, LOG1P, GELU, GELU_TANH = 6, 7, 8, 9, 10, 11, 12, 13
"""Operations on one stream; a SPLAT's is a cell. EXPM1 takes numbers up to 0, LOG1P those from 0 to 1."""
ADD, MUL, SUB, DIV, MAX, MIN = 15, 18, 21, 24, 27, 30
"""Operations on two streams. One more: the second is a cell; two more: the first is."""
