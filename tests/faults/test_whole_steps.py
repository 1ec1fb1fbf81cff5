"""Steps that go over channels as a whole: what happens between launch and end loses and doubles nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import ray

from actors import chaos
from actors.channels.driver import DriverChannel
from actors.pool import RayChildren
from hetero.errors import ChildDiedError
from tests.faults.harness import DECODER, TEXT_IDS, TEXTS, Beside, bits, until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]


def pool(both: Beside) -> RayChildren:
    children = both.ex._children
    assert isinstance(children, RayChildren)
    return children


def cut(both: Beside) -> None:
    """End the channels of a child that lives, and wait until the driver knows."""
    children = pool(both)
    channel = children._held.roads.channel
    assert channel is not None
    (member,) = [m for m in children._held.members.values() if m.device == "cpu"]
    ray.get(member.actor.close_channels.remote())
    until(lambda: channel.broken is not None)


def lose(both: Beside) -> None:
    """A child dies, and its channels with it, as far as the driver knows."""
    channel = pool(both)._held.roads.channel
    assert channel is not None
    chaos.kill("sim:0", both.ex)
    until(lambda: channel.broken is not None)


def mend(both: Beside) -> None:
    """A child dies, and is brought back, as when another step is begun."""
    mending = pool(both)._mending
    (member,) = [m for m in mending.members() if m.device == "sim:0"]
    chaos.kill("sim:0", both.ex)
    until(member.ended)
    with mending.lock:
        mending.notice()


@contextmanager
def once(
    monkeypatch: pytest.MonkeyPatch, method: str, act: Callable[[], object], *, after: bool = False
) -> Iterator[list[str]]:
    """`act` before the next call of this method of the driver's channels, or after it."""
    inner, done = getattr(DriverChannel, method), []

    def called(*arguments: Any) -> Any:
        if done:
            return inner(*arguments)
        done.append(method)
        if not after:
            act()
        found = inner(*arguments)
        if after:
            act()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(DriverChannel, method, called)
        yield done


@contextmanager
def beside(text: str, **options: Any) -> Iterator[Beside]:
    """Steps of both go over channels."""
    with Beside(
        text, transport="channels", ray_options={"standbys": 1}, checkpoint_every=3, **options
    ) as both:
        if text is DECODER:
            both.bind(capacity=64)
        both.steps(3, n=2)
        both.ready()
        yield both


def run(both: Beside, n: int = 2) -> None:
    """A step by this thread: of both the same bits."""
    feeds = both.feeds(n)
    assert bits(both.ex.run(feeds)) == bits(both.calm.run(feeds))


@pytest.mark.parametrize("text", TEXTS, ids=TEXT_IDS)
@pytest.mark.parametrize(
    ("moment", "loss"),
    [
        *itertools.product(["before launch", "before get", "after get"], [cut, lose]),
        *itertools.product(["before get", "after get"], [mend]),  # who launches keeps others from children
    ],
)
def test_a_step_is_run_once_whenever_channels_end(
    text: str, loss: Callable[[Beside], None], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with beside(text) as both:
        before, steps = both.recovery(), both.ex.stats()["steps"]
        when, method = moment.split()
        with once(monkeypatch, method, partial(loss, both), after=when == "after") as done:
            run(both)
        assert done == [method]
        run(both)
        after = both.recovery()
        assert after["losses"] - before["losses"] == 1  # nobody can reach one that is cut off
        assert after["given_up_steps"] == 0
        assert (both.ex.stats()["steps"], both.ex.stats()["failed_steps"]) == (steps + 2, 0)
        assert not pool(both)._journal.open
        both.ready()
        run(both)


def test_a_step_that_was_given_out_again_is_not_taken_from_the_flight_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with beside(DECODER) as both:
        before = both.recovery()["replayed_steps"]
        with once(monkeypatch, "get", partial(mend, both), after=True):
            run(both)
        assert both.recovery()["replayed_steps"] > before
        run(both)


def test_without_recovery_it_is_the_callers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("launch", "get"):
        with beside(TEXTS[-1], recover=False) as both:
            with once(monkeypatch, method, partial(lose, both)), pytest.raises(ChildDiedError) as caught:
                both.ex.run(both.feeds(2))
            assert caught.value.device == "sim:0"
            assert both.ex.stats()["failed_steps"] == 1
            assert not pool(both)._journal.open


def test_an_interrupted_step_leaves_nothing_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with beside(DECODER) as both:
        for method in ("launch", "get"):
            with once(monkeypatch, method, interrupt), pytest.raises(KeyboardInterrupt):
                both.ex.run(both.feeds(2))
            next(both.calm._steps)
            assert not pool(both)._journal.open
            for each in (both.ex, both.calm):
                each.reset_state()
            both.steps(2, n=2)
            both.ready()
