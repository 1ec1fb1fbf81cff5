"""What is sent again and again: messages with values like those of the step before, described once for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from actors.channels.bodies import SMALL_BYTES
from actors.channels.messages import NUMBERS, Packed, describe, described, opening
from actors.channels.wire import Encoded

Sends = Sequence[tuple[int, tuple[int, ...]]]
"""Parcels with their destinations."""
Layout = tuple[tuple[np.dtype[Any], tuple[int, ...], bytes], ...]
"""Of one parcel: each array's dtype and shape, and what stands before it in the body."""


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """The messages of one sender for small arrays of these dtypes and shapes. `opening`: of its generation. `letters`:
    for each destination what stands between numbers and bodies, and which of the parcels it gets (None: all)."""

    opening: bytes
    layouts: tuple[Layout, ...]
    letters: tuple[tuple[int, bytes, tuple[int, ...] | None], ...]

    def bodies(self, contents: Sequence[Sequence[Any]]) -> list[bytes] | None:
        """Copies of these values, a body for each parcel; None where they are not like those."""
        if len(contents) != len(self.layouts):
            return None
        bodies = []
        for layout, values in zip(self.layouts, contents, strict=True):
            if len(values) != len(layout):
                return None
            pieces = []
            for value, (dtype, shape, gap) in zip(values, layout, strict=True):
                if value.__class__ is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                    return None
                if not value.flags.c_contiguous:
                    return None
                if gap:
                    pieces.append(gap)
                pieces.append(value.tobytes())
            bodies.append(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return bodies

    def messages(self, step: int, attempt: int, bodies: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
        """For each destination its message, as `actors.channels.messages.write` writes it."""
        begin = self.opening + NUMBERS.pack(step, attempt)
        for to, description, which in self.letters:
            chosen = bodies if which is None else [bodies[k] for k in which]
            yield to, b"".join((begin, description, *chosen))


class Steady:
    """The outlines of one sender. One is made when values of the same dtypes and shapes come twice in a row: where
    shapes are always new, it would never be used. Thread-safe."""

    def __init__(self, generation: int, sender: int, sends: Sends, destinations: Sequence[int] = ()) -> None:
        """`sender`: a partition, or CALLER. `destinations`: to whom a message goes even if it holds no parcel."""
        self._opening = opening(generation)
        self._sender, self._sends, self._destinations = sender, sends, destinations
        self.outlines: dict[str, Outline] = {}
        """The latest of each graph slot."""
        self._before: dict[str, list[Any]] = {}

    def sent(self, graph_slot: str, contents: Sequence[Sequence[Any]], encoded: Sequence[Encoded]) -> None:
        """These values, encoded so, are sent without an outline."""
        if any(e.nbytes > SMALL_BYTES for e in encoded):
            return
        specs = [e.specs for e in encoded]
        if self._before.get(graph_slot) == specs:
            outline = self._outline(graph_slot, contents, encoded)
            if outline is not None:
                self.outlines[graph_slot] = outline
        else:
            self._before[graph_slot] = specs

    def _outline(
        self, graph_slot: str, contents: Sequence[Sequence[Any]], encoded: Sequence[Encoded]
    ) -> Outline | None:
        layouts, packed = [], []
        for (parcel, _), values, each in zip(self._sends, contents, encoded, strict=True):
            layout = _layout(values, each)
            if layout is None:
                return None
            layouts.append(layout)
            packed.append(Packed(parcel, each.specs, each.nbytes, body=b""))
        which: dict[int, list[int]] = {to: [] for to in self._destinations}
        for k, (_, destinations) in enumerate(self._sends):
            for destination in destinations:
                which.setdefault(destination, []).append(k)
        partition = self._sender
        letters = tuple(
            (
                to,
                described(describe(graph_slot, partition, [packed[k] for k in ks])),
                None if len(ks) == len(packed) else tuple(ks),
            )
            for to, ks in which.items()
        )
        return Outline(self._opening, tuple(layouts), letters)


def _layout(values: Sequence[Any], encoded: Encoded) -> Layout | None:
    """None where they are not small arrays, each once, that travel as they lie."""
    if not 0 < encoded.nbytes <= SMALL_BYTES or len({id(v) for v in values}) < len(values):
        return None
    layout, end = [], 0
    for value, spec in zip(values, encoded.specs, strict=True):
        if type(value) is not np.ndarray or value.dtype.kind == "O" or not value.dtype.isnative:
            return None
        if not value.flags.c_contiguous:
            return None
        layout.append((value.dtype, value.shape, bytes(spec[3] - end)))
        end = spec[3] + value.nbytes
    return tuple(layout)
