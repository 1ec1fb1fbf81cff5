"""Endpoints on both roads: strangers are kept out, other generations are fenced, and deaths are heard at once."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import zmq

from actors.channels.cards import Card
from actors.channels.endpoint import Endpoint, wait_connected
from actors.channels.intake import Arrived, Event, PeerConnected, PeerLost
from actors.channels.keys import KeyPair, answer
from actors.channels.messages import Ended, Lost, Message, write
from actors.channels.sockets import LocalRoad
from hetero.errors import TransportError
from tests.actors.channels.nets import LOCAL
from tests.actors.channels.test_blocks import killed, started

pytestmark = pytest.mark.timeout(180)

PEER = """
import pickle, sys, time
from actors.channels.endpoint import Endpoint, wait_connected
from actors.channels.messages import Ended
end = Endpoint(1, "peer", 1, "127.0.0.1")
print(pickle.dumps(end.card).hex(), flush=True)
end.connect([pickle.loads(bytes.fromhex(sys.stdin.readline()))])
wait_connected(end, time.monotonic() + 20)
end.send(0, Ended(1, 1))
while True:
    end.poll(None)
"""


@pytest.fixture(params=["sockets", "zeromq"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Peers reach each other over their Unix sockets, or, as from other machines, only over ZeroMQ."""
    if request.param == "zeromq":
        monkeypatch.setattr(LocalRoad, "link", lambda *_: None)
    name: str = request.param
    return name


@pytest.fixture
def ends(road: str) -> Iterator[Callable[..., list[Endpoint]]]:
    with ExitStack() as stack:

        def connected(n: int = 2, generation: int = 1) -> list[Endpoint]:
            made = [Endpoint(k, f"sim:{k}", generation, LOCAL) for k in range(n)]
            for end in made:
                stack.callback(end.close)
                end.connect([other.card for other in made if other is not end])
            missing = n * (n - 1)
            while missing:  # in turn, since each has to answer the others
                missing -= sum(isinstance(e, PeerConnected) for end in made for e in end.poll(0.01))
            return made

        yield connected


def until(end: Endpoint, wanted: Callable[[list[Event]], bool], limit_s: float = 20.0) -> list[Event]:
    events: list[Event] = []
    deadline = time.monotonic() + limit_s
    while not wanted(events):
        assert time.monotonic() < deadline, events
        events += end.poll(deadline - time.monotonic())
    return events


def stranger(card: Card, keys: KeyPair | None, server: bytes | None = None) -> tuple[Any, Any]:
    """A socket that would like to send to this endpoint."""
    context = zmq.Context()
    sender = context.socket(zmq.PUSH)
    sender.linger = 0
    if keys is not None:
        sender.curve_serverkey = server or card.public
        sender.curve_publickey, sender.curve_secretkey = keys.public, keys.secret
    sender.connect(card.address)
    sender.send(b"let me in")
    return context, sender


def test_messages_arrive_in_order_from_whoever_is_authenticated(ends: Callable[..., list[Endpoint]]) -> None:
    a, b, c = ends(3)
    for k in range(100):
        assert b.send(0, Ended(k, 1))
        assert c.send(0, Ended(k, 2))
    got = [e for e in until(a, lambda events: len(events) == 200) if isinstance(e, Arrived)]
    for peer in (1, 2):
        steps = [e.message.step for e in got if e.peer == peer and isinstance(e.message, Ended)]
        assert steps == list(range(100))


def test_it_listens_on_the_given_address_only(ends: Callable[..., list[Endpoint]]) -> None:
    a, _ = ends()
    host, _, port = a.card.address.removeprefix("tcp://").rpartition(":")
    assert host == LOCAL
    with socket.socket() as elsewhere:
        elsewhere.settimeout(5)
        assert elsewhere.connect_ex(("127.0.0.2", int(port))) != 0  # 0.0.0.0 would have answered
    with pytest.raises(TransportError, match="cannot listen"):
        Endpoint(0, "sim:0", 1, "203.0.113.7")


@pytest.mark.parametrize("who", ["no keys", "keys of its own", "another server's key"])
def test_a_stranger_is_not_let_in(ends: Callable[..., list[Endpoint]], who: str) -> None:
    a, b = ends()
    keys = None if who == "no keys" else KeyPair.make()
    server = KeyPair.make().public if who == "another server's key" else None
    context, _ = stranger(a.card, keys, server)
    try:
        if who == "keys of its own":
            until(a, lambda _: a.counters.refused > 0)
        b.send(0, Ended(1, 1))
        (event,) = until(a, lambda events: bool(events))
        assert event == Arrived(1, Ended(1, 1))
        b.send(0, Ended(2, 1))
        assert until(a, lambda events: bool(events)) == [Arrived(1, Ended(2, 1))]
        assert a.counters.received == 2
        assert a.counters.malformed == 0
    finally:
        context.destroy(linger=0)


def test_nobody_is_let_in_before_the_peers_are_known() -> None:
    end = Endpoint(0, "sim:0", 1, LOCAL)
    context, _ = stranger(end.card, KeyPair.make())
    try:
        until(end, lambda _: end.counters.refused > 0)
        assert end.counters.received == 0
    finally:
        context.destroy(linger=0)
        end.close()


