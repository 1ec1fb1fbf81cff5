"""What a body gave last time, kept while it is certain that it would give the same again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.program.program import Dispatch, Program
from hetero.providers.base import Provider
from hetero.providers.lookup import find
from hetero.types import STRING, HostArray, SequenceValue

_PATIENCE = 8
"""Misses in a row after which a body is taken to see new values all the time."""
_REST = 64
"""Runs without a look at the memo, after that."""


def deterministic(program: Program) -> bool:
    """Whether equal inputs surely give equal outputs: kernels of ours that draw nothing, bodies included."""
    for instruction in program.instructions:
        if instruction.dispatch is Dispatch.EXTENSION:
            return False
        if instruction.dispatch is Dispatch.CONTROL:
            if not all(map(deterministic, instruction.op.bodies().values())):
                return False
            continue
        definition = find(instruction.op)
        if definition is None or not definition.deterministic:
            return False
    return True


class Memo:
    """The last results, and copies of what they came from.

    Inputs that are not constant (`constants`: positions) are compared byte by byte with copies, since their memory may
    be written by others between two runs; so only small host arrays take part. Results on the host are kept as copies
    and given out as copies: a result may share memory with an input, and its receiver may write it. `limit_bytes`
    bounds what is copied of the inputs, and of the results.
    """

    def __init__(self, provider: Provider, constants: frozenset[int], limit_bytes: int) -> None:
        self._on_host = provider.is_host
        self._constants = constants
        self._limit_bytes = limit_bytes
        self._branch = ""
        self._inputs: list[HostArray | None] = []
        self._results: list[Any] | None = None
        self._misses = 0
        self._resting = 0

    def recall(self, branch: str, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        """The results, where `branch` gave them for these very inputs."""
        if self._resting:
            self._resting -= 1
            return None
        if self._results is None:
            return None
        if branch == self._branch and all(
            k in self._constants or _equal(given, kept)
            for k, (given, kept) in enumerate(zip(inputs, self._inputs, strict=True))
        ):
            self._misses = 0
            return tuple(self._copies(self._results))
        self._results = None
        self._misses += 1
        if self._misses == _PATIENCE:
            self._misses, self._resting = 0, _REST
        return None

    def remember(self, branch: str, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Keep what came of a run, where it may be kept."""
        if self._resting:
            return
        moving = [None if k in self._constants else x for k, x in enumerate(inputs)]
        comparable = all(x is None or isinstance(x, np.ndarray) for x in moving)
        if not comparable or not self._small(moving) or not self._small(results):
            return
        self._branch = branch
        self._inputs = [None if x is None else x.copy() for x in moving]
        self._results = self._copies(results)

    def _small(self, values: Sequence[Any]) -> bool:
        total = 0
        for value in values:
            if isinstance(value, SequenceValue) or (value is not None and value.dtype == STRING):
                return False
            total += 0 if value is None else math.prod(value.shape) * value.dtype.itemsize
        return total <= self._limit_bytes

    def _copies(self, values: Sequence[Any]) -> list[Any]:
        return [v.copy() if self._on_host and v is not None else v for v in values]


def _equal(given: Any, kept: HostArray | None) -> bool:
    """Whether both are nothing, or arrays of the same bytes."""
    if given is None or kept is None:
        return given is kept
    return bool(given.dtype == kept.dtype and given.shape == kept.shape and given.tobytes() == kept.tobytes())
