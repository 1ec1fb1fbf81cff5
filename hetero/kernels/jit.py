"""Compiled host loops: numba behind one door, and the NumPy twin for where it is missing or off."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import threading
import types
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hetero.kernels import jit_memory, jit_store
from hetero.kernels.jit_call import Native, words_of
from hetero.kernels.jit_runtime import address, has_pool, pool_size
from hetero.kernels.jit_signature import CODE_OF, operands_of
from hetero.kernels.machine_code import UnfitError, image_of, load

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
_lock = threading.RLock()
_every: list[Jitted] = []


def enabled() -> bool:
    """Whether jitted functions are compiled: numba is installed and HETERO_JIT is not 0."""
    return os.environ.get("HETERO_JIT", "1") != "0" and _installed()


@cache
def _installed() -> bool:
    """Whether numba is there. It is not imported: that takes 0.5 s, and what is in the store is called without it."""
    return importlib.util.find_spec("numba") is not None


@cache
def _numba() -> Any:
    """numba, for what is not compiled yet; None where it cannot be imported."""
    try:
        numba = importlib.import_module("numba")
    except ImportError:
        return None
    if has_pool():
        numba.config.THREADING_LAYER = "omp"
    return numba


def _threads() -> bool:
    """Whether loops may run on more than one thread. Pools other than OpenMP's may not be entered from two threads:
    with those, loops stay on one."""
    return pool_size() > 1 and has_pool()


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

    Each variant is compiled when it is first asked for (seconds), and cached on disk: by numba, and as an image, which
    takes less than a millisecond to load, and no numba.
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
        """Compile every variant that this machine can use, into the caches on disk."""
        for key in self._useful():
            self._get(*key)

    def load(self) -> None:
        """Load every variant that has been compiled before."""
        with _lock:
            for key in self._useful() - self._variants.keys():
                found = self._stored(*key)
                if found is not None:
                    self._variants[key] = found

    def _useful(self) -> set[tuple[bool, str]]:
        """(parallel, first dtype) of the variants that this machine can use."""
        both = {False, _threads() and "prange" in self.function.__code__.co_names}
        return {(parallel, s.split("[")[0]) for parallel in both for s in self.signatures}

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
        return self._get(parallel and _threads(), CODE_OF.get(arrays[0].dtype, ""))

    def _get(self, parallel: bool, code: str) -> Callable[..., None]:
        key = (parallel, code)
        found = self._variants.get(key)
        if found is None:
            with _lock:
                found = self._variants.get(key)
                if found is None:
                    found = self._variants[key] = self._made(*key)
        return found  # type: ignore[no-any-return]

    def _made(self, parallel: bool, code: str) -> Any:
        found = self._stored(parallel, code)
        if found is not None:
            return found
        chosen = self._chosen(code)
        if not chosen:
            return self.twin
        compiled = self._compiled(parallel, chosen)
        if len(chosen) > 1 or compiled is self.twin:
            return compiled
        operands = operands_of(chosen[0])
        try:
            image = image_of(*_object_of(compiled), words_of(operands), address)
            jit_store.write(*self._place(parallel, chosen[0]), image)
            return Native(load(image, address), operands)
        except (UnfitError, OSError):
            return compiled

    def _stored(self, parallel: bool, code: str) -> Native | None:
        """A variant from the store; None where it is not there, or not of this source, machine and numba."""
        chosen = self._chosen(code)
        image = jit_store.read(*self._place(parallel, chosen[0])) if len(chosen) == 1 else None
        if image is None:
            return None
        try:
            return Native(load(image, address), operands_of(chosen[0]))
        except (UnfitError, OSError):
            return None

    def _chosen(self, code: str) -> list[str]:
        """The signatures whose first array is of this dtype."""
        return [s for s in self.signatures if s.startswith(f"{code}[")]

    def _place(self, parallel: bool, signature: str) -> tuple[str, str, str]:
        """Where the store has a variant: a name, the source file, and what the source must be."""
        name = self.function.__qualname__.replace("<locals>.", "")
        kind = signature.split("[")[0] + (".parallel" if parallel else "")
        file = self.function.__code__.co_filename
        files = {file, jit_memory.__file__, *_helper_files(self.function)}
        return f"{name}.{kind}", file, jit_store.stamp_of(files, signature, *self._flags())

    def _flags(self) -> list[str]:
        """What numba is told besides the signature."""
        if self.exact:
            return []
        return ["contract", "nsz", *(["reassoc"] if self.reorder else [])]

    def _compiled(self, parallel: bool, chosen: Sequence[str]) -> Any:
        """numba's function, or the twin where numba cannot be imported after all."""
        numba = _numba()
        if numba is None:
            return self.twin
        options = {
            "nogil": True,
            "parallel": parallel,
            "error_model": "numpy",
            # Multiply-adds may fuse; sums keep their order, so results do not hang on the vector width, unless the
            # function gives that up.
            "fastmath": set(self._flags()),
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


def _helper_files(function: Any) -> set[str]:
    """The files of the helpers that are compiled into `function`, but for its own."""
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
    return files


def _helpers_stamp(function: Any) -> str:
    """What changes when a file changes from which helpers are compiled into `function`: numba looks at the function's
    own file only, and would go on using its cache. "" where there is no other file."""
    text = "".join(Path(file).read_text(encoding="utf-8") for file in sorted(_helper_files(function)))
    return f"_{zlib.crc32(text.encode()):08x}" if text else ""


def _object_of(compiled: Any) -> tuple[bytes, str]:
    """The object code of a function that numba has just compiled, or found in its cache, and its name there.

    numba keeps it nowhere but in that cache. Raises: UnfitError where it is not there.
    """
    try:
        (result,) = compiled.overloads.values()
        cache = compiled._cache
        key = cache._index_key(result.signature, compiled.targetctx.codegen())
        _, kind, (code, _) = cache._cache_file.load(key)[0]
    except Exception as error:  # nothing there, or another numba keeps it another way
        raise UnfitError("numba has no object code of it in its cache") from error
    if kind != "object":
        raise UnfitError("numba has cached it in another form")
    return code, result.fndesc.llvm_func_name


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
        scope["floats_at"] = jit_memory.compiled_floats_at(numba)
    copy = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy


def _signature(numba: Any, text: str) -> Any:
    """'f4[2], f4[2]!, i8' as a numba signature. Arrays are C-contiguous; those without '!' are only read."""
    return numba.types.void(*(operand.numba_type(numba) for operand in operands_of(text)))


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
        operands_of(signature)

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


def load_compiled() -> None:
    """Load every variant of every jitted function that was imported, as far as they have been compiled before."""
    if enabled():
        for function in _every:
            function.load()
