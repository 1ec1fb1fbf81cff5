"""What a tape means, in NumPy: the interpreter's twin, one whole array after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.kernels import tape_layout as layout
from hetero.kernels.elementary import GELU_TANH_SCALE
from hetero.kernels.erf import erf_into
from hetero.kernels.jit import floats_at
from hetero.types import Array


def _sigmoid(x: Array) -> Array:
    return np.reciprocal(np.exp(-x) + np.float32(1))


def _erf(x: Array) -> Array:
    out = np.empty_like(x)
    erf_into(np, x, out, np.empty_like(x), np.empty_like(x))
    return out


def _gelu(x: Array) -> Array:
    return x * ((_erf(x * np.float32(math.sqrt(0.5))) + np.float32(1)) * np.float32(0.5))


def _gelu_tanh(x: Array) -> Array:
    linear = np.float32(GELU_TANH_SCALE)
    cubic = np.float32(0.044715 * GELU_TANH_SCALE)
    return x * ((np.tanh((x * x * cubic + linear) * x) + np.float32(1)) * np.float32(0.5))


_UNARY: dict[int, Callable[[Array], Array]] = {
    layout.COPY: np.copy,
    layout.SPLAT: np.copy,
    layout.NEG: np.negative,
    layout.ABS: np.absolute,
    layout.SQRT: np.sqrt,
    layout.RECIPROCAL: np.reciprocal,
    layout.EXP: np.exp,
    layout.EXPM1: np.expm1,
    layout.SIGMOID: _sigmoid,
    layout.TANH: np.tanh,
    layout.ERF: _erf,
    layout.LOG1P: np.log1p,
    layout.GELU: _gelu,
    layout.GELU_TANH: _gelu_tanh,
}
_BINARY: dict[int, Callable[[Array, Array], Array]] = {
    layout.ADD: np.add,
    layout.MUL: np.multiply,
    layout.SUB: np.subtract,
    layout.DIV: np.divide,
    layout.MAX: np.maximum,
    layout.MIN: np.minimum,
}


def tape_twin(tape: Any) -> None:
    """Run `tape`; its registers are arrays of the whole shape here, and the scratch stays untouched."""
    numbers = [int(v) for v in tape]
    rows, cols = numbers[layout.ROWS], numbers[layout.COLS]
    if not rows * cols:
        return
    registers: dict[int, Array] = {}

    def table(address: int, div: int, mod: int, row_bytes: int, width: int) -> Array:
        """(rows, width) elements: of row r, those of the table's row (r // div) % mod."""
        parts = [floats_at(address + (r // div) % mod * row_bytes, width) for r in range(rows)]
        return np.stack(parts)

    def stream(at: int) -> Array:
        kind, address, div, mod, row_bytes = numbers[at : at + layout.STREAM]
        if kind == layout.REGISTER:
            return registers[address]
        if kind == layout.FULL:
            return floats_at(address, rows * cols).reshape(rows, cols)
        width = cols if kind == layout.ROW else 1
        return np.broadcast_to(table(address, div, mod, row_bytes, width), (rows, cols))

    at = layout.HEADER
    for _ in range(numbers[layout.FILLS]):
        address, div, mod, row_bytes, col_bytes, register = numbers[at : at + layout.FILL]
        filled = table(address, div, mod, row_bytes, cols if col_bytes else 1)
        registers[register] = np.broadcast_to(filled, (rows, cols))
        at += layout.FILL
    streams = at + layout.OP * numbers[layout.OPS]
    with np.errstate(all="ignore"):
        for _ in range(numbers[layout.OPS]):
            code, *places = numbers[at : at + layout.OP]
            first, second, target = (streams + layout.STREAM * place for place in places)
            if code < layout.ADD:
                value = _UNARY[code](stream(first))
            else:
                value = _BINARY[code - code % 3](stream(first), stream(second))
            kind, address = numbers[target : target + 2]
            if kind == layout.REGISTER:
                registers[address] = value
            else:
                stream(target)[...] = value
            at += layout.OP
