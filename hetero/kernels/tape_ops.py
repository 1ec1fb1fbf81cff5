"""Which float32 operators a tape can hold, and what they are made of there: the very operations of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels import tape_layout as layout
from hetero.kernels.tape import TapeWriter
from hetero.program.operation import Operation
from hetero.types import HostArray

Operand = int | None
"""A value of the writer; None where the operand is omitted."""
Lower = Callable[[TapeWriter, Operation, Sequence[Operand], Sequence[HostArray | None]], "int | None"]
"""(writer, operation, operands, their values where they are known) -> the result's value, or None: not on a tape."""

FLOAT32_MAX = float(np.finfo(np.float32).max)
SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


class _Pen:
    """Short names for writing a tape."""

    def __init__(self, writer: TapeWriter) -> None:
        self.emit = writer.emit
        self.constant = writer.constant

    def scalar(self, code: int, x: int, number: Any) -> int:
        return self.emit(code, x, self.constant(number))

    def add(self, x: int, number: float) -> int:
        return self.scalar(layout.ADD, x, number)

    def mul(self, x: int, number: float) -> int:
        return self.scalar(layout.MUL, x, number)

    def positive(self, x: int) -> int:
        """max(x, 0)"""
        return self.scalar(layout.MAX, x, 0.0)

    def clip(self, x: int, low: float, high: float) -> int:
        return self.scalar(layout.MIN, self.scalar(layout.MAX, x, low), high)


def _float(op: Operation, name: str, default: float) -> float:
    return float(op.attr(name, default))


def _one(code: int, w: TapeWriter, op: Operation, x: Sequence[Operand], known: Sequence[Any]) -> int | None:
    return None if x[0] is None else w.emit(code, x[0])


def _two(code: int, w: TapeWriter, op: Operation, x: Sequence[Operand], known: Sequence[Any]) -> int | None:
    return None if x[0] is None or x[1] is None else w.emit(code, x[0], x[1])


def _many(code: int, w: TapeWriter, op: Operation, x: Sequence[Operand], known: Sequence[Any]) -> int | None:
    operands = [v for v in x if v is not None]
    value = operands[0]
    for other in operands[1:]:
        value = w.emit(code, value, other)
    if len(operands) == 1:
        return w.emit(layout.COPY, value)
    return _Pen(w).mul(value, 1 / len(operands)) if op.op_type == "Mean" else value


def _leaky_relu(p: _Pen, op: Operation, x: int) -> int:
    alpha = _float(op, "alpha", 0.01)
    if alpha == 0:
        return p.positive(x)
    return p.emit(layout.MAX if alpha <= 1 else layout.MIN, x, p.mul(x, alpha))


def _hard_sigmoid(p: _Pen, op: Operation, x: int) -> int:
    return p.clip(p.add(p.mul(x, _float(op, "alpha", 0.2)), _float(op, "beta", 0.5)), 0.0, 1.0)


def _elu(p: _Pen, op: Operation, x: int) -> int | None:
    alpha, divisor, gamma = _float(op, "alpha", 1.0), 1.0, 1.0
    if op.op_type == "Celu":
        divisor = alpha
    elif op.op_type == "Selu":
        alpha, gamma = _float(op, "alpha", SELU_ALPHA), _float(op, "gamma", SELU_GAMMA)
    if divisor <= 0:
        return None  # exp of positive numbers
    low = p.scalar(layout.MIN, x, 0.0)
    if divisor != 1.0:
        low = p.scalar(layout.DIV, low, divisor)
    low = p.mul(p.emit(layout.EXPM1, low), alpha * gamma)
    high = p.positive(x)
    if gamma != 1.0:
        high = p.mul(high, gamma)
    return p.emit(layout.ADD, high, low)


def _softplus(p: _Pen, op: Operation, x: int) -> int:
    t = p.emit(layout.LOG1P, p.emit(layout.EXP, p.emit(layout.NEG, p.emit(layout.ABS, x))))
    return p.emit(layout.ADD, p.positive(x), t)


def _softsign(p: _Pen, op: Operation, x: int) -> int:
    return p.emit(layout.DIV, x, p.add(p.emit(layout.ABS, x), 1.0))


def _hard_swish(p: _Pen, op: Operation, x: int) -> int:
    return p.emit(layout.MUL, x, p.clip(p.add(p.mul(x, 1 / 6), 0.5), 0.0, 1.0))


