"""What surrounds the runs of a child: NumPy's silence, bounds on values, the step whose numbers are drawn, and BLAS on
one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar

import numpy as np

from hetero.kernels.blas_threads import enter_one_blas_thread, leave_one_blas_thread, one_blas_thread
from hetero.kernels.limits import limited
from hetero.kernels.randomness import RUN, Run, drawing

R = TypeVar("R")


class Surroundings:
    """The surroundings of one child, whose runs take turns."""

    def __init__(self, value_bytes: int, seed: int) -> None:
        self._value_bytes, self._seed = value_bytes, seed
        self.under_way = Run(seed)
        """The run that is under way where this was entered for good: in the context, and in threads that dwell."""
        self._context: Context | None = None

    def settle(self, *, apart: bool) -> None:
        """From now on runs have a context of their own if they may be `apart`: entered once and for all, it takes a
        twentieth of the time. Code of others, as of extensions, is to see the context variables of whoever calls."""
        self._context = None
        if apart:
            self._context = Context()
            self._context.run(self._enter)

    def run(self, step: int, act: Callable[..., R], *args: Any) -> R:
        """What `act` returns, called with these arguments for this step."""
        run = self.under_way
        run.step = step
        run.number += 1
        if RUN.get() is run:
            return act(*args)
        if self._context is not None:
            enter_one_blas_thread()
            try:
                return self._context.run(act, *args)
            finally:
                leave_one_blas_thread()
        with (
            np.errstate(all="ignore"),
            limited(self._value_bytes),
            drawing(self._seed, step),
            one_blas_thread(),
        ):
            return act(*args)

    @contextmanager
    def between(self) -> Iterator[None]:
        """Around what belongs to no step."""
        with np.errstate(all="ignore"), limited(self._value_bytes), one_blas_thread():
            yield

    def dwell(self) -> None:
        """This thread runs nothing but this child from now on: all is entered once, for good."""
        self._enter()
        enter_one_blas_thread()

    def _enter(self) -> None:
        np.seterr(all="ignore")
        limited(self._value_bytes).__enter__()
        RUN.set(self.under_way)
