"""Bytes, scales and zero points for tests of quantised operators."""

from __future__ import annotations

from typing import Any

import numpy as np


class Quantities:
    """Random operands from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def integers(self, dtype: Any, *shape: int) -> Any:
        """Over the whole range of an integer dtype; of int8 over that in which every machine's onnxruntime is exact.

        Where a CPU has no instruction for sums of byte products, it adds two of them in 16 bits.
        """
        limits = np.iinfo(dtype)
        low, high = (-64, 63) if dtype == np.int8 else (limits.min, limits.max)
        return np.asarray(self.rng.integers(low, high + 1, shape)).astype(dtype)

    def scale(self, *shape: int, low: float = 0.01, high: float = 0.1) -> Any:
        """float32."""
        return np.asarray(self.rng.uniform(low, high, shape)).astype(np.float32)

    def pair(self, dtype: Any) -> list[Any]:
        """A scale and a zero point."""
        return [self.scale(), self.integers(dtype)]

    def normal(self, *shape: int) -> Any:
        """float32."""
        return self.rng.standard_normal(shape).astype(np.float32)
