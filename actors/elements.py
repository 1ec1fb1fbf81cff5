"""Sequences between children: which parcels put elements aside, and what the caller may still read of them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from actors.refs import ObjectElement
from hetero.errors import HeteroError
from hetero.planner.plan import Plan
from hetero.runtime.assignment import Task, assignment
from hetero.types import LazySequence, OptionalType, RemoteElement, SequenceType, SequenceValue, ValueType


class Elements:
    """What one executor knows of the elements of its sequences.

    `senders`: by partition, which of the parcels that it sends hold sequences; empty where none does.
    """

    def __init__(self) -> None:
        self.senders: Mapping[int, tuple[int, ...]] = {}
        self._lent: weakref.WeakSet[ObjectElement] = weakref.WeakSet()

    def lent(self, parcels: Sequence[Sequence[Any]]) -> None:
        """The caller gets these values, and may read elements of them when the node that has them now is gone."""
        if not self.senders:
            return
        for values in parcels:
            for value in values:
                if isinstance(value, LazySequence):
                    here = [e for e in value.elements if isinstance(e, ObjectElement)]
                    self._lent.update(here)
                    for bank in {id(e.bank): e.bank for e in here if e.bank is not None}.values():
                        bank.bring()

    def bring(self) -> None:
        """Have in the caller's memory what the caller still holds and has not read: the store may end now."""
        for element in list(self._lent):
            with suppress(HeteroError):  # it is lost, which whoever reads it is told
                element.fetch()


def brought(parcels: Mapping[int, Sequence[Any]]) -> Mapping[int, Sequence[Any]]:
    """The parcels with the elements of their sequences in this process."""
    for values in parcels.values():
        for value in values:
            if type(value) is not np.ndarray:
                return {k: [value_brought(v) for v in values] for k, values in parcels.items()}
    return parcels


def value_brought(value: Any) -> Any:
    """As `brought`, of one value."""
    if not isinstance(value, SequenceValue):
        return value
    return value.mapped(lambda e: e.fetch() if isinstance(e, RemoteElement) else e)


def senders_of(plan: Plan) -> dict[int, tuple[int, ...]]:
    """As `Elements.senders`."""
    tasks: dict[int, Task] = {}
    for child in plan.children:
        tasks |= assignment(plan, child).tasks
    made = (port for s in plan.sections for p in s.partitions for port in p.program.outputs)
    names = {port.name for port in made if _is_sequence(port.type)}
    found = {
        k: tuple(n for n, send in enumerate(task.sends) if not names.isdisjoint(send.values))
        for k, task in tasks.items()
    }
    return {k: sends for k, sends in found.items() if sends}


def _is_sequence(type_: ValueType | None) -> bool:
    if isinstance(type_, OptionalType):
        return _is_sequence(type_.element)
    return isinstance(type_, SequenceType)
