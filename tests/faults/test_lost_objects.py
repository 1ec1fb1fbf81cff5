"""Objects that are gone from the store: what a step needs is made again; what cannot be is an error that says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
import ray
import ray.exceptions as rex

from actors import chaos, pool
from actors.journal import Call
from actors.members import Member
from actors.pool import RayChildren
from actors.refs import ObjectElement, bank_of
from hetero import HeterogeneousExecutor
from hetero.errors import ChildDiedError, StateError
from hetero.types import LazySequence, SequenceValue
from tests.actors.test_sequences import BACK, EXTRA, HEAD, MOVES, THREE, WIDTH, X
from tests.faults.harness import DECODER, TEXT_IDS, TEXTS, Beside, bits, until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]


@ray.remote(num_cpus=0)
class _Owner:
    """Objects that it puts die with it."""

    def put(self, value: Any) -> list[Any]:
        return [ray.put(value)]


def lost(value: Any) -> Any:
    """A reference to an object that is gone."""
    owner = _Owner.remote()  # type: ignore[attr-defined]
    (ref,) = ray.get(owner.put.remote(value))
    ray.kill(owner)
    until(lambda: not found(ref))
    return ref


def found(ref: Any) -> bool:
    try:
        ray.get(ref)
    except rex.RayError:
        return False
    return True


def lose_parcel(monkeypatch: pytest.MonkeyPatch, partition: int) -> list[int]:
    """Have what the partition sends be lost, the next time that it is called; returns the step, once it was."""
    issue, gone = pool.issue, lost([np.zeros(1, np.float32)])
    steps: list[int] = []

    def losing(member: Member, step: int, call: Call) -> None:
        issue(member, step, call)
        if call.partition == partition and not steps:
            steps.append(step)
            call.sends[0].content = gone

    monkeypatch.setattr(pool, "issue", losing)
    return steps


@pytest.mark.parametrize("text", TEXTS, ids=TEXT_IDS)
def test_a_step_of_which_a_parcel_is_lost_is_run_again(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Beside(text, transport="objects", checkpoint_every=3) as both:
        if text is DECODER:
            both.bind()
        both.steps(2, n=2)
        for partition in (0, len(both.ex.plan.partitions) - 1):  # one between children, one for the caller
            with monkeypatch.context() as patched:
                steps = lose_parcel(patched, partition)
                both.step(2)
                assert len(steps) == 1
        both.steps(2, n=1)
        counts = both.recovery()
        assert (counts["losses"], counts["given_up_steps"]) == (0, 0)
        assert counts["recoveries"] == 2


def test_a_state_of_which_the_inputs_are_lost_is_an_error_until_it_begins_anew() -> None:
    with Beside(DECODER, transport="objects", checkpoint_every=0) as both:
        both.bind()
        both.steps(3, n=2)
        children = both.ex._children
        assert isinstance(children, RayChildren)
        second = children._journal.kept_records()[1]
        for parcel in {id(p): p for c in second.calls for p in c.receives if p.given}.values():
            parcel.content = lost(parcel.content)
        chaos.kill("sim:0", both.ex)
        for _ in range(2):
            with pytest.raises(StateError, match=rf"state is lost \(step {second.step} cannot be replayed: "):
                both.ex.run(both.feeds(1))
            next(both.calm._steps)
        with pytest.raises(StateError, match="reset_state or write_state begins it anew"):
            both.ex.read_state()
        for each in (both.ex, both.calm):
            each.reset_state()
        both.steps(3, n=2)
        assert bits(both.ex.read_state()) == bits(both.calm.read_state())


def elements(array: np.ndarray[Any, Any], ref: Any) -> SequenceValue:
    """A sequence of two elements of a bank."""
    return LazySequence(
        [ObjectElement(bank_of(ref), k, array.dtype, array.shape, own=False) for k in range(2)],
        array.dtype,
    )


def test_a_step_of_which_an_element_is_lost_is_run_again_and_one_that_was_fed_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = onnx.parser.parse_model(
        HEAD + MOVES.replace("first = {0}", "first = {1}")
    )  # where one of them is read
    issue, lose = pool.issue, [lost([X])]

    def losing(member: Member, step: int, call: Call) -> None:
        issue(member, step, call)
        if call.banked and lose:
            call.sends[call.banked[0]].bank = lose.pop()

    monkeypatch.setattr(pool, "issue", losing)
    with HeterogeneousExecutor(model, THREE, transport="objects") as ex:
        out = ex.run({"x": X, "extra": EXTRA})
        assert not lose
        assert out["one"].tolist() == X[WIDTH : 2 * WIDTH].tolist()
        assert ex.stats()["recovery"]["recoveries"] == 1
    back = onnx.parser.parse_model(HEAD + BACK)
    with HeterogeneousExecutor(back, ["cpu"], transport="objects") as ex:
        given = elements(EXTRA, lost([EXTRA, EXTRA]))
        with pytest.raises(ChildDiedError, match=rf"element 1 of .*, float32\[{WIDTH}\], is lost: OwnerDied"):
            ex.run({"s": given, "at": np.array(1)})
        good = SequenceValue([EXTRA, EXTRA + 1])
        assert ex.run({"s": good, "at": np.array(1)})["one"].tolist() == (EXTRA + 1).tolist()
