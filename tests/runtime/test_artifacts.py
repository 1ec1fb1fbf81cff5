"""Artifacts: ready before use, one identity's own, leased while in use; and captured graphs as such in a child."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import onnx.parser
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hetero.errors import ArtifactError, CaptureError, KernelError
from hetero.executor import plan
from hetero.model import load_model
from hetero.options import RuntimeOptions
from hetero.providers.base import ProviderConfig
from hetero.providers.simulated import SimulatedProvider
from hetero.runtime.artifacts import MAX_EPOCH, NEXT, Artifact, Artifacts, Event, Identity, Readiness
from hetero.runtime.assignment import assignment
from hetero.runtime.capture.captured import Captured
from hetero.runtime.child import ChildExecutor
from tests.runtime.harness import Rig, rig


def test_only_a_complete_artifact_can_be_leased() -> None:
    mine = Artifacts("sim:0", 1)
    pending, failed, complete = (mine.begin("graph", n) for n in ("p", "f", "c"))
    mine.fail(failed, mine.identity, "no memory")
    mine.complete(complete, mine.identity)
    with pytest.raises(ArtifactError, match="'p' of executor 1 on sim:0, generation 0, epoch 0 is pending"):
        pending.take()
    with pytest.raises(ArtifactError, match="no memory"):
        failed.take()
    complete.take()
    assert (pending.leases, failed.leases, complete.leases) == (0, 0, 1)


@pytest.mark.parametrize(
    "other",
    [
        Identity("sim:1", 1, 0, 0),
        Identity("sim:0", 2, 0, 0),
        Identity("sim:0", 1, 1, 0),
        Identity("sim:0", 1, 0, 1),
    ],
)
def test_a_report_for_any_other_identity_is_refused_and_changes_nothing(other: Identity) -> None:
    mine = Artifacts("sim:0", 1)
    artifact = mine.begin("graph", "g")
    with pytest.raises(ArtifactError, match="report for"):
        mine.complete(artifact, other)
    with pytest.raises(ArtifactError, match="report for"):
        mine.fail(artifact, other, "late")
    assert artifact.state is Readiness.PENDING
    assert artifact.reason == ""


def test_anothers_artifact_is_refused_though_the_identities_are_alike() -> None:
    mine, twin = Artifacts("sim:0", 1), Artifacts("sim:0", 1)
    artifact = twin.begin("graph", "g")
    with pytest.raises(ArtifactError, match="not one of"):
        mine.complete(artifact, mine.identity)
    with pytest.raises(ArtifactError, match="not one of"):
        mine.drop(artifact)


def test_there_is_one_report_for_each() -> None:
    mine = Artifacts("sim:0", 1)
    artifact = mine.begin("graph", "g")
    mine.complete(artifact, mine.identity)
    with pytest.raises(ArtifactError, match="is complete, and cannot be failed"):
        mine.fail(artifact, mine.identity, "after all")
    assert artifact.reason == ""


def test_what_is_under_way_when_an_epoch_ends_reports_in_vain() -> None:
    mine = Artifacts("sim:0", 1)
    artifact, then = mine.begin("graph", "g"), mine.identity
    mine.advance()
    assert mine.identity.epoch == 1
    with pytest.raises(ArtifactError, match="epoch 0"):
        mine.complete(artifact, then)
    assert artifact.state is Readiness.DROPPED


def test_epochs_end_rather_than_begin_anew() -> None:
    mine = Artifacts("sim:0", 1, epoch=MAX_EPOCH - 1)
    mine.advance()
    artifact = mine.begin("graph", "g")
    mine.complete(artifact, mine.identity)
    with pytest.raises(ArtifactError, match="no epoch after"):
        mine.advance()
    assert mine.identity.epoch == MAX_EPOCH
    artifact.take()


def test_dropping_waits_for_the_last_lease_and_gives_no_new_one() -> None:
    mine, freed = Artifacts("sim:0", 1), []
    artifact = mine.begin("graph", "g", lambda: freed.append("g"))
    mine.complete(artifact, mine.identity)
    artifact.take()
    artifact.take()
    mine.drop(artifact)
    with pytest.raises(ArtifactError, match="condemned"):
        artifact.take()
    artifact.end()
    assert freed == []
    artifact.end()
    mine.drop(artifact)
    assert freed == ["g"]
    assert artifact.state is Readiness.DROPPED


def test_no_state_but_the_last_is_without_a_way_out() -> None:
    assert {state for state, _ in NEXT} == set(Readiness) - {Readiness.DROPPED}
    assert {event for _, event in NEXT} == set(Event)


class Lives(RuleBasedStateMachine):
    """Random lives of artifacts of one executor, checked against what is remembered of them."""

    def __init__(self) -> None:
        super().__init__()
        self.mine = Artifacts("sim:0", 1, epoch=MAX_EPOCH - 6)
        self.made: list[tuple[Artifact, Identity]] = []
        self.freed: list[int] = []
        self.leases: dict[int, int] = {}
        self.dropped: set[int] = set()
        self.said: dict[int, str] = {}

    @rule()
    def begin(self) -> None:
        number = len(self.made)
        artifact = self.mine.begin("graph", str(number), lambda: self.freed.append(number))
        self.made.append((artifact, self.mine.identity))
        self.leases[number] = 0

    @precondition(lambda self: self.made)
    @rule(data=st.data(), good=st.booleans(), current=st.booleans())
    def report(self, data: st.DataObject, good: bool, current: bool) -> None:
        k = data.draw(st.integers(0, len(self.made) - 1))
        artifact, identity = self.made[k]
        if current:
            identity = self.mine.identity
        ours = identity == self.mine.identity == self.made[k][1]
        allowed = ours and k not in self.said and k not in self.dropped
        try:
            if good:
                self.mine.complete(artifact, identity)
            else:
                self.mine.fail(artifact, identity, "bad")
        except ArtifactError:
            assert not allowed
        else:
            assert allowed
            self.said[k] = "good" if good else "bad"

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        k = data.draw(st.integers(0, len(self.made) - 1))
        ready = self.said.get(k) == "good" and k not in self.dropped
        if ready:
            self.made[k][0].take()
            self.leases[k] += 1
        else:
            with pytest.raises(ArtifactError):
                self.made[k][0].take()

    @precondition(lambda self: any(self.leases.values()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        k = data.draw(st.sampled_from([k for k, n in self.leases.items() if n]))
        self.made[k][0].end()
        self.leases[k] -= 1

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        k = data.draw(st.integers(0, len(self.made) - 1))
        self.mine.drop(self.made[k][0])
        self.dropped.add(k)

    @rule()
    def advance(self) -> None:
        before = self.mine.identity.epoch
        try:
            self.mine.advance()
        except ArtifactError:
            assert before == MAX_EPOCH
        else:
            assert self.mine.identity.epoch == before + 1
            self.dropped.update(range(len(self.made)))

    @invariant()
    def each_is_freed_once_when_it_is_dropped_and_nobody_holds_it(self) -> None:
        assert sorted(self.freed) == sorted(k for k in self.dropped if not self.leases[k])

    @invariant()
    def counters_agree(self) -> None:
        found = self.mine.statistics()
        assert found["dropped"] == len(self.freed)
        assert sum(found["states"].values()) == len(self.made) - len(self.freed)


Lives.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestLives = Lives.TestCase


# -- captured graphs ---------------------------------------------------------------------------------------------
HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'
TWO = HEAD + "g (float[n] x) => (float[n] y) { a = Exp(x) b = Tanh(a) c = Neg(b) y = Abs(c) }"
PICK = HEAD + "g (float[n] x, int64[1] i) => (float[1] y) { a = Exp(x) [pick] p = Gather(a, i) y = Neg(p) }"
X = np.array([0.5, -1], np.float32)


def captures(r: Rig) -> list[Captured]:
    return [c for s in r.runner.roots.sections.values() for c in s.captured.values()]


def graphs(r: Rig) -> dict[str, Any]:
    return r.runner.context.recorder.artifacts.statistics()


def test_a_recording_is_an_artifact_that_each_replay_leases() -> None:
    r = rig(TWO, "sim:0")
    for _ in range(3):
        r(X)
    (captured,) = captures(r)
    assert captured.artifact.state is Readiness.COMPLETE
    assert captured.artifact.leases == 0
    held: list[int] = []
    captured.steps.insert(0, lambda: held.append(captured.artifact.leases))
    captured.firsts.insert(0, 0)
    r(X)
    assert held == [1]


def test_a_replay_that_fails_gives_its_lease_back() -> None:
    r = rig(TWO, "sim:0")
    for _ in range(3):
        r(X)
    (captured,) = captures(r)

    def breaks() -> None:
        raise KernelError("broken")

    captured.steps.append(breaks)
    captured.firsts.append(0)
    with pytest.raises(KernelError, match="broken"):
        r(X)
    assert captured.artifact.leases == 0


def test_graphs_that_are_dropped_while_they_replay_are_freed_behind_it() -> None:
    r = rig(TWO, "sim:0")
    for _ in range(3):
        want = r(X)[0]
    (captured,) = captures(r)
    seen: list[int] = []

    def drops() -> None:
        captured.discard()
        seen.append(r.provider.stats()["graphs"])

    captured.steps.insert(0, drops)
    captured.firsts.insert(0, 0)
    assert r(X)[0].tobytes() == want.tobytes()
    assert seen[0] > 0
    assert captured.artifact.state is Readiness.DROPPED
    assert captured.tokens == []
    assert r(X)[0].tobytes() == want.tobytes()  # recorded anew
    assert captures(r)[0].artifact.state is Readiness.COMPLETE


def test_dropping_sections_begins_an_epoch_and_what_was_recorded_is_recorded_anew() -> None:
    r = rig(TWO, "sim:0")
    for _ in range(3):
        want = r(X)[0]
    (old,) = captures(r)
    r.runner.drop_sections()
    assert graphs(r)["epoch"] == old.artifact.identity.epoch + 1
    assert r.provider.stats()["graphs"] == 0
    for _ in range(3):
        assert r(X)[0].tobytes() == want.tobytes()
    (new,) = captures(r)
    assert new.artifact.identity.epoch == graphs(r)["epoch"] == 1
    with pytest.raises(ArtifactError):
        old.artifact.take()


def test_graphs_of_an_epoch_that_ended_elsewhere_are_not_replayed() -> None:
    r = rig(TWO, "sim:0")
    for _ in range(3):
        want = r(X)[0]
    (old,) = captures(r)
    r.runner.context.recorder.artifacts.advance()
    assert r(X)[0].tobytes() == want.tobytes()
    (new,) = captures(r)
    assert new is not old
    assert new.artifact.identity.epoch == 1
    assert old.tokens == []


def test_a_recording_that_breaks_is_a_failed_artifact_and_is_not_kept() -> None:
    r = rig(TWO, "sim:0")
    r(X)
    recorder = r.runner.context.recorder
    real = r.provider.record

    def record(call: Any, op: Any = None) -> None:
        if op is not None and op.op_type == "Tanh":
            r.provider.synchronize()  # which no recording outlives
        real(call, op)

    recorder._provider.record = record  # type: ignore[method-assign]
    want = r(X)[0]
    found = graphs(r)
    assert (found["failed"], found["completed"], found["states"]) == (1, 1, {"complete": 1})
    assert r(X)[0].tobytes() == want.tobytes()


def test_a_stale_token_is_refused_wherever_it_is_launched() -> None:
    r = rig(TWO, "sim:0")
    for _ in range(3):
        r(X)
    (captured,) = captures(r)
    tokens = list(captured.tokens)
    r.runner.drop_sections()
    assert tokens
    for token in tokens:
        with pytest.raises(CaptureError, match="stale"):
            r.provider.launch(token)


# -- siblings on one provider --------------------------------------------------------------------------------------
def sibling_children(text: str, provider: SimulatedProvider, n: int = 2) -> list[ChildExecutor]:
    proto = onnx.parser.parse_model(text)
    planned = plan(proto, [provider])
    children = [ChildExecutor(provider, RuntimeOptions()) for _ in range(n)]
    for child in children:
        child.prepare(assignment(planned, 0), load_model(proto).weights)
    return children


def ask(child: ChildExecutor, step: int, **values: Any) -> Any:
    (task,) = child._tasks.values()
    parcels = [[values[n] for n in receive.values] for receive in task.receives]
    return child.run(task.partition, step, parcels)[0][0]


def test_siblings_on_one_provider_never_see_each_others_graphs() -> None:
    provider = SimulatedProvider(ProviderConfig("sim:0"))
    a, b = sibling_children(TWO, provider)
    for step in range(4):
        assert ask(a, step, x=X).tobytes() == ask(b, step, x=X).tobytes()
    owners = {token.owner for token, _ in provider._captures._graphs.values()}
    assert len(owners) == 2
    both = provider.stats()["graphs"]
    for runner in a._runners.values():
        runner.drop_sections()
    assert 0 < provider.stats()["graphs"] < both
    before = b.stats()["graph_slots"]["primary"]
    want = ask(a, 4, x=X)
    assert ask(b, 4, x=X).tobytes() == want.tobytes()
    after = b.stats()["graph_slots"]["primary"]
    assert (after["replays"], after["recordings"]) == (before["replays"] + 1, before["recordings"])
    assert a.stats()["artifacts"]["graphs"]["epoch"] == 1
    assert b.stats()["artifacts"]["graphs"]["epoch"] == 0


def test_preparing_anew_begins_an_epoch_in_both_kinds_of_artifacts() -> None:
    provider = SimulatedProvider(ProviderConfig("sim:0"))
    (child,) = sibling_children(TWO, provider, 1)
    for step in range(3):
        ask(child, step, x=X)
    proto = onnx.parser.parse_model(TWO)
    child.prepare(assignment(plan(proto, [provider]), 0), load_model(proto).weights)
    found = child.stats()["artifacts"]
    assert found["graphs"]["epoch"] == found["weights"]["epoch"] == 1
    assert found["graphs"]["states"] == {}
    assert provider.stats()["graphs"] == 0
    ask(child, 3, x=X)


@pytest.mark.parametrize("warm", [0, 3])  # eager, and through a captured graph
def test_what_a_device_finds_late_is_told_to_the_step_that_caused_it_and_to_no_sibling(warm: int) -> None:
    provider = SimulatedProvider(ProviderConfig("sim:0"))
    a, b = sibling_children(PICK, provider)
    good = np.array([1])
    for step in range(warm):
        ask(a, step, x=X, i=good)
        ask(b, step, x=X, i=good)
    with pytest.raises(KernelError) as caught:
        ask(a, 7, x=X, i=np.array([9]))
    assert (caught.value.step, caught.value.node, caught.value.op) == (7, "pick", "Gather")
    want = ask(b, 7, x=X, i=good)
    assert ask(a, 8, x=X, i=good).tobytes() == want.tobytes()
    if warm:
        assert a.stats()["graph_slots"]["primary"]["replays"] > 1
