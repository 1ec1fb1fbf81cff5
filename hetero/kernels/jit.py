"""Compiled host loops: numba behind one door, and the NumPy twin for where it is missing or off."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import threading
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hetero.kernels.jit_memory import compiled_floats_at

# libgomp reads these when it loads. Threads that spin between two parallel loops starve OpenBLAS's threads: a
# Winograd convolution was measured ten times slower with the defaults.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

prange = range
"""Loop over this in a jitted function; the parallel variant runs it on threads."""


def floats_at(address: int, n: int) -> Any:
    """`n` float32 at `address` as an array over that memory, which must be aligned and outlive it. In a jitted function
    it costs nothing."""
    memory: Any = (ctypes.c_float * n).from_address(address)
    return np.ndarray((n,), np.float32, memory)


PARALLEL_ELEMENTS = 1 << 16
"""Element operations from which on a loop over threads pays for the 3 µs it takes to start them."""

_T = TypeVar("_T", bound=Callable[..., Any])
_ARGUMENT = re.compile(r"(?P<dtype>[a-z][0-9]+)(?:\[(?P<ndim>[1-9])\](?P<write>!?))?")
_CODES = {
    "f4": "float32",
    "f8": "float64",
    "i1": "int8",
    "u1": "uint8",
    "i4": "int32",
    "i8": "int64",
    "b1": "boolean",
}
_CODE_OF = {np.dtype("bool" if name == "boolean" else name): code for code, name in _CODES.items()}
_lock = threading.RLock()
_every: list[Jitted] = []


def enabled() -> bool:
    """Whether jitted functions are compiled: numba can be imported and HETERO_JIT is not 0."""
    return os.environ.get("HETERO_JIT", "1") != "0" and _numba()[0] is not None


_loaded: list[tuple[Any, bool]] = []


def _numba() -> tuple[Any, bool]:
    """numba (None where it is missing) and whether it can run threads. Imported late: that takes 0.5 s."""
    if not _loaded:
        with _lock:
            if not _loaded:
                _loaded.append(_load())
    return _loaded[0]


def _load() -> tuple[Any, bool]:
    try:
        numba = importlib.import_module("numba")
    except ImportError:
        return None, False
    try:
        # The workqueue layer may not be entered from two threads: without OpenMP loops stay on one.
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError:
        return numba, False
    numba.config.THREADING_LAYER = "omp"
    return numba, True


def inline(function: _T) -> _T:
    """Mark a scalar helper that jitted functions may call; it is compiled into them."""
    function.__jit_inline__ = True  # type: ignore[attr-defined]
    return function


def native(compiled: Callable[[Any], Any]) -> Callable[[_T], _T]:
    """Mark a helper that jitted functions may call, and that is not compiled into them: in its place they call what
    `compiled` makes of the module numba."""

    def mark(function: _T) -> _T:
        function.__jit_native__ = compiled  # type: ignore[attr-defined]
        return function

    return mark


class Jitted:
    """A function with a compiled serial variant, a compiled parallel one, and a NumPy twin.

    Each variant is compiled when it is first asked for (seconds), and cached on disk (then milliseconds).
    """

    def __init__(
        self,
        function: Callable[..., None],
        signatures: tuple[str, ...],
        twin: Callable[..., None],
        exact: bool = False,
        reorder: bool = False,
    ) -> None:
        self.function = function
        self.exact = exact
        self.reorder = reorder
        self.signatures = signatures
        self.twin = twin
        self._variants: dict[tuple[bool, str], Any] = {}
        _every.append(self)

    def compile(self) -> None:
        """Compile every variant that this machine can use, into the cache on disk."""
        for code in dict.fromkeys(s.split("[")[0] for s in self.signatures):
            for parallel in {False, _numba()[1] and "prange" in self.function.__code__.co_names}:
                self._variants.setdefault((parallel, code), self._compile(parallel, code))

    def variant(self, *arrays: Any, parallel: bool = False) -> Callable[..., None]:
        """What to call for these arrays: compiled code, or the twin where it cannot be used.

        `arrays` are those that will be passed, the function's first among them: its dtype chooses the signature. One
        that is not aligned to its items (a mapped file may hold such) goes to the twin, as do dtypes without one.
        """
        if not enabled():
            return self.twin
        for array in arrays:
            if not array.flags.aligned:
                return self.twin
        key = (parallel and _numba()[1], _CODE_OF.get(arrays[0].dtype, ""))
        found = self._variants.get(key)
        if found is None:
            with _lock:
                found = self._variants.get(key)
                if found is None:
                    found = self._variants[key] = self._compile(*key)
        return found  # type: ignore[no-any-return]

    def _compile(self, parallel: bool, code: str) -> Any:
        chosen = [s for s in self.signatures if s.startswith(f"{code}[")]
        if not chosen:
            return self.twin
        numba = _numba()[0]
        options = {
            "nogil": True,
            "parallel": parallel,
            "error_model": "numpy",
            # Multiply-adds may fuse; sums keep their order, so results do not hang on the vector width, unless the
            # function gives that up.
            "fastmath": False
            if self.exact
            else {"contract", "nsz"} | ({"reassoc"} if self.reorder else set()),
        }
        function = _rebound(self.function, numba, options | {"parallel": False})
        if parallel:  # the two variants must not share one cache file
            function.__qualname__ += "_parallel"
        function.__qualname__ += _helpers_stamp(self.function)
        signatures = [_signature(numba, s) for s in chosen]
        try:
            return numba.njit(signatures, cache=True, **options)(function)
        except RuntimeError:  # no folder to write the cache to
            return numba.njit(signatures, **options)(function)


def _helpers_stamp(function: Any) -> str:
    """What changes when a file changes from which helpers are compiled into `function`: numba looks at the function's
    own file only, and would go on using its cache. "" where there is no other file."""
    files: set[str] = set()
    todo = [function]
    while todo:
        caller = todo.pop()
        for name in caller.__code__.co_names:
            helper = caller.__globals__.get(name)
            if hasattr(helper, "__jit_native__"):
                files.add(helper.__code__.co_filename)
            elif getattr(helper, "__jit_inline__", False):
                files.add(helper.__code__.co_filename)
                todo.append(helper)
    files.discard(function.__code__.co_filename)
    text = "".join(Path(file).read_text(encoding="utf-8") for file in sorted(files))
    return f"_{zlib.crc32(text.encode()):08x}" if text else ""


def _rebound(function: Any, numba: Any, options: dict[str, Any]) -> Any:
    """The same code over globals in which `prange` is numba's, and the inline helpers it calls are compiled."""
    scope = dict(function.__globals__)
    for name in function.__code__.co_names:
        if hasattr(scope.get(name), "__jit_native__"):
            scope[name] = scope[name].__jit_native__(numba)
        elif getattr(scope.get(name), "__jit_inline__", False):
            scope[name] = numba.njit(**options)(_rebound(scope[name], numba, options))
    scope["prange"] = numba.prange
    if "floats_at" in function.__code__.co_names:
        scope["floats_at"] = compiled_floats_at(numba)
    copy = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy


