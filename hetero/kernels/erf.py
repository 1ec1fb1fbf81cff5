"""The error function as chains of ufuncs: rational approximations for float32 and for float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.types import Array

FLOAT32_BOUND = 3.9200003
"""From here on erf rounds to 1 in float32. At this very number the quotient below is 1 as well: what lay above 1 would
become large in the GELU of a large negative number, which is 0."""
P32 = (
    2.0501893231994472e-06,
    0.00028487705276347697,
    0.003765238681808114,
    0.05274755135178566,
    0.1903972029685974,
    1.1283791065216064,
)
Q32 = (
    3.80924939236138e-05,
    0.001162449480034411,
    0.014968451112508774,
    0.11410532891750336,
    0.5020678639411926,
    1.0,
)
"""erf(x) = x P(x²) / Q(x²) for |x| <= 3.92: a minimax fit, relative error 2e-8 before rounding, 5e-7 after."""

# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969): highest power first.
_SMALL = 0.46875
_A64 = (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
        3.20937758913846947e3)  # fmt: skip
_B64 = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_C64 = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
        2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
        1.23033935479799725e3)  # fmt: skip
_D64 = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
        3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3)  # fmt: skip


def scratch_dtypes(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
    """The scratch arrays that `erf_into` needs beside x and out for this dtype (float32 or float64)."""
    return (dtype, dtype) if dtype == np.float32 else (dtype, dtype, dtype, np.dtype(bool))


def erf_into(xp: Any, x: Array, out: Array, *scratch: Array) -> None:
    """out = erf(x), for float32 (absolute error below 1e-6) or float64 (about 1e-15). `out` may be `x`."""
    if out.dtype == np.float32:
        _erf32(xp, x, out, *scratch)
    else:
        _erf64(xp, x, out, *scratch)


def _horner(xp: Any, u: Array, out: Array, coefficients: tuple[float, ...]) -> None:
    """out = polynomial in u, highest power first; out must not be u."""
    xp.multiply(u, coefficients[0], out)
    for c in coefficients[1:-1]:
        xp.add(out, c, out)
        xp.multiply(out, u, out)
    xp.add(out, coefficients[-1], out)


def _erf32(xp: Any, x: Array, out: Array, u: Array, t: Array) -> None:
    x.clip(-FLOAT32_BOUND, FLOAT32_BOUND, out)
    xp.multiply(out, out, u)
    _horner(xp, u, t, P32)
    xp.multiply(out, t, out)
    _horner(xp, u, t, Q32)
    xp.divide(out, t, out)


def _erf64(xp: Any, x: Array, out: Array, t: Array, p: Array, q: Array, large: Array) -> None:
    # Beyond 0.46875: 1 - exp(-x²) C(|x|) / D(|x|), with the sign of x. At 6 that is 1 to the last bit.
    xp.absolute(x, t)
    xp.greater(t, _SMALL, large)
    xp.minimum(t, 6.0, out=t)
    _horner(xp, t, p, _C64)
    _horner(xp, t, q, _D64)
    xp.divide(p, q, p)
    xp.multiply(t, t, t)
    xp.negative(t, q)
    xp.exp(q, q)
    xp.multiply(p, q, p)
    xp.subtract(1.0, p, p)
    xp.copysign(p, x, p)
    # Up to there: x A(x²) / B(x²). x is read for the last time before out is written.
    _horner(xp, t, q, _A64)
    xp.multiply(q, x, q)
    _horner(xp, t, out, _B64)
    xp.divide(q, out, out)
    xp.copyto(out, p, where=large)