def test_only_the_peers_keys_pass_and_each_sends_in_its_own_name() -> None:
    known, other = KeyPair.make(), KeyPair.make()
    raw = {k: zmq.utils.z85.decode(k.public) for k in (known, other)}

    def request(key: bytes, mechanism: bytes = b"CURVE") -> list[bytes]:
        return [b"1.0", b"9", b"hetero", b"127.0.0.1", b"", mechanism, key]

    reply, admitted = answer(request(raw[known]), {known.public: 4})
    assert admitted
    assert reply[:5] == [b"1.0", b"9", b"200", b"OK", b"4"]
    for bad in (request(raw[other]), request(b"short"), request(raw[known], b"NULL"), [b"1.0"], []):
        reply, admitted = answer(bad, {known.public: 4})
        assert not admitted
        assert reply[2] == b"400"


@pytest.mark.parametrize(
    "frames", [[b""], [b"\xc1\xc1"], [b"noise"] * 3, [b"x"] * 4000, [os.urandom(1000)]], ids=lambda f: len(f)
)
def test_a_malformed_message_of_a_peer_is_dropped_and_counted(
    ends: Callable[..., list[Endpoint]], frames: list[bytes]
) -> None:
    a, b = ends()
    b._links[0].send(frames)
    b.send(0, Ended(1, 1))
    assert until(a, lambda events: bool(events)) == [Arrived(1, Ended(1, 1))]
    assert a.counters.malformed == 1


def test_a_message_of_another_generation_is_fenced_and_counted(ends: Callable[..., list[Endpoint]]) -> None:
    a, b = ends(2, generation=5)
    for generation in (4, 6):
        b._links[0].send(write(Ended(1, 1), generation))
    b.send(0, Ended(2, 1))
    assert until(a, lambda events: bool(events)) == [Arrived(1, Ended(2, 1))]
    assert a.counters.fenced == 2


def test_a_peer_that_closes_is_heard_at_once_and_nothing_is_sent_to_it(
    ends: Callable[..., list[Endpoint]],
) -> None:
    a, b = ends()
    b.close()
    b.close()
    (event,) = until(a, lambda events: bool(events), limit_s=5)  # before a heartbeat is missed
    assert isinstance(event, PeerLost)
    assert event.peer == 1
    assert not a.send(1, Ended(1, 1))
    assert a.poll(0) == []  # once


def test_a_peer_that_is_killed_is_heard_at_once(road: str) -> None:
    import pickle

    end = Endpoint(0, "sim:0", 1, LOCAL)
    peer, told = started(PEER)
    try:
        assert peer.stdin is not None
        peer.stdin.write(pickle.dumps(end.card).hex() + "\n")
        peer.stdin.flush()
        end.connect([pickle.loads(bytes.fromhex(told))])
        assert end.near(1)
        wait_connected(end, time.monotonic() + 20)
        killed_at = time.monotonic()
        killed(peer)
        events = until(end, lambda events: any(isinstance(e, PeerLost) for e in events))
        assert time.monotonic() - killed_at < 2
        assert all(e.peer == 1 for e in events if isinstance(e, PeerLost))
    finally:
        end.close()


def test_a_peer_that_does_not_answer_or_refuses_ends_the_connecting(road: str) -> None:
    a, b = Endpoint(0, "sim:0", 1, LOCAL), Endpoint(1, "sim:1", 1, LOCAL)
    try:
        a.connect([b.card])
        with pytest.raises(TransportError, match="sim:1"):  # b does not poll
            wait_connected(a, time.monotonic() + 0.2)
    finally:
        a.close()
        b.close()
    a, b = Endpoint(0, "sim:0", 1, LOCAL), Endpoint(1, "sim:1", 1, LOCAL)
    try:
        a.connect([b.card])
        b.connect([])
        roads = 1 if road == "zeromq" else 2  # the other one is tried as well
        answering = threading.Thread(target=lambda: until(b, lambda _: b.counters.refused == roads))
        answering.start()
        with pytest.raises(TransportError, match="sim:1"):
            wait_connected(a, time.monotonic() + 20)
        answering.join()
    finally:
        a.close()
        b.close()


def test_another_machines_memory_is_not_taken_for_ours(ends: Callable[..., list[Endpoint]]) -> None:
    a, b = ends()
    assert a.near(1)
    end = Endpoint(7, "sim:7", 1, LOCAL)
    end.connect([replace(b.card, content=b"?" * 32), replace(a.card, process=2**22 + 1)])
    assert not end.near(1)
    assert not end.near(0)
    end.close()


def test_waiting_takes_no_time_of_the_processor_and_ends_when_it_is_woken(
    ends: Callable[..., list[Endpoint]],
) -> None:
    a, _ = ends()
    used = time.process_time()
    assert a.poll(1.0) == []
    assert time.process_time() - used < 0.05
    woken = threading.Thread(target=a.wake)
    woken.start()
    assert a.poll(None) == []
    woken.join()


def test_a_closed_endpoint_leaves_no_descriptor_and_no_thread() -> None:
    def state() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    message: Message = Lost(1)
    Endpoint(0, "sim:0", 1, LOCAL).close()
    before = state()
    for _ in range(5):
        a, b = Endpoint(0, "sim:0", 1, LOCAL), Endpoint(1, "sim:1", 1, LOCAL)
        a.connect([b.card])
        b.connect([a.card])
        a.close()
        b.close()
        assert not a.send(1, message)
        a.wake()
    assert state() == before
