"""Unix sockets between peers: strangers are kept out, whatever they know; nothing is lost, stuck or left behind."""

from __future__ import annotations

import os
import pickle
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.channels import sockets
from actors.channels.cards import Card
from actors.channels.endpoint import Endpoint, wait_connected
from actors.channels.handshake import CLAIM_BYTES, NONCE_BYTES, PROOF_BYTES, Pair
from actors.channels.intake import Arrived, PeerConnected, PeerLost
from actors.channels.messages import Ended, Packed, Sent, write
from actors.channels.sockets import MAX_STRANGERS, LocalLink, LocalRoad
from actors.channels.zeromq import ZeroMQLink
from tests.actors.channels.nets import LOCAL, Net
from tests.actors.channels.test_blocks import killed, started
from tests.actors.channels.test_endpoint import PEER, until

pytestmark = pytest.mark.timeout(180)
MIB = 1 << 20


class Two:
    """Two endpoints, connected with each other."""

    def __init__(self) -> None:
        self.a, self.b = (Endpoint(k, f"sim:{k}", 1, LOCAL) for k in (0, 1))
        self.a.connect([self.b.card])
        self.b.connect([self.a.card])
        missing = 2
        while missing:
            missing -= sum(isinstance(e, PeerConnected) for end in (self.a, self.b) for e in end.poll(0.01))

    def works(self) -> None:
        """A message still arrives, and only it."""
        assert self.b.send(0, Ended(1, 1))
        assert until(self.a, bool) == [Arrived(1, Ended(1, 1))]

    def close(self) -> None:
        self.a.close()
        self.b.close()


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    made.close()


@pytest.fixture
def strangers() -> Iterator[Callable[[Card], socket.socket]]:
    """Sockets of this process, connected to a card's name."""
    made: list[socket.socket] = []

    def connected(card: Card) -> socket.socket:
        made.append(socket.socket(socket.AF_UNIX))
        made[-1].settimeout(20)
        made[-1].connect(f"\0{card.name}")
        return made[-1]

    yield connected
    for each in made:
        each.close()


def turned_away(end: Endpoint, stranger: socket.socket, refused: int) -> bool:
    """Whether the endpoint counts so many refusals, and has closed this connection."""
    until(end, lambda _: end.counters.refused >= refused)
    try:
        while stranger.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return end.counters.refused == refused


def test_peers_of_one_machine_talk_over_their_sockets_whose_names_are_in_no_file_system(two: Two) -> None:
    for end in (two.a, two.b):
        (link,) = end._links.values()
        assert isinstance(link, LocalLink)
        assert f"@{end.card.name}" in Path("/proc/net/unix").read_text()
    two.works()
    two.close()
    assert two.a.card.name not in Path("/proc/net/unix").read_text()


