"""Initializers for actors: parts of files that every child of the machine maps; elsewhere, and where there are no
files, objects of the store, each put once and mapped by every child of a node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray.exceptions as rex

from actors.arrivals import InFiles, NotHereError
from actors.parcels import Wire, pack
from actors.spool import Spool
from hetero.errors import ProgramError
from hetero.mapped import FileRange, range_of
from hetero.model.weights import Weights
from hetero.runtime.child import value_bytes
from hetero.types import HostArray, TensorSpec

log = logging.getLogger("hetero.weights")

LARGE_BYTES = 1 << 20
"""A weight from this size on is an object of its own."""
GROUP_BYTES = 64 << 20
"""Where a group of smaller ones is cut."""
SPOOL_BYTES = 1 << 20
"""Of all weights, from which on those in the driver's memory are written to a file."""


class SharedWeights:
    """Where children find their initializers.

    The driver must keep this for as long as children are started: Ray does not pin an actor's arguments, and an unnamed
    file is opened through the process that holds it. `stored` and `mapped`: groups of names, and who needs them.
    """

    def __init__(
        self,
        needed: Mapping[int, Sequence[str]],
        weights: Mapping[str, HostArray],
        put: Callable[[Wire], Any],
        *,
        map_files: bool = True,
    ) -> None:
        """`put` stores one wire form and returns its reference. Raises: ProgramError for a weight that is missing."""
        self._weights, self._put, self._map_files = weights, put, map_files
        self._spools: list[Spool] = []
        self._elsewhere: set[int] = set()
        self.refs: dict[tuple[str, ...], Any] = {}
        """Of the groups that were put, by their names."""
        self.need(needed)

    def need(self, needed: Mapping[int, Sequence[str]]) -> None:
        """From now on children need these. Raises: ProgramError for a weight that is missing."""
        weights = self._weights
        names = list(dict.fromkeys(n for each in needed.values() for n in each))
        missing = sorted(set(names) - set(weights))
        if missing:
            raise ProgramError(f"no weights given for {missing[:5]}")
        if self._map_files and (spool := _spooled(names, weights)) is not None:
            self._spools.append(spool)
        self._files = _files(names, weights) if self._map_files else {}
        sizes = {n: value_bytes(weights[n]) for n in names}
        self.stored, self.mapped = (
            group_weights(
                {c: [n for n in each if (n in self._files) is there] for c, each in needed.items()}, sizes
            )
            for there in (False, True)
        )
        groups = [group for group, _ in (*self.stored, *self.mapped)]
        self.refs = {group: ref for group, ref in self.refs.items() if group in groups}
        for group, _ in self.stored:
            self._ref(group)

    def of(self, child: int) -> tuple[tuple[tuple[str, ...], ...], tuple[Any, ...]]:
        """(names, what the actor gets) of the groups that a child needs, in step with each other."""
        names = [[group for group, who in groups if child in who] for groups in (self.stored, self.mapped)]
        found = [self._ref(group) for group in names[0]]
        found += [self._ref(g) if child in self._elsewhere else self._in_files(g) for g in names[1]]
        return tuple(names[0] + names[1]), tuple(found)

    def cannot_map(self, child: int, error: BaseException) -> bool:
        """Whether an actor of this child failed because it could not reach the files. If so, it is to be prepared once
        more, from objects."""
        root = error.cause if isinstance(error, rex.RayTaskError) else error
        if not isinstance(root, NotHereError) or child in self._elsewhere:
            return False
        log.info("child %d gets its weights from the object store: %s", child, root.message)
        self._elsewhere.add(child)
        return True

    def _ref(self, group: tuple[str, ...]) -> Any:
        if group not in self.refs:
            self.refs[group] = self._put(pack([self._weights[name] for name in group]))
        return self.refs[group]

    def _in_files(self, group: tuple[str, ...]) -> InFiles:
        arrays = [self._weights[name] for name in group]
        specs = tuple(TensorSpec(a.dtype, a.shape) for a in arrays)
        return InFiles(tuple(self._files[name] for name in group), specs)


def _spooled(names: Sequence[str], weights: Mapping[str, HostArray]) -> Spool | None:
    """Move what lies in this process's memory to a file, as far as there is room; what holds the file."""
    if not isinstance(weights, Weights):
        return None
    nbytes = sum(weights.tensor(name).nbytes for name in names)
    if nbytes < SPOOL_BYTES:
        return None
    spool: Spool | None = None
    for name in names:
        array = weights[name]
        if array.dtype.kind == "O" or not array.nbytes or range_of(array) is not None:
            continue
        try:
            spool = spool or Spool(nbytes)
            load = spool.add(array)
        except OSError as error:
            log.info("weights stay in memory: %s", error)
            break
        del array
        weights.move(name, load)
    return spool


def _files(names: Sequence[str], weights: Mapping[str, HostArray]) -> dict[str, FileRange]:
    """Where weights lie that lie in files."""
    found = {name: range_of(weights[name]) for name in names}
    return {name: place for name, place in found.items() if place is not None}


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
