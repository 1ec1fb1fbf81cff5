"""Softmax of rows in float32: three passes over a row that stays in the cache, in lanes that make them SIMD."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.kernels.jit import inline, jit, prange
from hetero.kernels.polynomials import exp32
from hetero.types import Array

_F = np.float32
_ZERO, _ONE = _F(0), _F(1)
_LEAST = _F(-87.3)
"""Below it exp is less than any normal number: 0 here, as are masked elements (-inf)."""
_NAN = _F(np.nan)
CHUNKS = 8
"""Groups of rows with lanes of their own, which threads may take."""


@inline
def not_less(a: Any, b: Any) -> Any:
    """The larger number, or NaN where one of the two is."""
    return a if (a >= b) | (a != a) else b


def _softmax_rows_numpy(x: Array, y: Array) -> None:
    np.subtract(x, x.max(1, keepdims=True), y)
    np.exp(y, y)
    np.divide(y, y.sum(1, keepdims=True), y)


@jit("f4[2], f4[2]!", twin=_softmax_rows_numpy)
def softmax_rows(x: Array, y: Array) -> None:
    """y = softmax of each row of x (rows, n), n > 0. A row whose largest element is no finite number becomes NaN.

    Maxima and sums run in 64 lanes whatever the machine's vectors are, so a row's bits follow from the row alone. y may
    be x.
    """
    rows, n = x.shape
    whole = n // 64 * 64
    for chunk in prange(CHUNKS):
        lanes = np.empty(64, np.float32)
        line = np.empty(n, np.float32)  # not target: a loop from an array into itself is no SIMD
        for r in range(chunk * rows // CHUNKS, (chunk + 1) * rows // CHUNKS):
            source, target = x[r], y[r]
            top = source[0]
            if whole > 0:
                lanes[:] = source[:64]
                for q in range(64, whole, 64):
                    part = source[q:][:64]
                    for i in range(64):
                        lanes[i] = not_less(lanes[i], part[i])
                for step in (32, 16, 8, 4, 2, 1):
                    upper = lanes[step:][:step]
                    for i in range(step):
                        lanes[i] = not_less(lanes[i], upper[i])
                top = lanes[0]
            for q in range(whole, n):
                top = not_less(top, source[q])
            if not np.isfinite(top):
                target[:] = _NAN
                continue
            for q in range(n):
                shifted = source[q] - top
                power = exp32(shifted)
                line[q] = power if shifted > _LEAST else _ZERO
            total = _ZERO
            if whole > 0:
                lanes[:] = line[:64]
                for q in range(64, whole, 64):
                    part = line[q:][:64]
                    for i in range(64):
                        lanes[i] += part[i]
                for step in (32, 16, 8, 4, 2, 1):
                    upper = lanes[step:][:step]
                    for i in range(step):
                        lanes[i] += upper[i]
                total = lanes[0]
            for q in range(whole, n):
                total += line[q]
            share = _ONE / total
            for q in range(n):
                target[q] = line[q] * share