def _mish(p: _Pen, op: Operation, x: int) -> int:
    e = p.emit(layout.EXP, p.scalar(layout.MIN, x, 20.0))
    n = p.emit(layout.MUL, p.add(e, 2.0), e)
    return p.emit(layout.MUL, x, p.emit(layout.DIV, n, p.add(n, 2.0)))


def _swish(p: _Pen, op: Operation, x: int) -> int:
    alpha = _float(op, "alpha", 1.702 if op.op_type == "QuickGelu" else 1.0)
    return p.emit(layout.DIV, x, p.add(p.emit(layout.EXP, p.mul(x, -alpha)), 1.0))


def _relu(p: _Pen, op: Operation, x: int) -> int:
    return p.positive(x)


def _chain(
    make: Callable[[_Pen, Operation, int], int | None],
    w: TapeWriter,
    op: Operation,
    x: Sequence[Operand],
    known: Sequence[Any],
) -> int | None:
    return None if x[0] is None else make(_Pen(w), op, x[0])


def _clip(w: TapeWriter, op: Operation, x: Sequence[Operand], known: Sequence[Any]) -> int | None:
    if x[0] is None:
        return None
    value = x[0]
    for k, (name, code, limit) in enumerate(
        (("min", layout.MAX, -FLOAT32_MAX), ("max", layout.MIN, FLOAT32_MAX)), 1
    ):
        bound = x[k] if k < len(x) else None
        if bound is None:
            with np.errstate(over="ignore"):
                bound = w.constant(op.attr(name, limit) if op.version < 11 else limit)
        value = w.emit(code, value, bound)
    return value


def _gelu(w: TapeWriter, op: Operation, x: Sequence[Operand], known: Sequence[Any]) -> int | None:
    if x[0] is None:
        return None
    p, value = _Pen(w), x[0]
    if len(x) > 1 and x[1] is not None:
        value = p.emit(layout.ADD, value, x[1])
    if op.op_type == "FastGelu" or op.attr("approximate", "none") in ("tanh", b"tanh"):
        return p.emit(layout.GELU_TANH, value)
    return p.emit(layout.GELU, value)


def _power(w: TapeWriter, op: Operation, x: Sequence[Operand], known: Sequence[Any]) -> int | None:
    """x² and x³, as the kernel computes them; the exponent must be a known number."""
    exponent = known[1]
    if x[0] is None or exponent is None or exponent.size != 1 or float(exponent.item()) not in (2.0, 3.0):
        return None
    square = w.emit(layout.MUL, x[0], x[0])
    return square if float(exponent.item()) == 2.0 else w.emit(layout.MUL, square, x[0])


_UNARY = {
    "Neg": layout.NEG, "Abs": layout.ABS, "Sqrt": layout.SQRT, "Reciprocal": layout.RECIPROCAL, "Exp": layout.EXP,
    "Sigmoid": layout.SIGMOID, "Tanh": layout.TANH, "Erf": layout.ERF,
}  # fmt: skip
_CHAINS = {
    "Relu": _relu, "LeakyRelu": _leaky_relu, "HardSigmoid": _hard_sigmoid, "Elu": _elu, "Celu": _elu, "Selu": _elu,
    "Softplus": _softplus, "Softsign": _softsign, "HardSwish": _hard_swish, "Mish": _mish, "Swish": _swish,
}  # fmt: skip
LOWERINGS: dict[tuple[str, str], Lower] = {
    **{("", name): partial(_one, code) for name, code in _UNARY.items()},
    **{
        ("", name): partial(_two, code)
        for name, code in (("Add", layout.ADD), ("Sub", layout.SUB), ("Mul", layout.MUL), ("Div", layout.DIV))
    },
    **{
        ("", name): partial(_many, code)
        for name, code in (
            ("Max", layout.MAX),
            ("Min", layout.MIN),
            ("Sum", layout.ADD),
            ("Mean", layout.ADD),
        )
    },
    **{("", name): partial(_chain, make) for name, make in _CHAINS.items()},
    ("com.microsoft", "QuickGelu"): partial(_chain, _swish),
    ("", "Clip"): _clip,
    ("", "Pow"): _power,
    ("", "Gelu"): _gelu,
    **{("com.microsoft", name): _gelu for name in ("Gelu", "BiasGelu", "FastGelu")},
}
"""(domain, operator) -> how it is written, for the versions that our kernels serve."""
