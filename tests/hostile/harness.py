"""What every damaged model must do: run, or be refused by an error of ours that says where; and leave no trace."""

from __future__ import annotations

import resource
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hetero import HeterogeneousExecutor
from hetero.errors import HeteroError
from hetero.executor import ModelLike
from hetero.options import RuntimeOptions
from hetero.types import SequenceValue

PROVIDERS: tuple[list[str], ...] = (["cpu"], ["sim:0", "cpu"])
BOUND_BYTES = 64 << 20
"""What a single value may take in these tests: a declared size that is not held against it is seen by `bounded`."""
OPTIONS = RuntimeOptions(max_value_bytes=BOUND_BYTES)
_PEAK_BYTES = 6 * BOUND_BYTES


def executor(model: ModelLike, providers: Sequence[str]) -> HeterogeneousExecutor:
    """An inline executor under OPTIONS."""
    return HeterogeneousExecutor(model, providers=list(providers), children="inline", options=OPTIONS)


@contextmanager
def bounded() -> Iterator[None]:
    """No warning, and no more memory at any time than a few values at the bound.

    Judged by the process's high-water mark: tracing every allocation would make compiling kernels take minutes.
    """
    before = _peak_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    grown = _peak_bytes() - before
    assert grown < _PEAK_BYTES, f"{grown} bytes more were in use"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def outcome(ex: HeterogeneousExecutor, feeds: Mapping[str, Any]) -> dict[str, Any] | HeteroError:
    """What a run gives, or the error of ours it raises; any other exception passes."""
    try:
        return ex.run(feeds)
    except HeteroError as error:
        return error


def same_bits(a: Any, b: Any) -> bool:
    """Whether two values are of the same types, shapes and bits."""
    if isinstance(a, SequenceValue):
        return isinstance(b, SequenceValue) and len(a) == len(b) and all(map(same_bits, list(a), list(b)))
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes())


def same_outcome(a: dict[str, Any] | HeteroError, b: dict[str, Any] | HeteroError) -> bool:
    """Whether both runs gave the same bits, or were refused alike."""
    if isinstance(a, HeteroError) or isinstance(b, HeteroError):
        return type(a) is type(b)
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)
