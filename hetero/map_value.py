"""MapValue: an ONNX map as a value, a dict that knows the dtype of what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


class MapValue(dict[Any, Any]):
    """Keys (int or str) with plain Python values. Lives on the host; nobody changes it once it is made.

    `value_dtype`: the NumPy dtype that the model gives the values, which are Python numbers or text here.
    """

    __slots__ = ("value_dtype",)

    def __init__(
        self,
        items: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (),
        value_dtype: npt.DTypeLike = np.float32,
    ) -> None:
        super().__init__(items)
        self.value_dtype: np.dtype[Any] = np.dtype(value_dtype)
