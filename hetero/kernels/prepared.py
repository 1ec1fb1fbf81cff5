"""What a kernel derives from its attributes alone, once per operation, however many shapes it is compiled for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast
from weakref import WeakValueDictionary

from hetero.program.operation import Operation

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Prepared(Generic[T]):
    """`value`, derived from `op`. Lives as long as a compiled kernel holds it."""

    op: Operation
    value: T


# By id: operations compare by identity, and an entry that lives keeps its operation, and so the id, alive.
_living: WeakValueDictionary[int, Prepared[object]] = WeakValueDictionary()


def once(op: Operation, derive: Callable[[Operation], T]) -> Prepared[T]:
    """`derive(op)`, or what it gave for this very operation while a kernel compiled from it is still there.

    One kernel family uses it per operation, with one `derive`. Raises: what `derive` raises.
    """
    found = _living.get(id(op))
    if found is None:
        found = Prepared(op, derive(op))
        _living[id(op)] = found
    return cast("Prepared[T]", found)
