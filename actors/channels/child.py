"""A child's end of the channels: a thread that runs each partition as soon as its inputs are here."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from actors.channels.bodies import Incoming, Limits, Outgoing
from actors.channels.cards import Card
from actors.channels.courier import Courier
from actors.channels.endpoint import wait_connected
from actors.channels.faults import fault_of
from actors.channels.idleness import Idleness
from actors.channels.intake import Arrived, Event, PeerLost
from actors.channels.mailbox import Arrival, Mailbox, Work
from actors.channels.messages import (
    Abort,
    Begin,
    Ended,
    Failed,
    Known,
    Lost,
    Message,
    Packed,
    Received,
    Sent,
    Settled,
)
from actors.channels.routes import ChildRoutes
from actors.channels.steady import Steady
from actors.channels.tampering import make_endpoint
from actors.channels.wire import Encoded, encode
from hetero.errors import TransportError
from hetero.planner.plan import CALLER

Run = Callable[[int, int, Sequence[Sequence[Any]], str], list[list[Any]]]
"""(partition, step, parcels, graph slot) -> the parcels that it sends."""


@dataclass(slots=True, eq=False)
class _Post:
    """What a partition has made, on its way: parcels that wait for credit, then messages by peer."""

    work: Work
    waiting: deque[tuple[int, tuple[int, ...], Encoded]]
    packed: dict[int, list[Packed]] = field(default_factory=dict)


class ChildChannel:
    """Runs in a thread of its own, from `connect` to `close`. Partitions of one child run one after the other, steps in
    the driver's order; while something made here waits for credit, no further partition runs.

    While a partition waits for its device, a courier takes what comes in, and sends what the one before has made.
    """

    def __init__(
        self,
        me: int,
        device: str,
        generation: int,
        address: str,
        routes: ChildRoutes,
        run: Run,
        drop: Callable[[int], None],
        *,
        begin: Callable[[], object] | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`drop(step)`: forget a step that failed elsewhere. `begin` is called first in the thread of partitions.

        Raises: TransportError where it cannot listen.
        """
        self._endpoint = make_endpoint(me, device, generation, address)
        self.card = self._endpoint.card
        self.generation = generation
        self._routes, self._run, self._drop, self._begin = routes, run, drop, begin
        self._mailbox = Mailbox(routes.tasks)
        self._outgoing = Outgoing(limits or Limits())
        self._incoming = Incoming(limits)
        self._steady = {
            partition: Steady(generation, partition, sends) for partition, sends in routes.sends.items()
        }
        self._post: _Post | None = None
        self._left: list[Iterable[tuple[int, Message | bytes]]] = []
        """Messages that the next partition need not wait for."""
        self._idleness = Idleness()
        self._courier: Courier | None = None
        self._arrivals = {kind: 0 for kind in Arrival if kind is not Arrival.KEPT}
        self._closing = False
        self._thread: threading.Thread | None = None
        self._connected: threading.Event = threading.Event()
        self._failure: TransportError | None = None

    def connect(self, cards: Sequence[Card], timeout_s: float) -> None:
        """Connect to the peers among these cards, and begin. Raises: TransportError where one cannot be reached."""
        self._endpoint.connect([c for c in cards if c.peer in self._routes.peers])
        deadline = time.monotonic() + timeout_s
        self._thread = threading.Thread(
            target=self._loop, args=(deadline,), name="hetero-channels", daemon=True
        )
        self._thread.start()
        self._connected.wait(timeout_s + 1)
        if self._failure is not None:
            raise self._failure

    def statistics(self) -> dict[str, int]:
        """Counters of messages, of what was dropped and why, and of bytes."""
        return {
            **asdict(self._endpoint.counters),
            **{kind.value: n for kind, n in self._arrivals.items()},
            "waiting": len(self._mailbox),
            "reading": len(self._incoming),
            **self._outgoing.statistics(),
        }

    def close(self) -> None:
        """End the thread, when the partition that it runs has ended, and free everything. Repeatable."""
        self._closing = True
        self._endpoint.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._endpoint.close()
        self._outgoing.close()

    # -- the thread ----------------------------------------------------------------------------------------------
    def _loop(self, deadline: float) -> None:
        try:
            if self._begin is not None:
                self._begin()
            early = wait_connected(self._endpoint, deadline)
        except TransportError as error:
            self._failure = error
            return
        except Exception as error:
            self._failure = TransportError(f"no channels: {type(error).__name__}: {error}")
            return
        finally:
            self._connected.set()
        try:
            self._handle(early)
            self._advance()
            while not self._closing:
                if self._courier is not None:
                    self._courier.rest()
                events = self._endpoint.poll(None)
                if len(events) > 1 or not events or not self._straight(events[0]):
                    self._handle(events)
                    self._advance()
            self._deliver()
        finally:
            # The driver is gone, or wants this to end, or this failed, which peers must hear of. What they hold of
            # our blocks stays mapped over there.
            if self._courier is not None:
                self._courier.close()
            self._endpoint.close()

    def _straight(self, event: Event) -> bool:
        """Whether this is all that the next partition waits for, and all there is, as mostly; it has run then."""
        if not isinstance(event, Arrived) or self._post is not None or self._left or self._incoming.released:
            return False
        message = event.message
        if not isinstance(message, Known) or message.form.partition == CALLER != event.peer:
            return False
        form = message.form
        work = self._mailbox.straight(message.attempt, message.step, form.graph_slot, form.numbers)
        if work is None or work.partition in self._idleness:
            return False
        work.contents = message.contents
        self._compute(work, False)
        if self._left:
            self._deliver()
        return True

    def _advance(self) -> None:
        """Run what is ready, and send what it makes, as long as there is both work and credit."""
        mailbox = self._mailbox
        while not self._closing:
            if self._post is not None and not self._mail(self._post):
                return
            work = mailbox.next()
            idle = work is not None and work.partition in self._idleness
            if self._left and not idle:
                self._deliver()
            if work is None:
                return
            self._compute(work, idle)
            if mailbox.empty and self._post is None:
                if self._left:
                    self._deliver()
                return  # what has come meanwhile is found by whoever waits for it
            if idle and self._courier is not None:
                self._courier.check()
            else:
                self._deliver()
                self._handle(self._endpoint.poll(0))

    def _errand(self) -> None:
        """The courier's turn."""
        self._deliver()
        self._handle(self._endpoint.poll(0))

    def _deliver(self) -> None:
        left, self._left = self._left, []
        for messages in left:
            for peer, message in messages:
                self._endpoint.send(peer, message)

    def _handle(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Arrived(peer, message):
                    self._take(peer, message)
                case PeerLost(peer) if peer == CALLER:
                    self._closing = True
                case PeerLost(peer):
                    self._endpoint.send(CALLER, Lost(peer))
        if self._incoming.released:
            self._settle()

    def _take(self, peer: int, message: Received) -> None:
        match message:
            case Known(step, attempt, form, contents) if form.partition != CALLER or peer == CALLER:
                self._keep(step, attempt, form.graph_slot, zip(form.numbers, contents, strict=True))
            case Sent(step, attempt, graph_slot) | Begin(step, attempt, graph_slot) if (
                type(message) is Sent or peer == CALLER
            ):
                self._keep(step, attempt, graph_slot, [(p.parcel, (peer, p)) for p in message.parcels])
            case Abort(step, attempt) if peer == CALLER:
                self._end(attempt)
                self._drop(step)
            case Settled():
                self._outgoing.settle(peer, message)
            case _:
                self._endpoint.counters.malformed += 1

    def _keep(self, step: int, attempt: int, graph_slot: str, contents: Iterable[tuple[int, Any]]) -> None:
        """Parcels of an attempt, by number: their values, or sender and parcel where these are yet to be opened."""
        self._mailbox.begin(attempt, step, graph_slot)
        for parcel, content in contents:
            arrival = self._mailbox.deliver(attempt, parcel, content)
            if arrival is not Arrival.KEPT:
                self._arrivals[arrival] += 1
                if arrival is Arrival.LATE:
                    self._refuse(content)

    def _refuse(self, content: Any) -> None:
        """It will not be opened."""
        if type(content) is tuple:
            self._incoming.refuse(*content)

    # -- partitions ----------------------------------------------------------------------------------------------
    def _compute(self, work: Work, idle: bool) -> None:
        """Run a partition. `idle`: it will wait for its device, and need not wait for what is left to be sent."""
        step, attempt = work.step, work.attempt
        outline = self._steady[work.partition].outlines.get(work.graph_slot)
        try:
            values, work.contents = work.contents, []
            for k, content in enumerate(values):
                if type(content) is tuple:
                    peer, packed = content
                    values[k] = self._incoming.open(peer, self._endpoint.process(peer), attempt, packed)
                    del content, packed
            started = time.perf_counter()
            if idle:
                made = self._run_apart(work, values)
            else:
                made = self._run(work.partition, step, values, work.graph_slot)
            self._idleness.ended(work.partition, time.perf_counter() - started)
            del values
            bodies = None if outline is None else outline.bodies(made)
            if bodies is None:
                self._post = self._encoded(work, made)
        except Exception as error:
            self._fail(step, attempt, error)
            return
        del made
        if self._post is not None:
            self._mail(self._post)
        elif outline is not None and bodies is not None:
            if idle:  # written when they are sent
                self._left.append(outline.messages(step, attempt, bodies))
            else:
                for peer, message in outline.messages(step, attempt, bodies):
                    self._endpoint.send(peer, message)
            self._posted(work)

    def _run_apart(self, work: Work, values: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Run it, with the desk lent."""
        if self._courier is None:
            self._courier = Courier(self._endpoint.fileno(), self._errand)
        self._courier.lend()
        try:
            return self._run(work.partition, work.step, values, work.graph_slot)
        finally:
            self._courier.take_back()

    def _encoded(self, work: Work, made: Sequence[Sequence[Any]]) -> _Post:
        sends = self._routes.sends[work.partition]
        encoded = [encode(values) for values in made]
        post = deque((*send, each) for send, each in zip(sends, encoded, strict=True))
        self._steady[work.partition].sent(work.graph_slot, made, encoded)
        return _Post(work, post)

    def _mail(self, post: _Post) -> bool:
        """Send as much of it as there is credit for; whether that was all."""
        work = post.work
        while post.waiting:
            parcel, destinations, encoded = post.waiting[0]
            if not self._outgoing.allowed(work.attempt, encoded.nbytes):
                return False
            near = [d for d in destinations if self._endpoint.near(d)]
            far = [d for d in destinations if d not in near]
            try:
                for_near, for_far = self._outgoing.pack(parcel, encoded, work.attempt, near, far)
            except Exception as error:  # no memory
                self._fail(work.step, work.attempt, error)
                return True
            post.waiting.popleft()
            for destination in destinations:
                post.packed.setdefault(destination, []).append(for_near if destination in near else for_far)
        try:
            while post.packed:
                peer, parcels = next(iter(post.packed.items()))
                message = Sent(work.step, work.attempt, work.graph_slot, work.partition, tuple(parcels))
                self._endpoint.send(peer, message)
                del post.packed[peer]
        except TransportError as error:  # too large
            self._fail(work.step, work.attempt, error)
            return True
        self._post = None
        self._posted(work)
        return True

    def _posted(self, work: Work) -> None:
        """All that the partition has made is sent, or left to be."""
        if work.last and self._routes.silent:
            self._left.append([(CALLER, Ended(work.step, work.attempt))])
        if not work.last:
            self._mailbox.done(work)
        elif self._incoming.reading:
            self._end(work.attempt)
        else:
            self._mailbox.end(work.attempt)

    def _fail(self, step: int, attempt: int, error: Exception) -> None:
        fault = fault_of(error)
        error.__traceback__ = None  # its frames hold the parcels
        self._end(attempt)
        self._drop(step)
        self._endpoint.send(CALLER, Failed(step, attempt, fault))

    def _end(self, attempt: int) -> None:
        """The attempt is over here: nothing of it runs or is sent any more, and what its bodies were is settled."""
        if self._post is not None and self._post.work.attempt == attempt:
            for receiver, parcels in self._post.packed.items():
                for packed in parcels:
                    self._outgoing.take_back(receiver, packed)
            self._post = None
        for content in self._mailbox.end(attempt):
            self._refuse(content)
        for peer, tickets in self._incoming.end(attempt).items():
            self._endpoint.send(peer, Settled(kept=tuple(tickets)))

    def _settle(self) -> None:
        for peer, tickets in self._incoming.take_released().items():
            self._endpoint.send(peer, Settled(released=tuple(tickets)))
