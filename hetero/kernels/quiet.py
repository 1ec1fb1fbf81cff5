"""IEEE arithmetic without NumPy's warnings: ONNX defines inf and NaN results, so they are no reason to speak up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.base import Call


class Quiet:
    """A bound call under `np.errstate(all="ignore")`.

    Entering errstate costs two to three times as much as a small ufunc. Who holds it around a whole run calls
    `bare(call)` in place of the call.
    """

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call = call

    def __call__(self) -> None:
        with np.errstate(all="ignore"):
            self.call()


def bare(call: Call) -> Call:
    """What `call` runs, without its guard: for callers that hold `np.errstate(all="ignore")` themselves."""
    return call.call if isinstance(call, Quiet) else call


def quiet(function: Callable[..., object], *arguments: Any, **keywords: Any) -> Quiet:
    """`function` bound to its arguments, under errstate."""
    return Quiet(partial(function, *arguments, **keywords))
