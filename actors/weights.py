"""Initializers for actors: each put into the object store once, and mapped by every child of a node that needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actors.parcels import Wire, pack
from hetero.errors import ProgramError
from hetero.runtime.child import value_bytes
from hetero.types import HostArray

LARGE_BYTES = 1 << 20
"""A weight from this size on is an object of its own."""
GROUP_BYTES = 64 << 20
"""Where a group of smaller ones is cut."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedWeights:
    """Objects of the driver that hold initializers, and who needs which.

    The driver must keep this for as long as the children live: an actor's arguments are not pinned by Ray.
    `children[c]`: indices into `names` and `refs`.
    """

    names: tuple[tuple[str, ...], ...]
    refs: tuple[Any, ...]
    children: Mapping[int, tuple[int, ...]]
    nbytes: int

    def of(self, child: int) -> tuple[tuple[tuple[str, ...], ...], tuple[Any, ...]]:
        """(names, references) of the objects that a child needs, in step with each other."""
        mine = self.children[child]
        return tuple(self.names[k] for k in mine), tuple(self.refs[k] for k in mine)


def group_weights(
    needed: Mapping[int, Sequence[str]], sizes: Mapping[str, int]
) -> list[tuple[tuple[str, ...], frozenset[int]]]:
    """Which initializers share an object, and who needs it: pure. `needed`: per child; `sizes`: bytes by name.

    A child never gets an object with a weight that it does not need.
    """
    users: dict[str, set[int]] = {}
    for child, names in needed.items():
        for name in names:
            users.setdefault(name, set()).add(child)
    objects: list[tuple[tuple[str, ...], frozenset[int]]] = []
    small: dict[frozenset[int], list[str]] = {}
    filled: dict[frozenset[int], int] = {}
    for name, children in users.items():
        who, size = frozenset(children), sizes[name]
        if size >= LARGE_BYTES:
            objects.append(((name,), who))
            continue
        if filled.get(who, 0) + size > GROUP_BYTES:
            objects.append((tuple(small.pop(who)), who))
            filled[who] = 0
        small.setdefault(who, []).append(name)
        filled[who] = filled.get(who, 0) + size
    objects.extend((tuple(names), who) for who, names in small.items())
    return objects


def share_weights(
    needed: Mapping[int, Sequence[str]], weights: Mapping[str, HostArray], put: Callable[[Wire], Any]
) -> SharedWeights:
    """Put the initializers that children need; `put` stores one wire form and returns its reference.

    Raises: ProgramError for one that is missing.
    """
    missing = sorted({n for names in needed.values() for n in names} - set(weights))
    if missing:
        raise ProgramError(f"no weights given for {missing[:5]}")
    sizes = {name: value_bytes(weights[name]) for names in needed.values() for name in names}
    objects = group_weights(needed, sizes)
    refs = tuple(put(pack([weights[name] for name in names])) for names, _ in objects)
    return SharedWeights(
        tuple(names for names, _ in objects),
        refs,
        {child: tuple(k for k, (_, who) in enumerate(objects) if child in who) for child in needed},
        sum(sizes.values()),
    )