def _signature(numba: Any, text: str) -> Any:
    """'f4[2], f4[2]!, i8' as a numba signature. Arrays are C-contiguous; those without '!' are only read."""
    arguments = []
    for part in text.split(","):
        match = _ARGUMENT.fullmatch(part.strip())
        assert match is not None, "jit has looked at it"
        dtype = getattr(numba.types, _CODES[match["dtype"]])
        if match["ndim"] is None:
            arguments.append(dtype)
        else:
            arguments.append(numba.types.Array(dtype, int(match["ndim"]), "C", readonly=not match["write"]))
    return numba.types.void(*arguments)


def jit(
    *signatures: str, twin: Callable[..., None], exact: bool = False, reorder: bool = False
) -> Callable[[Callable[..., None]], Jitted]:
    """Compile the decorated function for `signatures`, such as "f4[3], f4[3]!, i8" (see `_signature`).

    Their first arguments are arrays of different dtypes. `twin` does the same with NumPy alone. `exact`: every
    operation rounds by itself and keeps the sign of zero, as NumPy's do (otherwise multiply-adds may fuse). `reorder`:
    sums may be taken in the order that is fastest on this machine.
    Raises: ValueError for a signature of another form.
    """
    for signature in signatures:
        for part in signature.split(","):
            match = _ARGUMENT.fullmatch(part.strip())
            if match is None or match["dtype"] not in _CODES:
                raise ValueError(f"{part!r} is no argument of a jitted function")

    def wrap(function: Callable[..., None]) -> Jitted:
        return Jitted(function, signatures, twin, exact, reorder)

    return wrap


def compile_all() -> int:
    """Compile every jitted function that was imported, so that no step ever waits for it. Returns how many there are;
    0 where nothing is compiled."""
    if not enabled():
        return 0
    for function in _every:
        function.compile()
    return len(_every)
