"""Compiled kernels of one child, by instruction, dtypes, shapes and the values that shaped them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from hetero.kernels.base import Compiled
from hetero.types import Spec, TensorSpec

_INLINE_BYTES = 4096
"""Values up to this size take part in the key by their bytes; larger ones by identity where they are constants
(read-only; the entry keeps them alive). A kernel for a large value that is none is not kept: it would never be met
again, and would hold the value."""


class KernelCache:
    """Least recently used out first, at most `limit` entries."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[Hashable, tuple[Compiled, tuple[Spec, ...]]] = OrderedDict()
        self.passing = False
        """While set, kernels are compiled and not kept: they will not be met again."""
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, instruction: Hashable, specs: Sequence[Spec], compile: Callable[[], Compiled]) -> Compiled:
        """The kernel of `instruction` for `specs`; compiled now if it is not there."""
        if self.passing or any(map(_is_passing, specs)):
            self.misses += 1
            return compile()
        key = (instruction, tuple(specs), tuple(map(_value_key, specs)))
        entry = self._entries.get(key)
        if entry is not None:
            self.hits += 1
            self._entries.move_to_end(key)
            return entry[0]
        self.misses += 1
        compiled = compile()
        self._entries[key] = (compiled, tuple(specs))
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)
        return compiled


def _is_passing(spec: Spec) -> bool:
    """Whether the spec has a value that is too large for the key and belongs to one run."""
    if not isinstance(spec, TensorSpec) or spec.value is None:
        return False
    return (spec.value.nbytes > _INLINE_BYTES or spec.value.dtype == object) and spec.value.flags.writeable


def _value_key(spec: Spec) -> Any:
    if not isinstance(spec, TensorSpec) or spec.value is None:
        return None
    if spec.value.nbytes <= _INLINE_BYTES and spec.value.dtype != object:
        return spec.value.tobytes()
    return id(spec.value)
