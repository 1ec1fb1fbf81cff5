"""Random damage at three doors (nodes and feeds, model protobufs and bytes, plans): sound results, or errors of ours.

Every example is drawn from its number alone. A find becomes a named test beside the code that it was in.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero.errors import HeteroError, PlanError
from hetero.model import load_model
from hetero.planner.codec import MAGIC
from hetero.planner.plan import CALLER, Plan
from hetero.planner.planner import plan_model
from hetero.program.packing import dumps, loads
from hetero.providers.registry import create, resolve
from hetero.runtime.children import InlineChildren
from tests.hostile import mutate
from tests.hostile.harness import OPTIONS, PROVIDERS, bounded, executor, outcome, same_outcome
from tests.hostile.seeds import Seed, graphs, nodes

NUMBERS = st.integers(0, 2**32 - 1)
FEW = settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def run_damaged_node(number: int) -> None:
    """A node or what it is fed, changed; then the sound feeds again on the same executor."""
    r = random.Random(number)
    seed = r.choice(nodes())
    model, feeds = seed.proto(), dict(seed.feeds)
    changes_node = r.random() < 0.5
    if changes_node:
        mutate.node(r, model.graph.node[0])
    if not changes_node or r.random() < 0.2:
        name = r.choice(sorted(feeds))
        feeds[name] = mutate.array(r, feeds[name])
    with bounded():
        try:
            ex = executor(model, r.choice(PROVIDERS))
        except HeteroError:
            return
        with ex:
            _twice(ex, feeds, seed)
            again = outcome(ex, seed.feeds)
            assert changes_node or not isinstance(again, HeteroError), again


def _twice(ex: Any, feeds: Mapping[str, Any], seed: Seed) -> None:
    before = {k: v.tobytes() for k, v in feeds.items() if v.dtype != object}
    first, second = outcome(ex, feeds), outcome(ex, feeds)
    assert seed.drawn or same_outcome(first, second), "two runs differ: memory that nobody wrote was read"
    assert before == {k: v.tobytes() for k, v in feeds.items() if v.dtype != object}, "a feed was written"


@FEW
@given(NUMBERS)
def test_a_damaged_node_runs_or_is_refused(number: int) -> None:
    run_damaged_node(number)


def run_damaged_model(number: int) -> None:
    """A model's protobuf with one to three fields changed, from the proto or its bytes; planned, then run."""
    r = random.Random(number)
    seed = r.choice((*graphs(), *graphs(), r.choice(nodes())))
    proto = seed.proto()
    for _ in range(r.choice((1, 1, 2, 3))):
        mutate.message(r, proto)
    source: Any = proto
    if r.random() < 0.3:
        source = bytearray(proto.SerializeToString())
        if r.random() < 0.5 and source:
            source[r.randrange(len(source))] = r.randrange(256)
        source = bytes(source)
    with bounded():
        try:
            load_model(source)
            ex = executor(source, r.choice(PROVIDERS))
        except HeteroError:
            return
        with ex:
            _twice(ex, seed.feeds, seed)


@FEW
@given(NUMBERS)
def test_a_damaged_model_runs_or_is_refused(number: int) -> None:
    run_damaged_model(number)


@cache
def _plans() -> tuple[tuple[Seed, bytes, dict[str, Any]], ...]:
    """Seeds with the plan over both providers (the second takes what the first may not), and their weights."""
    found = []
    split: list[Any] = [("sim:0", {"except_ops": ["Slice", "Mul", "SequenceAt"]}), "cpu"]
    for seed in (*graphs(), *nodes()[::6]):
        loaded, providers = load_model(seed.proto()), resolve(split)
        made = plan_model(loaded, providers)  # inlining functions adds their constants to the weights
        found.append((seed, made.to_bytes(), dict(loaded.weights)))
        for provider in providers:
            provider.close()
    return tuple(found)


def run_damaged_plan(number: int) -> None:
    """A plan's bytes with items of its tree changed, or bytes flipped; run where they decode."""
    r = random.Random(number)
    seed, data, weights = r.choice(_plans())
    start = len(MAGIC) + 2
    if r.random() < 0.8:
        root = loads(data[start:])
        for _ in range(r.choice((1, 1, 2))):
            mutate.tree(r, root)
        damaged = data[:start] + dumps(root, error=PlanError)
    else:
        flipped = bytearray(data)
        flipped[r.randrange(len(flipped))] = r.randrange(256)
        damaged = bytes(flipped)
    with bounded():
        try:
            decoded = Plan.from_bytes(damaged)
        except PlanError:
            return
        assert Plan.from_bytes(decoded.to_bytes()) == decoded
        decoded.explain()
        try:
            run_plan(decoded, seed.feeds, weights)
        except HeteroError:
            return


def run_plan(decoded: Plan, feeds: Mapping[str, Any], weights: Mapping[str, Any]) -> list[Any]:
    """The parcels that a step of the plan brings to the caller."""
    providers = [create(config) for config in decoded.providers]
    children = InlineChildren(providers, OPTIONS)
    try:
        children.start(decoded, weights)
        values = {p.name: feeds.get(p.name, np.zeros(1, np.float32)) for p in decoded.inputs}
        values |= weights
        parcels: dict[int, Any] = {
            p.id: children.put([values[v] for v in p.values]) for p in decoded.parcels if p.producer == CALLER
        }
        for partition in decoded.partitions:
            receives = [
                p.id
                for p in decoded.parcels
                if partition.child in p.destinations
                and _first_reader(decoded, p.id, partition.child) == partition.id
            ]
            sends = [p.id for p in decoded.parcels if p.producer == partition.id]
            left = children.call(
                partition.child, partition.id, 1, [parcels[k] for k in receives], len(sends), "primary"
            )
            parcels.update(zip(sends, left, strict=True))
        return [parcels[p.id] for p in decoded.parcels if CALLER in p.destinations]
    finally:
        children.close()


def _first_reader(decoded: Plan, parcel: int, child: int) -> int:
    names = set(decoded.parcels[parcel].values)
    return min(
        p.id
        for p in decoded.partitions
        if p.child == child and names & {port.name for port in p.program.inputs}
    )


def test_an_undamaged_plan_runs_from_its_bytes() -> None:
    for seed, data, weights in _plans():
        assert run_plan(Plan.from_bytes(data), seed.feeds, weights)


@FEW
@given(NUMBERS)
def test_a_damaged_plan_runs_or_is_refused(number: int) -> None:
    run_damaged_plan(number)
