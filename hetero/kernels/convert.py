"""How one dtype becomes another: saturation of the float8 kinds, detours NumPy needs, numbers in text."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from hetero.types import Array

_LARGEST = {
    np.dtype(ml_dtypes.float8_e4m3fn): 448.0,
    np.dtype(ml_dtypes.float8_e4m3fnuz): 240.0,
    np.dtype(ml_dtypes.float8_e5m2): 57344.0,
    np.dtype(ml_dtypes.float8_e5m2fnuz): 57344.0,
}
FLOAT8 = frozenset(_LARGEST)
"""The float8 kinds with a sign, which Cast saturates."""
FLOAT8_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
FLOAT32 = np.dtype(np.float32)
ROUND_MODES = ("up", "down", "nearest")
_E8M0_BIAS, _E8M0_MAX, _E8M0_NAN = 127, 254, 255

Step = Callable[..., None]
"""(x, out, *scratch): out = x in out's dtype, over arrays of equal shape."""


def convertible(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether assigning to an array of `target` is the whole conversion."""
    return np.can_cast(source, target, "unsafe")


def conversion(
    xp: Any, source: np.dtype[Any], target: np.dtype[Any], *, saturate: bool = True, round_mode: str = "up"
) -> tuple[Step, tuple[np.dtype[Any], ...]]:
    """The step that converts numbers of `source` to `target`, and the dtypes of the scratch arrays it takes.

    `saturate` holds for float8 targets, `round_mode` ("up", "down", "nearest") for float8e8m0: see Cast's text.
    """
    if target == FLOAT8_E8M0:
        return partial(_to_e8m0, xp, saturate=saturate, round_mode=round_mode), (FLOAT32,)
    if target in FLOAT8 and saturate:
        return partial(_clipped, limit=_LARGEST[target]), (FLOAT32,)
    if convertible(source, target):
        return _assign, ()
    return _assign_twice, (FLOAT32,)  # one ml_dtypes type to another: float32 holds all their values


def _assign(x: Array, out: Array) -> None:
    out[...] = x


def _assign_twice(x: Array, out: Array, wide: Array) -> None:
    wide[...] = x
    out[...] = wide


def _clipped(x: Array, out: Array, wide: Array, *, limit: float) -> None:
    wide[...] = x
    wide.clip(-limit, limit, wide)
    out[...] = wide


def _to_e8m0(xp: Any, x: Array, out: Array, wide: Array, *, saturate: bool, round_mode: str) -> None:
    """A power of two, 2 ** (code - 127); 255 is NaN. Negative numbers give NaN (the text leaves them open)."""
    wide[...] = x
    fraction, exponent = xp.frexp(wide)  # wide = fraction * 2 ** exponent, 0.5 <= fraction < 1
    code = exponent.astype(np.int32) + (_E8M0_BIAS - 1)
    if round_mode == "up":
        code += fraction > 0.5
    elif round_mode == "nearest":
        code += fraction >= 0.75
    code[wide == 0] = -1
    code[xp.isinf(wide)] = _E8M0_MAX + 1
    if saturate:
        code = code.clip(0, _E8M0_MAX)
    else:
        code[(code < 0) | (code > _E8M0_MAX)] = _E8M0_NAN
    code[xp.isnan(wide) | (wide < 0)] = _E8M0_NAN
    out.view(np.uint8)[...] = code


def to_text(x: Array, out: Array) -> None:
    """Write each number of `x` as a string: the shortest text that reads back as it; INF, -INF and NaN."""
    if x.dtype == bool:
        texts = ["1" if v else "0" for v in x.reshape(-1).tolist()]
    elif x.dtype.kind in "iu":
        texts = [str(v) for v in x.reshape(-1).tolist()]
    elif x.dtype.kind == "V" and x.dtype.name.lstrip("u").startswith("int"):
        texts = [
            str(v) for v in x.astype(np.int8 if x.dtype.name[0] == "i" else np.uint8).reshape(-1).tolist()
        ]
    else:
        real = x if x.dtype.kind == "f" and x.dtype.itemsize > 1 else x.astype(np.float32)
        texts = [_float_text(v) for v in real.reshape(-1)]
    for index, text in zip(np.ndindex(out.shape), texts, strict=True):
        out[index] = text


def _float_text(value: Any) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    text = str(value)
    return text[:-2] if text.endswith(".0") else text


def from_text(x: Array, out: Array) -> None:
    """Read each string of `x` as a number into `out`, an array of a NumPy number dtype or bool.

    Raises: ValueError, OverflowError where one is no number or does not fit the integer dtype.
    """
    whole = out.dtype.kind in "iu"
    for index in np.ndindex(out.shape):
        text = x[index]
        if isinstance(text, bytes):
            text = text.decode()
        text = text.strip()
        if whole:
            out[index] = _whole(text)
        elif out.dtype.kind == "b":
            out[index] = bool(float(text))
        else:
            out[index] = float(text)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))
