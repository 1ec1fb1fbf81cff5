"""The operands of a jitted function as text says them: "f4[2], f4[2]!, i8"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

_OPERAND = re.compile(r"(?P<dtype>[a-z][0-9]+)(?:\[(?P<ndim>[1-9])\](?P<write>!?))?")
_NAMES = {
    "f4": "float32",
    "f8": "float64",
    "i1": "int8",
    "u1": "uint8",
    "i4": "int32",
    "i8": "int64",
    "b1": "boolean",
}
_DTYPES = {code: np.dtype("bool" if name == "boolean" else name) for code, name in _NAMES.items()}
CODE_OF = {dtype: code for code, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Operand:
    """A C-contiguous array of `ndim` axes, which the function may write if it `writes`; a number where `ndim` is 0."""

    code: str
    ndim: int
    writes: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its elements."""
        return _DTYPES[self.code]

    def numba_type(self, numba: Any) -> Any:
        """The type that numba compiles it for."""
        dtype = getattr(numba.types, _NAMES[self.code])
        return numba.types.Array(dtype, self.ndim, "C", readonly=not self.writes) if self.ndim else dtype


def operands_of(signature: str) -> tuple[Operand, ...]:
    """The operands of a signature. Raises: ValueError for one of another form."""
    found = []
    for part in signature.split(","):
        match = _OPERAND.fullmatch(part.strip())
        if match is None or match["dtype"] not in _NAMES:
            raise ValueError(f"{part!r} is no argument of a jitted function")
        found.append(Operand(match["dtype"], int(match["ndim"] or 0), bool(match["write"])))
    return tuple(found)
