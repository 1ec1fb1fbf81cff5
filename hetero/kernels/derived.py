"""What kernels derive from weights, computed once and shared by every call bound to the same weights."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from hetero.mapped import let_go
from hetero.types import HostArray

_lock = threading.RLock()
_kept: dict[Hashable, tuple[weakref.ref[HostArray], Sequence[HostArray | None]]] = {}


def derived(
    recipe: Hashable, sources: Sequence[HostArray | None], make: Callable[[], HostArray]
) -> HostArray:
    """What `make` returns, read-only: made once for a recipe and the very memory of `sources`.

    A model runs with many shapes (a prompt, then single tokens), and each binds its own calls: dequantised weights are
    too large for one copy each. The array lives as long as a call holds it, and its sources as long as the array.
    The sources must be constant (`widen.is_constant`). Of those that lie in files, no memory is held afterwards.
    """
    key = (recipe, *(_memory(a) for a in sources))
    with _lock:
        entry = _kept.get(key)
        found = None if entry is None else entry[0]()
        if found is None:
            found = make()
            found.flags.writeable = False
            let_go(*sources)  # as a rule nobody else reads them

            def forget(dead: Any) -> None:
                with _lock:
                    entry = _kept.get(key)
                    if entry is not None and entry[0] is dead:
                        del _kept[key]

            _kept[key] = (weakref.ref(found, forget), tuple(sources))
        return found


class Keeper:
    """`derived` for one compiled kernel, which keeps the results: a step that binds anew in each run derives nothing
    anew. A kernel is of one node, so its weights are the same each time; of each recipe the latest result is kept."""

    def __init__(self) -> None:
        self._held: dict[Hashable, tuple[Sequence[HostArray | None], HostArray]] = {}

    def __call__(
        self, recipe: Hashable, sources: Sequence[HostArray | None], make: Callable[[], HostArray]
    ) -> HostArray:
        """As `derived`."""
        held = self._held.get(recipe)
        if held is not None and all(map(operator.is_, held[0], sources)):
            return held[1]
        found = derived(recipe, sources, make)
        self._held[recipe] = sources, found
        return found


def _memory(array: HostArray | None) -> Hashable:
    if array is None:
        return None
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str
