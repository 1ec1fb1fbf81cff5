"""What surrounds the runs of a child: entered in each run, or once in a context of the child's own; neither leaks."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import numpy as np
import pytest

from hetero.kernels.blas_threads import leave_one_blas_thread
from hetero.kernels.limits import _VALUE_BYTES, MAX_VALUE_BYTES
from hetero.kernels.randomness import RUN
from hetero.runtime.surroundings import Surroundings

MARK: ContextVar[str] = ContextVar("MARK", default="nobody's")


def settled(*, apart: bool) -> Surroundings:
    found = Surroundings(1 << 20, 7)
    found.settle(apart=apart)
    return found


def look(value: int) -> tuple[object, ...]:
    assert np.geterr()["divide"] == "ignore"
    return value, RUN.get().step, RUN.get().seed, _VALUE_BYTES.get(), MARK.get()


@pytest.mark.parametrize("apart", [True, False])
def test_runs_are_surrounded_and_nothing_is_left(apart: bool) -> None:
    surroundings = settled(apart=apart)
    with np.errstate(all="raise"):
        for step in (1, 2):
            assert surroundings.run(step, look, 5)[:4] == (5, step, 7, 1 << 20)
        assert np.geterr()["divide"] == "raise"
    assert (RUN.get().step, RUN.get().seed, _VALUE_BYTES.get()) == (None, 0, MAX_VALUE_BYTES)


@pytest.mark.parametrize("apart", [True, False])
def test_an_error_leaves_them_as_they_were(apart: bool) -> None:
    surroundings = settled(apart=apart)
    with pytest.raises(ZeroDivisionError):
        surroundings.run(1, lambda: 1 // 0)
    assert RUN.get().step is None
    assert surroundings.run(2, look, 5)[1] == 2


def test_code_of_others_sees_the_callers_context_variables() -> None:
    token = MARK.set("the caller's")
    try:
        assert settled(apart=False).run(1, look, 5)[4] == "the caller's"
        assert settled(apart=True).run(1, look, 5)[4] == "nobody's"
    finally:
        MARK.reset(token)


def test_several_threads_run_in_turn_in_the_same_context() -> None:
    surroundings, found = settled(apart=True), []
    for step in (1, 2):
        thread = threading.Thread(target=lambda step=step: found.append(surroundings.run(step, look, 5)[1]))
        thread.start()
        thread.join()
    assert found == [1, 2]


def test_a_thread_that_dwells_needs_no_context() -> None:
    surroundings, found = settled(apart=True), []

    def stay() -> None:
        surroundings.dwell()
        found.append(surroundings.run(3, look, 5)[:4])
        leave_one_blas_thread()  # as a thread that dwells never does

    thread = threading.Thread(target=stay)
    thread.start()
    thread.join()
    assert found == [(5, 3, 7, 1 << 20)]
