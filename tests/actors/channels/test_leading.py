"""Who takes what comes in at the driver: whoever waits for it, or where nobody does, a thread that is there for it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from actors.channels.driver import DriverChannel
from hetero.errors import ChildDiedError, TransportError
from tests.actors.channels.nets import Net, plus_one, until, vector

pytestmark = pytest.mark.timeout(180)


def handlers(net: Net, monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Which thread takes each of the driver's outputs, from now on."""
    took: list[threading.Thread] = []

    def noted(name: str) -> None:
        taking = getattr(DriverChannel, name)

        def noting(self: DriverChannel, *arguments: Any) -> None:
            took.append(threading.current_thread())
            taking(self, *arguments)

        monkeypatch.setattr(DriverChannel, name, noting)

    noted("_known")
    noted("_arrived")
    return took


def test_whoever_waits_takes_the_outputs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def gated(partition: int, step: int, values: list[Any]) -> list[Any]:
        assert gate.wait(20)
        return values

    with Net([0, 1], gated) as net:
        took = handlers(net, monkeypatch)
        flight = net.launch(1, vector(4))
        waiting = threading.Thread(target=net.get, args=(flight,))
        waiting.start()
        until(net.driver._turns._lead.locked)
        gate.set()
        waiting.join(20)
        assert took == [waiting]


def test_outputs_are_taken_and_deaths_heard_while_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with Net([0, 1], plus_one) as net:
        took = handlers(net, monkeypatch)
        flight = net.launch(1, vector(50_000))
        until(lambda: flight.over)
        assert [t.name for t in took] == ["hetero-channels"]
        assert net.get(flight)[0].tobytes() == (vector(50_000) + 1 + 1).tobytes()
        net.children[1].close()
        until(lambda: net.driver.broken is not None)
        assert isinstance(net.driver.broken, ChildDiedError)


def test_many_threads_wait_at_once_and_each_gets_its_own() -> None:
    failures: list[BaseException] = []

    def running(net: Net, seed: int) -> None:
        try:
            for k in range(50):
                x = vector(100 + 20_000 * (k % 2), seed * 100 + k)
                assert net.run(seed * 1000 + k, x)[0].tobytes() == (x + 1 + 1 + 1).tobytes()
        except BaseException as error:
            failures.append(error)

    with Net([0, 1, 2], plus_one) as net:
        threads = [threading.Thread(target=running, args=(net, seed)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        assert net.driver.statistics()["in_flight"] == 0


def test_the_next_in_line_leads_when_the_leader_has_its_outputs() -> None:
    gates = {step: threading.Event() for step in (1, 2)}

    def gated(partition: int, step: int, values: list[Any]) -> list[Any]:
        assert gates[step].wait(20)
        return values

    with Net([0], gated) as net:
        flights = [net.launch(step, vector(4)) for step in (1, 2)]
        got: list[int] = []
        threads = [
            threading.Thread(target=lambda k=k: got.append(len(net.get(flights[k])) * (k + 1)))  # type: ignore[misc]
            for k in (0, 1)
        ]
        threads[0].start()
        until(net.driver._turns._lead.locked)
        threads[1].start()
        until(lambda: flights[1].waits)
        gates[1].set()
        threads[0].join(20)
        until(net.driver._turns._lead.locked)  # the other one leads now
        gates[2].set()
        threads[1].join(20)
        assert got == [1, 2]


@pytest.mark.parametrize("where", ["waiting", "taking"])
def test_a_wait_that_is_interrupted_loses_nothing_without_a_word(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def gated(partition: int, step: int, values: list[Any]) -> list[Any]:
        assert gate.wait(20)
        return values

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with Net([0, 1], gated) as net:
        flight = net.launch(1, vector(4))
        with monkeypatch.context() as patch:
            if where == "waiting":
                patch.setattr(net.driver._endpoint, "wait", interrupted)
            else:
                patch.setattr(net.driver._endpoint, "wait", lambda _: [])
                patch.setattr(net.driver._endpoint, "take", interrupted)
            with pytest.raises(KeyboardInterrupt):
                net.driver.get(flight, 20)
        gate.set()
        if where == "waiting":
            assert net.driver.get(flight, 20)[2][0].tobytes() == vector(4).tobytes()
        else:  # what was being taken may be lost: so are the channels
            with pytest.raises(TransportError, match="interrupted"):
                net.driver.get(flight, 20)
            assert net.driver.broken is not None
