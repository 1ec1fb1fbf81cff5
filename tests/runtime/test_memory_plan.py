"""Memory: values that live at the same time never share bytes; what is planned is what is used."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero.program.program import NO_SLOT, Dispatch, Program
from hetero.runtime.memory_plan import memory_plan
from hetero.runtime.runner import Runner
from hetero.runtime.section import Section
from hetero.types import TensorSpec
from tests.acceptance.graphs import rich_models
from tests.acceptance.harness import executor
from tests.properties.graphs import N, RandomModel
from tests.runtime.harness import rig, rig_of

pytestmark = pytest.mark.usefixtures("overwrites_all")

HEAD = '<ir_version: 10, opset_import: ["" : 21]> '
BYTES = np.dtype(np.uint8)
SOMETIMES_VIEWS = frozenset({"Identity", "Dropout", "Cast", "BitCast", "Gather"})
"""Operators that show their first input as it is where nothing has to be computed."""


def paths(runner: Runner) -> Iterator[list[Section]]:
    """Every way from a first section to a last one."""
    stack = [[root] for root in runner.roots.sections.values()]
    while stack:
        path = stack.pop()
        if not path[-1].next:
            yield path
        stack.extend([*path, following] for following in path[-1].next.values())


def runners(runner: Runner) -> Iterator[Runner]:
    """The runner and those of its bodies."""
    yield runner
    for flow in runner._flows.values():
        for body in flow.bodies.values():
            yield from runners(body)


class Checker:
    """Lives and memory of one program's values, from instructions and addresses alone: it knows nothing of Liveness,
    owners or buffers' users."""

    def __init__(self, runner: Runner, path: list[Section]) -> None:
        self.program: Program = runner.program
        self.records = [(section, record) for section in path for record in section.records]
        when = {i: k for k, (_, record) in enumerate(self.records) for i in range(record.start, record.stop)}
        self.end = len(self.records)
        slots = path[-1].exit.every
        self.arrays = {
            i: s.array for i, s in slots.items() if isinstance(s.array, np.ndarray) and s.array.size
        }
        outputs = {p.slot for p in self.program.outputs}
        self.born = {p.slot: -1 for p in (*self.program.inputs, *self.program.constants)}
        self.dies: dict[int, int] = {}
        self.source: dict[int, int] = {}
        """View -> what it is a view of."""
        for at, instruction in enumerate(self.program.instructions):
            if at not in when:
                continue
            for index in instruction.inputs:
                self.dies[index] = when[at]
            for index in instruction.outputs:
                self.born[index] = self.dies[index] = when[at]
                if instruction.dispatch is Dispatch.VIEW or instruction.op.op_type in SOMETIMES_VIEWS:
                    self.source[index] = instruction.inputs[0]
        self.dies.update(dict.fromkeys(outputs, self.end))
        for index in sorted(self.source, key=lambda i: -self.born[i]):  # a view keeps what it shows alive
            if index in self.arrays and self.source[index] in self.arrays and self.related(index):
                source = self.source[index]
                self.dies[source] = max(self.dies[source], self.dies[index])
        self.in_place = {
            (old, k) for k, (_, record) in enumerate(self.records) for old in record.in_place.values()
        }

    def related(self, index: int) -> bool:
        return np.shares_memory(self.arrays[index], self.arrays[self.source[index]])

    def ancestors(self, index: int) -> set[int]:
        found = {index}
        while index in self.source:
            index = self.source[index]
            found.add(index)
        return found

    def check(self) -> int:
        """Compare all pairs; returns how many lay in one another's memory at different times."""
        reused = 0
        spans = {i: np.lib.array_utils.byte_bounds(a) for i, a in self.arrays.items()}
        indices = sorted(spans, key=lambda i: spans[i][0])
        for n, a in enumerate(indices):
            for b in indices[n + 1 :]:
                if spans[b][0] >= spans[a][1]:
                    break
                if not self.ancestors(a).isdisjoint(self.ancestors(b)):
                    continue
                if not np.shares_memory(self.arrays[a], self.arrays[b]):
                    continue
                first, second = sorted((a, b), key=lambda i: self.born.get(i, -1))
                born, dies = self.born[second], self.dies.get(first, -1)
                legal = dies < born or (dies == born and self.overwrites(first, born))
                lives = f"slot {first} (alive until {dies}) and slot {second} (from {born})"
                assert legal, f"{self.program.name}: {lives} share memory"
                reused += 1
        self.check_scratch()
        return reused

    def overwrites(self, first: int, at: int) -> bool:
        return any(old in self.ancestors(first) and k == at for old, k in self.in_place)

    def check_scratch(self) -> None:
        """What a record took, workspaces and copies included, lies in nothing that is read then or later."""
        for k, (section, record) in enumerate(self.records):
            if not record.buffers:
                continue
            made = {
                i
                for at in range(record.start, record.stop)
                for i in self.program.instructions[at].outputs
                if i != NO_SLOT
            }
            for position, buffer in enumerate(record.buffers):
                memory = section_array(section, buffer)
                for index, array in self.arrays.items():
                    alive = self.born.get(index, -1) < k <= self.dies.get(index, -1)
                    if index in made or not alive or not np.shares_memory(memory, array):
                        continue
                    taken = f"{self.program.name}: record {k} takes the memory of slot {index}, which lives"
                    assert record.in_place.get(position) in self.ancestors(index), taken


def section_array(section: Section, buffer: Any) -> np.ndarray:
    provider = section.lease._arena._provider
    array: np.ndarray = provider.array(buffer, TensorSpec(BYTES, (buffer.nbytes,)))
    return array


def feeds(batch: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((batch, N, N)).astype(np.float32) for _ in range(3)]


SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(rich_models(max_steps=12), st.booleans(), st.booleans(), st.sampled_from([0, 200, 64 << 10]))
def test_values_that_live_at_the_same_time_share_no_memory(
    model: RandomModel, in_place: bool, fused: bool, stage_bytes: int
) -> None:
    r = rig_of(model.proto, in_place=in_place, fuse_elementwise=fused, stage_bytes=stage_bytes)
    for batch in (2, 3):
        for seed in range(2):
            r(*feeds(batch, seed)[: len(r.program.inputs)])
    for runner in runners(r.runner):
        for path in paths(runner):
            Checker(runner, path).check()
            plan = memory_plan(runner.program, path)
            assert 0 <= plan.peak_bytes <= plan.used_bytes
            assert plan.peak_bytes <= plan.sum_bytes
            assert plan.buffers <= plan.values


CHAIN = " ".join(f"v{k + 1} = MatMul(v{k}, w)" for k in range(20))
LONG = (
    HEAD
    + "g (float[64, 4] x) => (float[64, 4] y) <float[4, 4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}>"
    + f" {{ v0 = Softmax(x) {CHAIN} y = Softmax(v20) }}"
)


def test_the_checker_sees_reuse_and_a_value_that_is_overwritten_too_early() -> None:
    r = rig(LONG)
    r(np.zeros((64, 4), np.float32))
    (path,) = paths(r.runner)
    checker = Checker(r.runner, path)
    assert checker.check() > 10
    first = r.runner.program.instructions[0].outputs[0]
    checker.dies[first] = checker.end
    with pytest.raises(AssertionError, match="share memory"):
        checker.check()


def test_a_chain_needs_two_values_at_once_and_its_buffers_are_used_again() -> None:
    r = rig(LONG)
    r(np.zeros((64, 4), np.float32))
    plan = r.runner.memory_plan()
    assert plan is not None
    assert plan.values == 23, "22 results, and the frame of the input"
    assert plan.sum_bytes == 23 * 1024
    assert plan.peak_bytes == 3 * 1024, "the frame, and what a product reads and writes"
    assert plan.buffers == 3
    assert plan.peak_bytes <= plan.used_bytes < 4 * 1024
    assert plan.reuse_ratio > 5


def test_without_reuse_every_value_has_a_buffer() -> None:
    r = rig(LONG, reuse_buffers=False, in_place=False)
    r(np.zeros((64, 4), np.float32))
    plan = r.runner.memory_plan()
    assert plan is not None
    assert plan.buffers == plan.values == 23
    assert plan.peak_bytes == 3 * 1024


def test_what_is_computed_in_place_counts_once() -> None:
    text = HEAD + "g (float[256] x) => (float[256] y) { a = Softmax(x) b = Neg(a) c = Abs(b) y = Softmax(c) }"
    plans = [rig(text, in_place=on, fuse_elementwise=False) for on in (True, False)]
    peaks = []
    for r in plans:
        r(np.zeros(256, np.float32))
        plan = r.runner.memory_plan()
        assert plan is not None
        peaks.append(plan.peak_bytes)
        assert plan.sum_bytes == 5 * 1024
    assert peaks[0] <= peaks[1] == 3 * 1024


def test_nothing_is_planned_before_anything_is_bound() -> None:
    r = rig(HEAD + "g (float[n] x) => (float[n] y) { y = Neg(x) }")
    assert r.runner.memory_plan() is None


@pytest.mark.parametrize("providers", [["cpu"], ["sim:0", "cpu"]], ids=["cpu", "device"])
def test_statistics_hold_the_plan_of_each_partition(providers: list[str]) -> None:
    with executor("g (float[n, 8] x) => (y) { a = Softmax(x) b = Tanh(a) y = Softmax(b) }", providers) as ex:
        ex.run({"x": np.zeros((16, 8), np.float32)})
        (child,) = ex.stats()["children"].values()
        (plan,) = child["memory_plans"].values()
        assert plan["sum_bytes"] >= 3 * 512
        assert 512 <= plan["peak_bytes"] <= plan["used_bytes"] <= child["arena_bytes"]
        assert math.isclose(plan["reuse_ratio"], plan["sum_bytes"] / plan["used_bytes"])


# -- values with memory of their own ---------------------------------------------------------------------------------
@pytest.mark.parametrize("release_dead", [True, False])
@pytest.mark.parametrize("provider", ["cpu", "sim:0"])
def test_a_value_with_memory_of_its_own_goes_after_its_last_reader(provider: str, release_dead: bool) -> None:
    """Each section's product is data-dependent and four times as large as the last one's reader needs."""
    text = HEAD + (
        "g (float[n] x) => (float[k] y) {"
        + " ".join(f"m{k} = Greater(v{k}, zero) v{k + 1} = Compress(v{k}, m{k})" for k in range(6))
        + " zero = Constant<value_float=0.0>() y = Neg(v6) }"
    ).replace("v0", "x")
    r = rig(text, provider, release_dead=release_dead)
    value = np.arange(1, 1001, dtype=np.float32)
    table = r.runner.table.values
    held: list[int] = []
    compress = [i.outputs[0] for i in r.runner.program.instructions if i.op.op_type == "Compress"]
    following = r.runner._next

    def watched(section: Section) -> Section:
        held.append(sum(table[slot] is not None for slot in compress))
        return following(section)

    r.runner._next = watched  # type: ignore[method-assign]
    for _ in range(3):
        assert r(value)[0].tobytes() == (-value).tobytes()
    assert max(held) == (1 if release_dead else 5)
    assert (r.runner.statistics.released > 0) is release_dead
    assert all(v is None for v in table), "and none is left when the run ends"
