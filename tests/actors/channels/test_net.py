"""Children that send to each other: dataflow in the driver's order, bounded memory, errors as data, deaths heard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from actors.channels import driver as driver_module
from actors.channels import endpoint as endpoint_module
from actors.channels.bodies import Limits
from actors.channels.child import ChildChannel
from actors.channels.driver import DriverChannel
from actors.channels.endpoint import Endpoint
from actors.channels.mailbox import Mailbox
from actors.channels.messages import Begin, Lost, Message
from actors.channels.routes import ChildRoutes, DriverRoutes
from hetero.errors import (
    ChildDiedError,
    ClosedError,
    HeteroError,
    KernelError,
    StepTimeoutError,
    TransportError,
)
from hetero.planner.plan import CALLER
from tests.actors.channels.nets import LOCAL, Net, connect, plus_one, until, vector

pytestmark = pytest.mark.timeout(180)

MIB = 1 << 20


@pytest.mark.parametrize("near", [True, False], ids=["shared memory", "frames"])
def test_values_of_any_size_go_down_the_chain_and_come_back_the_callers_own(
    near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not near:
        monkeypatch.setattr(endpoint_module, "reachable", lambda *_: False)
    with Net([0, 1, 2], plus_one) as net:
        for step, n in enumerate((0, 1, 1000, 100_000, 1_000_000, 10)):
            x = vector(n, step)
            x.flags.writeable = False
            (got,) = net.run(step, x)
            assert got.tobytes() == (x + np.float32(1) + np.float32(1) + np.float32(1)).tobytes()
            assert got.flags.writeable
            assert got.flags.owndata
        until(lambda: net.out() == [0, 0, 0, 0])
        assert (net.driver.statistics()["blocks_made"] > 0) == near


def test_steps_in_flight_run_in_the_order_in_which_they_were_launched() -> None:
    seen: dict[int, list[int]] = {0: [], 1: []}

    def noting(partition: int, step: int, values: list[Any]) -> list[Any]:
        seen[partition % 2].append(step)
        return plus_one(partition, step, values)

    with Net([0, 1, 0, 1], noting) as net:
        steps = [5, 3, 9, 1, 2, 8]  # the executor's numbers need not be in order
        flights = [net.launch(step, vector(20_000, step)) for step in steps]
        for step, flight in zip(steps, flights, strict=True):
            assert net.get(flight)[0].tobytes() == (vector(20_000, step) + 1 + 1 + 1 + 1).tobytes()
        assert seen == {0: [s for s in steps for _ in (0, 2)], 1: [s for s in steps for _ in (1, 3)]}


def test_values_that_are_alike_step_after_step_and_then_are_not_arrive_as_they_are() -> None:
    """Each step is like some before it, or not, at either end; a slot of its own changes in between."""
    inputs: list[list[Any]] = [
        *([vector(8, k)] for k in range(4)),
        [vector(9)],
        *([vector(8, k), vector(3, k)] for k in range(3)),
        [vector(8).astype(np.float64)],
        [vector(100_000)],
        *([vector(8, k)] for k in range(4)),
        [np.asfortranarray(vector(8).reshape(2, 4))],
        [vector(8)],
    ]
    with Net([0, 1, 0], plus_one) as net:
        for step, values in enumerate(inputs):
            got = net.run(step, *values)
            for a, b in zip(got, values, strict=True):
                want = b + np.float32(1) + np.float32(1) + np.float32(1)
                assert (a.dtype, a.shape, a.tobytes()) == (want.dtype, want.shape, want.tobytes())
                assert a.flags.writeable
        assert all(end.statistics()["malformed"] == 0 for end in (net.driver, *net.children))


def test_a_later_stage_works_on_a_step_while_an_earlier_one_works_on_the_next() -> None:
    """The second step's first partition has to run before the first step's second one goes on, or nothing does."""
    second_begun = threading.Event()

    def overlapping(partition: int, step: int, values: list[Any]) -> list[Any]:
        if (partition, step) == (0, 2):
            second_begun.set()
        if (partition, step) == (1, 1):
            assert second_begun.wait(20)
        return values

    with Net([0, 1], overlapping) as net:
        flights = [net.launch(step, vector(4)) for step in (1, 2)]
        assert [len(net.get(f)) for f in flights] == [1, 1]


def test_a_failure_reaches_the_caller_whole_and_ends_its_own_step_only() -> None:
    def failing(partition: int, step: int, values: list[Any]) -> list[Any]:
        if (partition, step) == (1, 2):
            raise KernelError("index 9 is out of range", op="Gather", node="n7", device="sim:1")
        return plus_one(partition, step, values)

    with Net([0, 1, 2], failing) as net:
        x = vector(100_000)
        flights = [net.launch(step, x) for step in (1, 2, 3)]
        assert net.get(flights[0])[0].tobytes() == (x + 1 + 1 + 1).tobytes()
        with pytest.raises(KernelError) as caught:
            net.get(flights[1])
        error = caught.value
        assert type(error) is KernelError
        assert (error.message, error.op, error.node) == ("index 9 is out of range", "Gather", "n7")
        assert (error.device, error.phase) == ("sim:1", "run")
        assert "in failing" in str(error.__cause__)
        assert net.get(flights[2])[0].tobytes() == (x + 1 + 1 + 1).tobytes()
        until(lambda: {(0, 2), (1, 2), (2, 2)} <= set(net.dropped) and not any(net.out()))


@pytest.mark.parametrize("error", [ValueError("a bug"), MemoryError()], ids=repr)
def test_an_error_that_is_none_of_ours_is_one_of_ours_when_it_arrives(error: Exception) -> None:
    def failing(partition: int, step: int, values: list[Any]) -> list[Any]:
        raise error

    with Net([0], failing) as net, pytest.raises(HeteroError, match=type(error).__name__):
        net.run(1, vector(1))


def test_what_cannot_cross_fails_its_step_where_it_leaves() -> None:
    with Net([0, 1], lambda partition, step, values: [object()] if step == 1 else values) as net:
        with pytest.raises(TransportError, match="object"):
            net.run(1, vector(3))
        with pytest.raises(TransportError, match="dict"):
            net.launch(2, {})
        assert net.run(3, vector(3))[0].size == 3


@pytest.mark.parametrize("near", [True, False], ids=["shared memory", "frames"])
def test_a_slow_receiver_holds_its_senders_within_their_credit(
    near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not near:
        monkeypatch.setattr(endpoint_module, "reachable", lambda *_: False)
    gate, limits = threading.Event(), Limits(credit_bytes=3 * MIB, idle_bytes=3 * MIB)

    def gated(partition: int, step: int, values: list[Any]) -> list[Any]:
        if partition == 1:
            assert gate.wait(20)
        return plus_one(partition, step, values)

    with Net([0, 1, 2], gated, limits=limits) as net:
        x = vector(MIB // 4)
        flights = []
        launching = threading.Thread(
            target=lambda: [flights.append(net.launch(k, x, timeout_s=None)) for k in range(40)]
        )
        launching.start()
        until(lambda: len(flights) >= 3 and all(n >= 2 * MIB for n in net.out()[:2]))
        assert len(flights) < 40
        gate.set()
        launching.join(30)
        for flight in flights:
            assert net.get(flight)[0].tobytes() == (x + 1 + 1 + 1).tobytes()
        assert len(flights) == 40
        for process in (net.driver, *net.children):
            assert process.statistics()["peak_bytes_out"] <= 3 * MIB
            assert process.statistics()["block_bytes"] <= 6 * MIB
        until(lambda: not any(net.out()))


def test_a_step_that_ends_while_it_waits_for_credit_gives_back_what_it_had() -> None:
    gate, arrays = threading.Event(), 2 * [vector(10_000)]

    def gated(partition: int, step: int, parcels: Any, slot: str) -> list[list[Any]]:
        assert gate.wait(20)
        return [[parcels[0][0] + parcels[1][0]]]

    limits = Limits(credit_bytes=3 * 40_000, idle_bytes=0)
    driver = DriverChannel(1, LOCAL, DriverRoutes((0, 1), (0,), {0: (0,)}, (3,), ()))
    first = ChildChannel(
        0,
        "sim:0",
        1,
        LOCAL,
        ChildRoutes(((0, (0,)),), {0: ((1, (1,)), (2, (1,)))}, False, (CALLER, 1)),
        lambda *_: [[a] for a in arrays],
        lambda _: None,
        limits=limits,
    )
    routes = ChildRoutes(((1, (1, 2)),), {1: ((3, (CALLER,)),)}, False, (CALLER, 0))
    second = ChildChannel(1, "sim:1", 1, LOCAL, routes, gated, lambda _: None)
    connect(driver, [first, second])
    try:
        flights = [driver.launch(step, {0: []}, "primary") for step in (1, 2, 3)]
        until(lambda: first.statistics()["bytes_out"] == 3 * 40_000)  # the fourth waits
        driver.drop(flights[1])
        gate.set()
        for flight in (flights[0], flights[2]):
            assert driver.get(flight, 20)[3][0].tobytes() == (arrays[0] + arrays[1]).tobytes()
        until(lambda: first.statistics()["bytes_out"] == 0)
    finally:
        gate.set()
        for process in (driver, first, second):
            process.close()


def test_a_launch_that_fails_half_way_leaves_nothing_out_and_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    with Net([0, 1], plus_one) as net:
        with monkeypatch.context() as broken:

            def refusing(self: Endpoint, peer: int, message: Message, generation: int | None = None) -> bool:
                if isinstance(message, Begin):
                    raise TransportError("too large")
                return send(self, peer, message, generation)

            send = Endpoint.send
            broken.setattr(Endpoint, "send", refusing)
            with pytest.raises(TransportError, match="too large"):
                net.launch(1, vector(100_000))
        assert net.out()[0] == 0
        assert net.run(2, vector(100_000))[0].tobytes() == (vector(100_000) + 1 + 1).tobytes()


def test_one_step_may_be_larger_than_all_credit() -> None:
    with Net([0, 1, 0, 1], plus_one, limits=Limits(credit_bytes=1, idle_bytes=0)) as net:
        flights = [net.launch(k, vector(MIB // 4, k), vector(MIB // 4, -k % 7)) for k in range(5)]
        for k, flight in enumerate(flights):
            first, second = net.get(flight)
            assert first.tobytes() == (vector(MIB // 4, k) + 1 + 1 + 1 + 1).tobytes()
            assert second.tobytes() == (vector(MIB // 4, -k % 7) + 1 + 1 + 1 + 1).tobytes()


def test_what_a_child_keeps_beyond_a_step_is_never_overwritten_and_blocks_nobody() -> None:
    kept: list[np.ndarray] = []

    def keeping(partition: int, step: int, values: list[Any]) -> list[Any]:
        if partition == 1:
            kept.extend(values)
        return values  # the very arrays that arrived

    with Net([0, 1], keeping, limits=Limits(credit_bytes=MIB, idle_bytes=MIB)) as net:
        for step in range(6):
            assert net.run(step, vector(MIB // 4, step))[0].tobytes() == vector(MIB // 4, step).tobytes()
        for step, array in enumerate(kept):
            assert array.tobytes() == vector(MIB // 4, step).tobytes()
        until(lambda: not any(net.out()))


def test_messages_that_come_twice_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Endpoint.send

    def twice(self: Endpoint, peer: int, message: Message) -> bool:
        return send(self, peer, message) and send(self, peer, message)

    monkeypatch.setattr(Endpoint, "send", twice)
    runs: list[tuple[int, int]] = []

    def noting(partition: int, step: int, values: list[Any]) -> list[Any]:
        runs.append((partition, step))
        return plus_one(partition, step, values)

    with Net([0, 1, 0], noting) as net:
        flights = [net.launch(step, vector(50_000, step)) for step in range(20)]
        for step, flight in enumerate(flights):
            assert net.get(flight)[0].tobytes() == (vector(50_000, step) + 1 + 1 + 1).tobytes()
        assert len(runs) == len(set(runs)) == 60
        counts = net.children[0].statistics()
        assert counts["duplicates"] + counts["late"] > 0
        until(lambda: not any(net.out()))


def test_a_deadline_ends_the_wait_and_the_step_is_forgotten_everywhere() -> None:
    gate = threading.Event()

    def gated(partition: int, step: int, values: list[Any]) -> list[Any]:
        if (partition, step) == (1, 1):
            assert gate.wait(20)
        return plus_one(partition, step, values)

    with Net([0, 1], gated) as net:
        with pytest.raises(StepTimeoutError):
            net.run(1, vector(50_000), timeout_s=0.2)
        flight = net.launch(2, vector(50_000))
        gate.set()
        assert net.get(flight)[0].tobytes() == (vector(50_000) + 1 + 1).tobytes()
        until(lambda: not any(net.out()))
        assert net.driver.statistics()["late"] <= 1
        assert net.driver.statistics()["in_flight"] == 0


def test_a_child_that_is_lost_fails_the_steps_in_flight_and_all_later_ones() -> None:
    gate = threading.Event()

    def gated(partition: int, step: int, values: list[Any]) -> list[Any]:
        if partition == 0:
            assert gate.wait(20)
        return values

    with Net([0, 1], gated) as net:
        flights = [net.launch(step, vector(4)) for step in (1, 2)]
        lost_at = time.monotonic()
        net.children[1].close()
        for flight in flights:
            with pytest.raises(ChildDiedError) as caught:
                net.get(flight)
            assert caught.value.device == "sim:1"
        with pytest.raises(ChildDiedError, match="sim:1"):
            net.launch(3, vector(4))
        assert time.monotonic() - lost_at < 5
        assert isinstance(net.driver.broken, ChildDiedError)
        gate.set()


def test_a_channel_that_breaks_between_children_that_live_is_no_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_module, "PATIENCE_S", 0.05)
    gate = threading.Event()

    def gated(partition: int, step: int, values: list[Any]) -> list[Any]:
        assert gate.wait(20)
        return values

    with Net([0, 1], gated) as net:
        flight = net.launch(1, vector(4))
        net.children[0]._endpoint.send(CALLER, Lost(1))
        with pytest.raises(TransportError) as caught:
            net.get(flight)
        gate.set()
        assert type(caught.value) is TransportError
        assert "sim:0" in caught.value.message
        assert "sim:1" in caught.value.message


def test_closing_wakes_whoever_waits_and_everything_ends() -> None:
    gate = threading.Event()
    threads = set(threading.enumerate())

    def gated(partition: int, step: int, values: list[Any]) -> list[Any]:
        assert gate.wait(20)
        return values

    net = Net([0, 1], gated, limits=Limits(credit_bytes=1))
    caught: list[Exception] = []

    def waiting(call: Callable[[], Any]) -> None:
        try:
            call()
        except HeteroError as error:
            caught.append(error)

    flight = net.launch(1, vector(50_000))
    calls = (lambda: net.get(flight), lambda: net.launch(2, vector(50_000), timeout_s=None))
    waiters = [threading.Thread(target=waiting, args=(call,)) for call in calls]
    for waiter in waiters:
        waiter.start()
    until(lambda: net.driver._attempts == 2)
    net.driver.close()
    for waiter in waiters:
        waiter.join(20)
    assert [type(error) for error in caught] == [ClosedError, ClosedError]
    gate.set()
    net.close()
    net.close()
    until(lambda: set(threading.enumerate()) <= threads)


def test_children_end_when_their_driver_is_gone() -> None:
    with Net([0, 1], plus_one) as net:
        net.run(1, vector(4))
        net.driver.close()
        for child in net.children:
            thread = child._thread
            assert thread is not None
            thread.join(10)
            assert not thread.is_alive()


def test_a_child_that_sends_nothing_is_waited_for() -> None:
    with Net([0, 1], plus_one, silent=[0]) as net:
        flight = net.launch(1, vector(4))
        assert ("child", 0) in flight.missing or net.driver.statistics()["received"] > 0
        net.get(flight)
        assert not flight.missing


def test_the_thread_that_runs_partitions_is_set_up_first() -> None:
    """Numba's number of threads, for one, holds for the calling thread only."""
    ran: list[str] = []

    def noting(partition: int, step: int, values: list[Any]) -> list[Any]:
        ran.append(threading.current_thread().name)
        return values

    with Net([0, 1], noting) as net:
        net.run(1, vector(4))
        assert net.began == ran == ["hetero-channels"] * 2


