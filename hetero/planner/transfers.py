"""Transfers: which values leave a partition, and how each reaches every child that reads it exactly once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero.planner.graph import PlanGraph
from hetero.planner.plan import CALLER, Parcel, Transfer
from hetero.types import DataType, TensorType, ValueType, numpy_dtype


@dataclass(frozen=True, slots=True)
class Boundary:
    """What a partition on `child` takes (in order of first use) and leaves for others (in order of
    production)."""

    child: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...] = ()


def boundaries(graph: PlanGraph, groups: Sequence[Sequence[int]], children: Sequence[int]) -> list[Boundary]:
    """The boundary of each group of nodes. An output is a value that another group reads or that the graph
    returns."""
    group_of = [0] * len(graph.nodes)
    for index, group in enumerate(groups):
        for node in group:
            group_of[node] = index
    home = {n: group_of[i] for n, i in graph.producers().items()}
    leaving = {name for name in graph.outputs if name in home}
    taken: list[dict[str, None]] = [{} for _ in groups]
    held: list[dict[str, None]] = [{} for _ in groups]
    for index, group in enumerate(groups):
        for node in group:
            for name in graph.nodes[node].inputs:
                if not name:
                    continue
                source = home.get(name)
                if source == index:
                    continue
                if source is None and name in graph.constants:
                    held[index][name] = None
                    continue
                taken[index][name] = None
                if source is not None:
                    leaving.add(name)
    return [
        Boundary(
            children[group[0]],
            tuple(taken[index]),
            tuple(n for node in group for n in graph.nodes[node].outputs if n in leaving),
            tuple(held[index]),
        )
        for index, group in enumerate(groups)
    ]


def plan_transfers(
    partitions: Sequence[Boundary],
    inputs: Sequence[str],
    outputs: Sequence[str],
    types: Mapping[str, ValueType | None],
) -> tuple[tuple[Parcel, ...], tuple[Transfer, ...]]:
    """Parcels and transfers between partitions (in topological order), the caller's included.

    A value moves once to each child that reads it, however many partitions there do, and never to where it
    was made. Values of one producer that go to the same places make one parcel. A graph output that no
    partition computes (a graph input or an initializer returned as it is) is in no parcel: whoever drives the
    plan answers a name of Plan.outputs that no partition's program produces from the feeds, else from the
    model's weights.
    """
    producer: dict[str, int] = dict.fromkeys(inputs, CALLER)
    for index, part in enumerate(partitions):
        producer.update(dict.fromkeys(part.outputs, index))
    destinations: dict[str, set[int]] = {name: set() for name in producer}
    for part in partitions:
        for name in part.inputs:
            destinations[name].add(part.child)
    for index, part in enumerate(partitions):
        for name in part.outputs:
            destinations[name].discard(partitions[index].child)
    for name in outputs:
        if producer.get(name, CALLER) != CALLER:
            destinations[name].add(CALLER)

    together: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for name, source in producer.items():
        if destinations[name]:
            together.setdefault((source, tuple(sorted(destinations[name]))), []).append(name)
    parcels = tuple(
        Parcel(number, source, tuple(names), places)
        for number, ((source, places), names) in enumerate(sorted(together.items()))
    )
    return parcels, transfers_of(parcels, [p.child for p in partitions], types)


def transfers_of(
    parcels: Sequence[Parcel], children: Sequence[int], types: Mapping[str, ValueType | None]
) -> tuple[Transfer, ...]:
    """What the parcels move, value by value and destination by destination; `children` gives each partition's child."""
    return tuple(
        Transfer(
            name,
            CALLER if parcel.producer == CALLER else children[parcel.producer],
            place,
            types.get(name),
            static_bytes(types.get(name)),
        )
        for parcel in parcels
        for name in parcel.values
        for place in parcel.destinations
    )


def static_bytes(type_: ValueType | None) -> int | None:
    """Bytes of a tensor as NumPy stores it; None for strings, sequences and while an extent is not known."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    if type_.dtype is None or type_.dtype in (DataType.STRING, DataType.UNDEFINED):
        return None
    if not all(isinstance(d, int) for d in type_.shape):
        return None
    return math.prod(d for d in type_.shape if isinstance(d, int)) * numpy_dtype(type_.dtype).itemsize
