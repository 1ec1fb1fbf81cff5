"""What compiled code needs to read and write memory by its address. Imported only where numba is there."""

from __future__ import annotations

from typing import Any

from numba import carray, njit, types
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def _float32_pointer(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate


@njit(inline="always")  # type: ignore[untyped-decorator]
def floats_at(address: Any, n: Any) -> Any:
    """`n` float32 at `address` as an array. The memory must be aligned, and outlive what is made of it."""
    return carray(_float32_pointer(address), n)
