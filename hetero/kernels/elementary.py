"""exp, tanh, erf and their like in float32 over the whole range, as arithmetic that compiled code turns into SIMD.

For code that is compiled `exact`: each operation rounds by itself, so that one element's bits depend neither on where
in a vector it stands nor on what is computed beside it. NaN gives NaN.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero.kernels.erf import FLOAT32_BOUND, P32, Q32
from hetero.kernels.jit import inline

# Every literal is float32: a single Python float would turn the loop into one over doubles.
_F = np.float32
_HALF, _ONE, _TWO = _F(0.5), _F(1), _F(2)
_LOG2E, _LN2_HIGH, _LN2_LOW = _F(1.44269504), _F(0.693359375), _F(-2.12194440e-4)
_ROUNDER = _F(12582912)
"""1.5 · 2²³: added to a float32 below 2²², it leaves the nearest integer in the lowest bits."""
_ROUNDER_BITS, _BIAS, _SHIFT = np.int32(0x4B400000), np.int32(127), np.int32(23)
_EXP_LOW, _EXP_HIGH, _EXPM1_LOW = _F(-104), _F(89), _F(-30)
# exp(r) for |r| <= ln(2)/2: Cephes' expf
_C0, _C1, _C2 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_C3, _C4, _C5 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)
# tanh(x) = x P(x²) / Q(x²): Eigen's ptanh_float
_TANH_BOUND, _TANH_LINEAR = _F(7.90531110763549805), _F(4e-4)
_T13, _T11, _T9 = _F(-2.76076847742355e-16), _F(2.00018790482477e-13), _F(-8.60467152213735e-11)
_T7, _T5, _T3 = _F(5.12229709037114e-08), _F(1.48572235717979e-05), _F(6.37261928875436e-04)
_T1, _U6, _U4 = _F(4.89352455891786e-03), _F(1.19825839466702e-06), _F(1.18534705686654e-04)
_U2, _U0 = _F(2.26843463243900e-03), _F(4.89352518554385e-03)
_ERF_BOUND = _F(FLOAT32_BOUND)
_P0, _P1, _P2, _P3, _P4, _P5 = (_F(c) for c in P32)
_Q0, _Q1, _Q2, _Q3, _Q4, _Q5 = (_F(c) for c in Q32)
_SQRT_HALF = _F(math.sqrt(0.5))
GELU_TANH_SCALE = math.sqrt(2 / math.pi)
_GELU_LINEAR, _GELU_CUBE = _F(GELU_TANH_SCALE), _F(0.044715 * GELU_TANH_SCALE)
# atanh(s) / s in powers of s²
_A3, _A5, _A7, _A9 = _F(1 / 3), _F(1 / 5), _F(1 / 7), _F(1 / 9)
_A11, _A13, _A15 = _F(1 / 11), _F(1 / 13), _F(1 / 15)


@inline
def exp_exact(x: Any) -> Any:
    """exp(x), to 2 units in the last place; infinite from 88.73 on, denormal below -87.34, 0 below -103.98."""
    x = _EXP_LOW if x < _EXP_LOW else x
    x = _EXP_HIGH if x > _EXP_HIGH else x
    shifted = x * _LOG2E + _ROUNDER
    n = shifted - _ROUNDER
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
    y = p * r * r + r + _ONE
    # 2ⁿ in two halves: it may itself lie outside of float32.
    power = np.int32(np.float32(shifted).view(np.int32) - _ROUNDER_BITS)
    half = np.int32(power >> np.int32(1))
    first = np.int32((half + _BIAS) << _SHIFT).view(np.float32)
    second = np.int32((np.int32(power - half) + _BIAS) << _SHIFT).view(np.float32)
    return y * first * second


@inline
def expm1_exact(x: Any) -> Any:
    """exp(x) - 1 for x <= 0, to 3 units in the last place."""
    x = _EXPM1_LOW if x < _EXPM1_LOW else x
    shifted = x * _LOG2E + _ROUNDER
    n = shifted - _ROUNDER
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
    power = np.int32(np.float32(shifted).view(np.int32) - _ROUNDER_BITS)
    scale = np.int32((power + _BIAS) << _SHIFT).view(np.float32)
    return (p * r * r + r) * scale + (scale - _ONE)


@inline
def sigmoid_exact(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return _ONE / (exp_exact(-x) + _ONE)


@inline
def tanh_exact(x: Any) -> Any:
    """tanh(x), to 7 units in the last place."""
    t = -_TANH_BOUND if x < -_TANH_BOUND else x
    t = _TANH_BOUND if t > _TANH_BOUND else t
    u = t * t
    p = (((((_T13 * u + _T11) * u + _T9) * u + _T7) * u + _T5) * u + _T3) * u + _T1
    q = ((_U6 * u + _U4) * u + _U2) * u + _U0
    return x if abs(x) < _TANH_LINEAR else t * p / q


@inline
def erf_exact(x: Any) -> Any:
    """erf(x), the very operations of `hetero.kernels.erf`."""
    t = -_ERF_BOUND if x < -_ERF_BOUND else x
    t = _ERF_BOUND if t > _ERF_BOUND else t
    u = t * t
    p = ((((_P0 * u + _P1) * u + _P2) * u + _P3) * u + _P4) * u + _P5
    q = ((((_Q0 * u + _Q1) * u + _Q2) * u + _Q3) * u + _Q4) * u + _Q5
    return t * p / q


@inline
def gelu_exact(x: Any) -> Any:
    """x / 2 (1 + erf(x / sqrt 2)), rounded step by step as `hetero.kernels.gelu` does it."""
    return x * ((erf_exact(x * _SQRT_HALF) + _ONE) * _HALF)


@inline
def gelu_tanh_exact(x: Any) -> Any:
    """x / 2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³))), likewise."""
    return x * ((tanh_exact((x * x * _GELU_CUBE + _GELU_LINEAR) * x) + _ONE) * _HALF)


@inline
def log1p_exact(x: Any) -> Any:
    """log(1 + x) for 0 <= x <= 1, to 3 units in the last place: 2 atanh(x / (2 + x))."""
    s = x / (x + _TWO)
    u = s * s
    p = ((((((_A15 * u + _A13) * u + _A11) * u + _A9) * u + _A7) * u + _A5) * u + _A3) * u
    t = s + s
    return t * p + t
