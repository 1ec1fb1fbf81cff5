"""exp, sigmoid and tanh in float32 as arithmetic alone, which numba turns into SIMD (it has no vector exp)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.kernels.jit import inline

# Every literal is float32: a single Python float would turn the loop into one over doubles.
_F = np.float32
_LOG2E, _LN2_HIGH, _LN2_LOW = _F(1.44269504), _F(0.693359375), _F(-2.12194440e-4)
_LOW, _HIGH = _F(-87.3), _F(88.3)
# exp(r) for |r| <= ln(2)/2: Cephes' expf
_C0, _C1, _C2 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_C3, _C4, _C5 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)
_HALF, _ONE, _TWO = _F(0.5), _F(1), _F(2)
_BIAS, _SHIFT = np.int32(127), np.int32(23)


@inline
def exp32(x: Any) -> Any:
    """exp(x), relative error 2e-7; x is held in [-87.3, 88.3]."""
    x = min(max(x, _LOW), _HIGH)
    n = np.floor(x * _LOG2E + _HALF)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
    return (p * r * r + r + _ONE) * np.int32((np.int32(n) + _BIAS) << _SHIFT).view(np.float32)


@inline
def sigmoid32(x: Any) -> Any:
    """1 / (1 + exp(-x)), absolute error 2e-7."""
    return _ONE / (_ONE + exp32(-x))


@inline
def tanh32(x: Any) -> Any:
    """tanh(x), absolute error 2e-7."""
    return _ONE - _TWO / (exp32(_TWO * x) + _ONE)
