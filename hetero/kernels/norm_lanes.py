"""Rows of float32 to mean 0 and variance 1 (or mean square 1), scaled and shifted, in one compiled call."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.kernels.jit import inline, jit, prange
from hetero.types import Array

CHUNKS = 8
"""Groups of rows with lanes of their own, which threads may take."""
_F = np.float32
_ZERO, _ONE = _F(0), _F(1)


@inline
def folded(lanes: Any) -> Any:
    """The sum of 64 lanes, which are overwritten."""
    for step in (32, 16, 8, 4, 2, 1):
        upper = lanes[step:][:step]
        for i in range(step):
            lanes[i] += upper[i]
    return lanes[0]


def _normalise_lanes_numpy(
    x: Array, scale: Array, bias: Array, y: Array, epsilon: float, centred: int
) -> None:
    wide = x.astype(np.float64)
    if centred:
        wide -= wide.mean(1, keepdims=True)
    y[...] = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + epsilon) * scale + bias


@jit("f4[2], f4[1], f4[1], f4[2]!, f8, i8", twin=_normalise_lanes_numpy)
def normalise_lanes(x: Array, scale: Array, bias: Array, y: Array, epsilon: float, centred: int) -> None:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias for each row of x (rows, n), n > 0; the mean is 0 unless
    `centred`. Sums run in 64 lanes whatever the machine's vectors are: a row's bits follow from it alone. y may be x.
    """
    rows, n = x.shape
    whole = n // 64 * 64
    count = _F(n)
    for chunk in prange(CHUNKS):
        lanes = np.empty(64, np.float32)
        line = np.empty(n, np.float32)  # not target: a loop from an array into itself is no SIMD
        for r in range(chunk * rows // CHUNKS, (chunk + 1) * rows // CHUNKS):
            source, target = x[r], y[r]
            mean = _ZERO
            if centred:
                lanes[:] = _ZERO
                for q in range(0, whole, 64):
                    part = source[q:][:64]
                    for i in range(64):
                        lanes[i] += part[i]
                total = folded(lanes)
                for q in range(whole, n):
                    total += source[q]
                mean = total / count
            for q in range(n):
                line[q] = source[q] - mean
            lanes[:] = _ZERO
            for q in range(0, whole, 64):
                part = line[q:][:64]
                for i in range(64):
                    lanes[i] += part[i] * part[i]
            squares = folded(lanes)
            for q in range(whole, n):
                squares += line[q] * line[q]
            inverse = _ONE / np.sqrt(squares / count + _F(epsilon))
            for q in range(n):
                target[q] = line[q] * inverse * scale[q] + bias[q]
