"""What compiled code needs to read and write memory by its address. Imported only where numba is there."""

from __future__ import annotations

import importlib
from typing import Any

numba: Any = importlib.import_module("numba")
_intrinsic: Any = importlib.import_module("numba.extending").intrinsic


@_intrinsic  # type: ignore[untyped-decorator]
def _float32_pointer(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return numba.types.CPointer(numba.types.float32)(numba.types.int64), generate


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def floats_at(address: Any, n: Any) -> Any:
    """`n` float32 at `address` as an array. The memory must be aligned, and outlive what is made of it."""
    return numba.carray(_float32_pointer(address), n)