def test_idle_channels_take_no_time_of_the_processor() -> None:
    with Net([0, 1, 2], plus_one) as net:
        net.run(1, vector(50_000))
        used = time.process_time()
        assert not threading.Event().wait(1.0)
        assert time.process_time() - used < 0.04  # 1 % for each of four


def test_a_channel_cannot_be_had_where_a_peer_is_silent() -> None:
    from tests.actors.channels.nets import LOCAL, _child_routes

    child = ChildChannel(0, "sim:0", 1, LOCAL, _child_routes(0, [0], False), lambda *_: [], lambda _: None)
    other = Endpoint(-1, "driver", 1, LOCAL)
    with pytest.raises(TransportError, match="driver"):
        child.connect([other.card], 0.2)
    child.close()
    other.close()
    channel = DriverChannel(1, LOCAL, driver_module.DriverRoutes((0,), (0,), {}, (), ()))
    with pytest.raises(TransportError, match="sim:0"):
        channel.connect([child.card], lambda: None, 5)
    channel.close()


@pytest.mark.parametrize("silent", [(), (0,)], ids=["sends", "silent"])
def test_a_steady_step_runs_as_it_arrives(monkeypatch: pytest.MonkeyPatch, silent: tuple[int, ...]) -> None:
    delivered: list[int] = []
    deliver = Mailbox.deliver

    def noting(self: Mailbox, attempt: int, parcel: int, content: Any) -> Any:
        delivered.append(attempt)
        return deliver(self, attempt, parcel, content)

    def picky(partition: int, step: int, values: list[Any]) -> list[Any]:
        if step == 7 and partition == 0:
            raise KernelError("no")
        return plus_one(partition, step, values)

    monkeypatch.setattr(Mailbox, "deliver", noting)
    with Net([0, 1], picky, silent=silent) as net:
        for step in range(1, 12):
            if step == 7:
                with pytest.raises(KernelError, match="no"):
                    net.run(step, vector(8))
            else:
                np.testing.assert_allclose(net.run(step, vector(8))[0], vector(8) + 2)
        net.run(12, vector(9))  # of another shape
        assert set(delivered) <= {8}  # with which child 1 may hear of the end of the one before
        flights = [net.launch(step, vector(8)) for step in range(13, 40)]
        assert [net.get(f)[0].tobytes() for f in flights] == [net.run(40, vector(8))[0].tobytes()] * 27
    with Net([0, 1, 0], plus_one) as net:  # two partitions on one child
        delivered.clear()
        for step in range(1, 5):
            np.testing.assert_allclose(net.run(step, vector(8))[0], vector(8) + 3)
        assert delivered
