"""Copies of bound state: whole, or only what has come since the copy before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hetero.errors import StateError
from hetero.runtime.state import State, StateSpec
from hetero.types import HostArray, TensorSpec

_ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """Of one state, by the name of its input: a value of this spec, `offset` bytes into the body. Where `start` is not
    0 it is the rows from there on; those before are the first ones of the copy before."""

    input: str
    spec: TensorSpec
    offset: int
    start: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class StateCopy:
    """Everything that a child keeps between steps. `specs`: with buffers as large as they have become, in the order of
    `pieces`, one for each; `body`: bytes on the host, in which these lie."""

    specs: tuple[StateSpec, ...]
    withheld: tuple[tuple[int, str], ...]
    pieces: tuple[Piece, ...]
    body: HostArray

    @property
    def whole(self) -> bool:
        """Whether it needs no copy before."""
        return not any(piece.start for piece in self.pieces)

    def values(self) -> dict[str, HostArray]:
        """Views of what is in the body, by input name."""
        return {piece.input: _view(self.body, piece) for piece in self.pieces}


def copy_of(states: Iterable[State], withheld: Iterable[tuple[int, str]], *, whole: bool = True) -> StateCopy:
    """The states as they are; unless `whole`, without rows that are as they were in the last copy, which this one is
    from now on."""
    states = list(states)
    starts = [0 if whole else state.unchanged for state in states]
    specs = {s.spec.input: (s.copied_spec(start), start) for s, start in zip(states, starts, strict=True)}
    pieces, body = _laid_out(specs)
    for state, piece in zip(states, pieces, strict=True):
        state.copy_out(_view(body, piece), piece.start)
    return StateCopy(tuple(s.sized() for s in states), tuple(sorted(withheld)), pieces, body)


def joined(copies: Sequence[StateCopy]) -> StateCopy:
    """The last of these copies, as a whole one: the first one is whole, each other goes on from the one before it.

    Raises: StateError where one does not.
    """
    last = copies[-1]
    if last.whole:
        return last
    earlier = [({p.input: p for p in c.pieces}, c.values()) for c in reversed(copies[:-1])]
    values: dict[str, HostArray] = {}
    for spec, piece, value in zip(last.specs, last.pieces, last.values().values(), strict=True):
        parts, wanted = [value], piece.start
        for pieces, found in earlier:
            if not wanted:
                break
            old, axis = pieces.get(piece.input), spec.axis or 0
            if old is None or old.start + old.spec.shape[axis] < wanted:
                raise StateError(f"a copy goes on from {wanted} rows that are not there", operand=piece.input)
            if old.start < wanted:
                rows = (*[slice(None)] * axis, slice(0, wanted - old.start))
                parts.insert(0, found[piece.input][rows])
                wanted = old.start
        if wanted:
            raise StateError(f"a copy goes on from {wanted} rows that are not there", operand=piece.input)
        values[piece.input] = np.concatenate(parts, spec.axis or 0) if len(parts) > 1 else value
    pieces_, body = _laid_out({n: (TensorSpec(v.dtype, v.shape), 0) for n, v in values.items()})
    for piece, value in zip(pieces_, values.values(), strict=True):
        _view(body, piece)[...] = value
    return StateCopy(last.specs, last.withheld, pieces_, body)


def regrouped(
    copies: Iterable[StateCopy], home: Mapping[str, int], withheld: Mapping[int, Iterable[tuple[int, str]]]
) -> dict[int, StateCopy]:
    """The states in these whole copies as copies of other children: `home`, by input name, and what each withholds.
    A state without a home is left out."""
    specs: dict[int, list[StateSpec]] = {}
    values: dict[int, dict[str, HostArray]] = {}
    for copied in copies:
        for spec, value in zip(copied.specs, copied.values().values(), strict=True):
            if (child := home.get(spec.input)) is not None:
                specs.setdefault(child, []).append(spec)
                values.setdefault(child, {})[spec.input] = value
    found = {}
    for child, theirs in values.items():
        pieces, body = _laid_out({n: (TensorSpec(v.dtype, v.shape), 0) for n, v in theirs.items()})
        for piece, value in zip(pieces, theirs.values(), strict=True):
            _view(body, piece)[...] = value
        found[child] = StateCopy(tuple(specs[child]), tuple(sorted(withheld[child])), pieces, body)
    return found


def _laid_out(specs: dict[str, tuple[TensorSpec, int]]) -> tuple[tuple[Piece, ...], HostArray]:
    """Pieces of these specs and starts, one behind the other, and a body that has room for them."""
    pieces, end = [], 0
    for name, (spec, start) in specs.items():
        pieces.append(Piece(name, spec, end, start))
        end += -(-spec.nbytes // _ALIGN_BYTES) * _ALIGN_BYTES
    return tuple(pieces), np.empty(end, np.uint8)


def _view(body: HostArray, piece: Piece) -> HostArray:
    part = body[piece.offset : piece.offset + piece.spec.nbytes]
    return part.view(piece.spec.dtype).reshape(piece.spec.shape)
