"""What compiled code needs to read and write memory by its address."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


@cache
def compiled_floats_at(numba: Any) -> Any:
    """`hetero.kernels.jit.floats_at` as compiled code calls it: an array over an address, without a check."""

    def pointer(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return numba.types.CPointer(numba.types.float32)(numba.types.int64), generate

    carray = numba.carray
    float32_pointer = importlib.import_module("numba.extending").intrinsic(pointer)

    def floats_at(address: Any, n: Any) -> Any:
        return carray(float32_pointer(address), n)

    return numba.njit(inline="always")(floats_at)
