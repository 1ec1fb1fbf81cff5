"""Calling machine code with arrays and integers: the operands written into a block of words once, then one address."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hetero.kernels.jit_signature import Operand
from hetero.kernels.machine_code import UnfitError

_ARRAY_WORDS = 5
"""What numba's array has before its extents and strides: owner, parent, number of elements, bytes of one, address."""


def words_of(operands: Sequence[Operand]) -> int:
    """How many words the operands take. Raises: UnfitError for numbers that are not int64."""
    if any(not o.ndim and o.code != "i8" for o in operands):
        raise UnfitError("a number that is no int64")
    return sum(_ARRAY_WORDS + 2 * o.ndim if o.ndim else 1 for o in operands)


class Native:
    """Compiled code as a function of arrays and integers. It may be called from several threads; the interpreter's lock
    is not held meanwhile."""

    __slots__ = ("_block", "_code", "_operands")

    def __init__(self, code: Callable[[Any], None], operands: Sequence[Operand]) -> None:
        self._code = code
        self._operands = tuple((o, o.dtype, o.ndim, o.writes) for o in operands)
        self._block = ctypes.c_int64 * words_of(operands)

    def __call__(self, *arguments: Any) -> None:
        """Call it. Raises: TypeError for operands that are not those of its signature."""
        self._code(self._filled(arguments))

    def bind(self, *arguments: Any) -> partial[None]:
        """A call with these operands, which must outlive it where they are. Raises: TypeError as `__call__`."""
        return partial(self._code, self._filled(arguments))

    def _filled(self, arguments: Sequence[Any]) -> Any:
        if len(arguments) != len(self._operands):
            raise TypeError(f"takes {len(self._operands)} operands, not {len(arguments)}")
        words: list[int] = []
        for (operand, dtype, ndim, writes), value in zip(self._operands, arguments, strict=True):
            if not ndim:
                words.append(operator.index(value))
                continue
            flags = value.flags
            if (
                value.dtype != dtype
                or value.ndim != ndim
                or not flags.c_contiguous
                or (writes and not flags.writeable)
            ):
                raise TypeError(f"an array of {value.dtype}{list(value.shape)} is no {operand}")
            address = value.__array_interface__["data"][0]
            words += (0, 0, value.size, value.itemsize, address, *value.shape, *value.strides)
        return self._block(*words)


def bound(function: Callable[..., None], *arguments: Any) -> partial[None]:
    """A call of what `Jitted.variant` returned with these operands, where they are now; it keeps them, as `arguments`.
    Bind once, call often."""
    call = function.bind(*arguments) if isinstance(function, Native) else partial(function, *arguments)
    call.__dict__["arguments"] = arguments  # machine code has only their addresses
    return call
