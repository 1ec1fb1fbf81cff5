"""BLAS without threads of its own: they would wait actively for the next product on the cores that ours need.

OpenBLAS's threads yield in a loop for some 20 ms after each product, and starve OpenMP's that wait for the next loop: a
convolution was measured ten times slower. So while a child runs, NumPy's BLAS has one thread, and the threads are those
of compiled loops. Where no loops are compiled, BLAS keeps its threads.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from functools import cache
from typing import Any, Protocol, cast

from hetero.kernels.jit import enabled
from hetero.kernels.jit_runtime import has_pool

_lock = threading.Lock()
_held: list[tuple[_Count, int]] = []
"""While somebody is inside: what the caller had set."""
_inside = 0


class _Count(Protocol):
    """A number of threads, to read and to set."""

    value: int


class one_blas_thread:  # noqa: N801 - as `limits.limited`
    """In the block BLAS computes on the thread that calls it, in the whole process; afterwards on as many as before,
    once all threads have left."""

    __slots__ = ()

    def __enter__(self) -> None:
        enter_one_blas_thread()

    def __exit__(self, *error: object) -> None:
        leave_one_blas_thread()


def enter_one_blas_thread() -> None:
    """As `one_blas_thread`, for whoever calls `leave_one_blas_thread` in any case: every run does, and a with statement
    takes half as long again."""
    global _inside
    with _lock:
        if not _inside:
            for count in _counts():
                before = count.value
                if before != 1:
                    _held.append((count, before))
                    count.value = 1
        _inside += 1


def leave_one_blas_thread() -> None:
    """The end of what `enter_one_blas_thread` began."""
    global _inside
    with _lock:
        _inside -= 1
        if not _inside:
            while _held:
                count, before = _held.pop()
                count.value = before


@cache
def _counts() -> tuple[_Count, ...]:
    """The number of threads of NumPy's BLAS: OpenBLAS's own variable where it is to be seen, since its function for
    that frees and takes buffers (10 µs); else what threadpoolctl finds, of each library. None where our loops have no
    threads."""
    if not (enabled() and has_pool()):
        return ()
    try:
        numpy = ctypes.CDLL(importlib.import_module("numpy._core._multiarray_umath").__file__)
        count = ctypes.c_int.in_dll(numpy, "blas_cpu_number")  # in a library that NumPy's needs
        if count.value >= 1:
            return (cast("_Count", count),)
    except (ImportError, OSError, ValueError):
        pass  # another NumPy, or another BLAS
    controller = importlib.import_module("threadpoolctl").ThreadpoolController()
    return tuple(_Library(each) for each in controller.select(user_api="blas").lib_controllers)


class _Library:
    """A library of threadpoolctl's as a count."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller

    @property
    def value(self) -> int:
        return int(self._controller.get_num_threads() or 1)

    @value.setter
    def value(self, count: int) -> None:
        if count != self.value:
            self._controller.set_num_threads(count)