def test_another_user_is_refused_before_a_word_is_said_and_none_is_connected_to(
    two: Two, strangers: Callable[[Card], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sockets, "_credentials", lambda _: (os.getpid(), os.geteuid() + 1))
        stranger = strangers(two.a.card)
        until(two.a, lambda _: two.a.counters.refused == 1)
        assert stranger.recv(1) == b""
        other = Endpoint(2, "sim:2", 1, LOCAL)
        other.connect([two.a.card])
        assert isinstance(other._links[0], ZeroMQLink)
        other.close()
    two.works()


def test_another_process_of_the_same_user_is_refused(two: Two) -> None:
    code = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect("\\0" + sys.argv[1])
print("connected", flush=True)
print(len(s.recv(100)), flush=True)
sys.stdin.readline()
"""
    process, _ = started(code, two.a.card.name)
    try:
        until(two.a, lambda _: two.a.counters.refused == 1)
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
    finally:
        killed(process)
    two.works()


@pytest.mark.parametrize(
    "who", ["nobody", "an unknown peer", "a wrong secret", "another generation", "noise"]
)
def test_who_cannot_prove_it_is_refused(
    two: Two, strangers: Callable[[Card], socket.socket], who: str
) -> None:
    stranger = strangers(two.a.card)
    until(two.a, lambda _: bool(select.select([stranger], [], [], 0)[0]))
    asked = stranger.recv(NONCE_BYTES)
    me = replace(two.b.card, peer=7 if who == "an unknown peer" else 1)
    if who == "a wrong secret":
        me = replace(me, secret=os.urandom(32))
    claim = Pair(me, two.a.card, 2 if who == "another generation" else 1).claim(
        asked, os.urandom(NONCE_BYTES)
    )
    if who == "noise":
        claim = os.urandom(CLAIM_BYTES)
    if who == "nobody":
        stranger.shutdown(socket.SHUT_WR)
    else:
        stranger.sendall(claim)
    assert turned_away(two.a, stranger, 1)
    two.works()


def test_a_claim_that_was_overheard_opens_nothing_and_no_peer_comes_twice(
    strangers: Callable[[Card], socket.socket],
) -> None:
    a, b = Endpoint(0, "sim:0", 1, LOCAL), Endpoint(1, "sim:1", 1, LOCAL)
    try:
        a.connect([b.card])
        first, second, third = (strangers(a.card) for _ in range(3))
        until(a, lambda _: len(select.select([first, second, third], [], [], 0)[0]) == 3)
        asked, asking = first.recv(NONCE_BYTES), os.urandom(NONCE_BYTES)
        claim = Pair(b.card, a.card, 1).claim(asked, asking)
        second.recv(NONCE_BYTES)
        second.sendall(claim)
        assert turned_away(a, second, 1)
        first.sendall(claim)
        until(a, lambda _: bool(select.select([first], [], [], 0)[0]))
        assert Pair(b.card, a.card, 1).accepts(first.recv(PROOF_BYTES), asked, asking)
        third.sendall(Pair(b.card, a.card, 1).claim(third.recv(NONCE_BYTES), asking))
        assert turned_away(a, third, 2)
        first.sendall(b"".join(sockets.joined(write(Ended(3, 1), 1))))
        assert until(a, bool) == [Arrived(1, Ended(3, 1))]
    finally:
        a.close()
        b.close()


def test_a_listener_that_cannot_prove_itself_is_told_nothing_and_the_other_road_is_taken() -> None:
    a, b = Endpoint(0, "sim:0", 1, LOCAL), Endpoint(1, "sim:1", 1, LOCAL)
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(f"\0hetero-impostor-{os.getpid()}")
        impostor.listen()
        a.connect([replace(b.card, name=f"hetero-impostor-{os.getpid()}")])
        b.connect([a.card])
        taken, _ = impostor.accept()
        with taken:
            asked = os.urandom(NONCE_BYTES)
            taken.sendall(asked)
            until(a, lambda _: bool(select.select([taken], [], [], 0)[0]))
            claim = taken.recv(1 << 16)
            assert len(claim) == CLAIM_BYTES
            assert not any(secret in claim for secret in (a.card.secret, b.card.secret))
            own = Pair(a.card, b.card, 1).proof("connecting", asked, claim[8 : 8 + NONCE_BYTES])
            taken.sendall(own)  # what it has heard, sent back
            until(a, lambda _: isinstance(a._links[1], ZeroMQLink))
    try:
        connected: set[str] = set()
        while len(connected) < 2:
            for end in (a, b):
                connected |= {end.card.device for e in end.poll(0.01) if isinstance(e, PeerConnected)}
        assert a.send(1, Ended(1, 1))
        assert until(b, bool) == [Arrived(0, Ended(1, 1))]
    finally:
        a.close()
        b.close()


def test_silent_strangers_hold_nobody_up_and_are_no_more_than_so_many(
    strangers: Callable[[Card], socket.socket],
) -> None:
    a, b = Endpoint(0, "sim:0", 1, LOCAL), Endpoint(1, "sim:1", 1, LOCAL)
    try:
        a.connect([b.card])
        for _ in range(MAX_STRANGERS):
            strangers(a.card)
            a.poll(0)
        assert a.counters.refused == 0
        until(a, lambda _: not select.select([a._intake], [], [], 0)[0])
        b.connect([a.card])
        missing = 2
        while missing:
            missing -= sum(isinstance(e, PeerConnected) for end in (a, b) for e in end.poll(0.01))
        assert isinstance(a._links[1], LocalLink)
        assert a.counters.refused == 1  # the oldest, when the peer came
        assert len(a._local._arriving) == MAX_STRANGERS  # type: ignore[union-attr]
    finally:
        a.close()
        b.close()


def test_what_is_no_message_ends_the_connection_and_is_counted(two: Two) -> None:
    link = two.b._links[0]
    assert isinstance(link, LocalLink)
    two.b.send(0, Ended(1, 1))
    link._socket.send(b"\xff" * 100)
    assert until(two.a, lambda events: len(events) == 2) == [
        Arrived(1, Ended(1, 1)),
        PeerLost(1, "it sent what is no message"),
    ]
    assert two.a.counters.malformed == 1
    assert until(two.b, bool) == [PeerLost(0, "its channel closed")]
    assert not two.a.send(1, Ended(2, 1))
    assert not two.b.send(0, Ended(2, 1))


def test_all_that_was_sent_arrives_before_the_end_and_half_a_message_is_counted(two: Two) -> None:
    link = two.b._links[0]
    assert isinstance(link, LocalLink)
    for k in range(500):
        two.b.send(0, Ended(k, 1))
    link._socket.send(sockets.joined(write(Ended(500, 1), 1))[0][:-1])
    two.b.close()
    events = until(two.a, lambda events: any(isinstance(e, PeerLost) for e in events))
    assert events == [*(Arrived(1, Ended(k, 1)) for k in range(500)), PeerLost(1, "its channel closed")]
    assert two.a.counters.malformed == 1
    assert two.a.poll(0) == []


def test_a_peer_that_is_killed_is_heard_and_nothing_of_it_is_left() -> None:
    end = Endpoint(0, "sim:0", 1, LOCAL)
    peer, told = started(PEER)
    try:
        assert peer.stdin is not None
        card = pickle.loads(bytes.fromhex(told))
        peer.stdin.write(pickle.dumps(end.card).hex() + "\n")
        peer.stdin.flush()
        end.connect([card])
        wait_connected(end, time.monotonic() + 20)
        assert isinstance(end._links[1], LocalLink)
        assert f"@{card.name}" in Path("/proc/net/unix").read_text()
        killed(peer)
        until(end, lambda events: PeerLost(1, "its channel closed") in events)
        assert card.name not in Path("/proc/net/unix").read_text()
        assert not [p for p in (*Path("/tmp").iterdir(), *Path("/dev/shm").iterdir()) if card.name in p.name]
    finally:
        end.close()


def test_both_sides_may_send_more_than_any_buffer_holds_at_once(two: Two) -> None:
    """Sending never waits, so that two who send at the same time never wait for each other."""
    rng = np.random.default_rng(0)
    bodies = [rng.integers(0, 256, n, np.uint8) for n in (4 * MIB, 100, 20 * MIB, 1, 9 * MIB + 3)]
    got: dict[int, list[Any]] = {0: [], 1: []}

    def one(end: Endpoint, other: int) -> None:
        for k, body in enumerate(bodies):
            assert end.send(other, Sent(k, 1, "", 0, (Packed(0, [], body.nbytes, 0, None, body),)))
        while len(got[other]) < len(bodies):
            got[other] += [e.message for e in end.poll(20) if isinstance(e, Arrived)]
        link = end._links[other]
        assert isinstance(link, LocalLink)
        until(end, lambda _: not link._waiting)

    threads = [threading.Thread(target=one, args=(e, k)) for e, k in ((two.a, 1), (two.b, 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for messages in got.values():
        assert [m.step for m in messages] == list(range(len(bodies)))
        for message, body in zip(messages, bodies, strict=True):
            assert bytes(message.parcels[0].body) == body.tobytes()


def test_a_full_buffer_keeps_the_order_of_messages_and_costs_no_time_while_it_is_full(two: Two) -> None:
    body = np.zeros(4 * MIB, np.uint8)
    two.b.send(0, Sent(0, 1, "", 0, (Packed(0, [], body.nbytes, 0, None, body),)))
    for k in range(1, 100):
        two.b.send(0, Ended(k, 1))
    used = time.process_time()
    assert two.b.poll(0.5) == []
    assert time.process_time() - used < 0.05
    got: list[Any] = []
    while len(got) < 100:
        two.b.poll(0)
        got += [e.message.step for e in two.a.poll(0.01) if isinstance(e, Arrived)]  # type: ignore[union-attr]
    assert got == list(range(100))


@pytest.mark.parametrize("near", [True, False], ids=["shared memory", "frames"])
@pytest.mark.parametrize("far", [{1}, {0, 1, 2, -1}, {-1}], ids=["one child", "all", "the driver"])
def test_peers_here_and_elsewhere_in_one_chain_give_the_same_bits(
    near: bool, far: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = LocalRoad.link
    reached: list[bool] = []

    def partly(self: LocalRoad, card: Card, refused: Callable[[], object]) -> LocalLink | None:
        here = self.me is not None and not far & {card.peer, self.me.peer}
        reached.append(here)
        return link(self, card, refused) if here else None

    monkeypatch.setattr(LocalRoad, "link", partly)
    if not near:
        monkeypatch.setattr("actors.channels.endpoint.reachable", lambda *_: False)
    with Net([0, 1, 2, 0], lambda partition, step, values: [v * np.float32(1.5) for v in values]) as net:
        for step, n in enumerate((1, 5000, 300_000)):
            x = np.random.default_rng(step).standard_normal(n).astype(np.float32)
            want = x
            for _ in range(4):
                want = want * np.float32(1.5)
            assert net.run(step, x)[0].tobytes() == want.tobytes()
    assert set(reached) == ({False} if len(far) == 4 else {True, False})
