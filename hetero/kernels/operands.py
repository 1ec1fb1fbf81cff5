"""Reading what decides a shape at compile time: axes, known values, scalars, text attributes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import given
from hetero.program.operation import Operation
from hetero.types import DataType, HostArray, Spec, numpy_dtype


def fail(op: Operation, message: str, operand: str | None = None) -> NoReturn:
    """Raises: KernelError with the message, naming the node."""
    raise KernelError(message, op=op.id, node=op.name, operand=operand)


def text_of(op: Operation, name: str, default: str) -> str:
    """A text attribute, readable where the model's bytes are not UTF-8."""
    value = op.attr(name, default)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def dtype_attribute(op: Operation, name: str) -> np.dtype[Any] | None:
    """The dtype that an integer attribute names; None where it is absent or 0.

    Raises: KernelError for a number that names no dtype.
    """
    code = op.attr(name, 0)
    if not code:
        return None
    try:
        return numpy_dtype(DataType(code))
    except (ValueError, KeyError) as error:
        raise KernelError(f"{code!r} names no dtype", op=op.id, node=op.name, operand=name) from error


def axis_of(op: Operation, axis: int, rank: int, operand: str = "axis") -> int:
    """`axis` counted from the front. Raises: KernelError outside [-rank, rank - 1]."""
    if not -rank <= axis < rank:
        fail(op, f"axis {axis} is out of range for rank {rank}", operand)
    return axis + rank if axis < 0 else axis


def axes_of(op: Operation, axes: Iterable[int], rank: int, operand: str = "axes") -> tuple[int, ...]:
    """`axes` counted from the front. Raises: KernelError out of range or where one stands twice."""
    found = tuple(axis_of(op, axis, rank, operand) for axis in axes)
    if len(set(found)) != len(found):
        fail(op, f"axes {list(found)} name an axis twice", operand)
    return found


def known(op: Operation, specs: Sequence[Spec], index: int, operand: str) -> HostArray | None:
    """The host value of input `index`, or None where that operand is omitted.

    Raises: UnsupportedError where it is given, but not known on the host.
    """
    spec = given(specs, index)
    if spec is None:
        return None
    if spec.value is None:
        raise UnsupportedError(
            "its value must be known when compiling", op=op.id, node=op.name, operand=operand
        )
    return spec.value


def known_ints(op: Operation, specs: Sequence[Spec], index: int, operand: str) -> tuple[int, ...] | None:
    """The host value of input `index` as Python integers (exact, unbounded), or None where it is omitted.

    Raises: KernelError where it has more than one axis.
    """
    value = known(op, specs, index, operand)
    if value is None:
        return None
    if value.ndim > 1:
        fail(op, f"must have one axis, has shape {list(value.shape)}", operand)
    return tuple(int(v) for v in value.reshape(-1).tolist())


def known_scalar(op: Operation, specs: Sequence[Spec], index: int, operand: str) -> Any:
    """The one element of input `index` as a Python scalar, or None where it is omitted.

    Raises: KernelError where it holds more or fewer elements than one.
    """
    value = known(op, specs, index, operand)
    if value is None:
        return None
    if value.size != 1:
        fail(op, f"must hold one element, has shape {list(value.shape)}", operand)
    return value.reshape(-1)[0].item() if value.dtype.kind != "O" else value.reshape(-1)[0]


def zero_of(dtype: np.dtype[Any]) -> Any:
    """What an operator pads with when told nothing: 0, False or the empty string."""
    return "" if dtype.kind == "O" else dtype.type(0)


def host_reason(xp: Any, reason: str) -> str | None:
    """`reason`, as the reason not to record, on array modules other than NumPy.

    Recording on the host replays Python calls, which may allocate and read; a device graph must do neither.
    """
    return None if xp is np else reason
