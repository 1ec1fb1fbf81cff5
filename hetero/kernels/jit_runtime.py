"""What compiled code calls besides itself: the C library, Python's C interface, and numba's own C functions, found in
the extension modules that numba consists of. The package numba, which takes half a second, is not imported for that."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from collections.abc import MutableMapping
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from typing import Any

_FROM_C = frozenset({"log10", "memcpy", "memmove", "memset", "printf"})
_THREADS = frozenset(
    {
        *(
            "allocate_sched",
            "deallocate_sched",
            "do_scheduling_signed",
            "do_scheduling_unsigned",
            "get_sched_size",
        ),
        *("get_num_threads", "get_parallel_chunksize", "set_parallel_chunksize", "numba_parallel_for"),
    }
)
_lock = threading.Lock()

SPINS = 3000
"""How often a thread of ours looks for its next loop before it sleeps: some tens of microseconds, about what a step
spends between two loops on threads. To wake a sleeping thread takes 10 µs and more, of a loop that takes 50. With
10,000 and more, threads that find no free core (children that share a machine) waste more than they win. BLAS's own
threads, which such waiting would starve, are not used (`blas_threads`)."""


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads wait actively for a short while, unless the user has said how they should. libgomp reads the
    environment once, when it is loaded."""
    if environment.keys().isdisjoint(("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")):
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
        environment["GOMP_SPINCOUNT"] = str(SPINS)


wait_briefly(os.environ)


@cache
def address(name: str) -> int:
    """Where a function (or a variable of Python's) that compiled code refers to lies. Raises: KeyError."""
    try:
        if name in _FROM_C or name.startswith(("Py", "_Py")):
            return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, name))
        if name in _THREADS:
            return int(getattr(_pool(), name.removeprefix("numba_")))
        if name.startswith("numba_"):
            return int(_extension("_helperlib").c_helpers[name.removeprefix("numba_")])
        if name.startswith("NRT_"):
            return int(_extension("core.runtime._nrt_python").c_helpers[name.removeprefix("NRT_")])
    except (ValueError, AttributeError, ImportError, OSError) as error:
        raise KeyError(name) from error
    raise KeyError(name)


def pool_size() -> int:
    """How many threads loops may run on at most: numba's own setting, or all processors that this process may use."""
    theirs = getattr(sys.modules.get("numba.core.config"), "NUMBA_NUM_THREADS", None)
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return int(theirs or os.environ.get("NUMBA_NUM_THREADS") or usable or 1)


@cache
def has_pool() -> bool:
    """Whether there are threads that two of ours may use at once: OpenMP's. numba's other pools are not like that."""
    try:
        _extension("np.ufunc.omppool")
    except (ImportError, OSError):
        return False
    return True


def limit_threads(count: int) -> None:
    """Let loops that this thread starts run on at most `count` threads."""
    if (_begun or "numba" in sys.modules) and has_pool():
        ctypes.CFUNCTYPE(None, ctypes.c_int)(_pool().set_num_threads)(min(count, pool_size()))
    else:
        os.environ["NUMBA_NUM_THREADS"] = str(count)


_begun: list[Any] = []


def _pool() -> Any:
    """The pool's module, its threads begun. Raises: ImportError."""
    if not _begun:
        pool = _extension("np.ufunc.omppool")
        ctypes.CFUNCTYPE(None, ctypes.c_int)(pool.launch_threads)(pool_size())
        _begun.append(pool)
    return _begun[0]


@cache
def _extension(name: str) -> Any:
    """An extension module of numba's, by itself. Raises: ImportError."""
    full = f"numba.{name}"
    with _lock:
        if full in sys.modules:
            return sys.modules[full]
        found = importlib.util.find_spec("numba")
        if found is None or not found.submodule_search_locations:
            raise ImportError("numba is not there")
        stem = Path(found.submodule_search_locations[0], *name.split("."))
        files = (stem.with_name(stem.name + suffix) for suffix in EXTENSION_SUFFIXES)
        path = next((str(file) for file in files if file.exists()), None)
        if path is None:
            raise ImportError(f"{full} is not where it was")
        spec = importlib.util.spec_from_file_location(full, path, loader=ExtensionFileLoader(full, path))
        assert spec is not None, "it has a loader"
        assert spec.loader is not None, "it has a loader"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules.pop(full, None)  # numba, if it is imported after all, imports it for itself
        return module
