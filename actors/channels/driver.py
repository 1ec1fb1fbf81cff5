"""The driver's end of the channels: sends a step's inputs, takes its outputs, and is not in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np

from actors.channels.bodies import Incoming, Limits, Outgoing
from actors.channels.cards import Card
from actors.channels.endpoint import wait_connected
from actors.channels.faults import error_of
from actors.channels.flight import Flight
from actors.channels.intake import Arrived, Event, PeerLost
from actors.channels.messages import (
    Abort,
    Begin,
    Ended,
    Failed,
    Known,
    Lost,
    Packed,
    Received,
    Sent,
    Settled,
)
from actors.channels.routes import DriverRoutes
from actors.channels.steady import Outline, Steady
from actors.channels.tampering import make_endpoint
from actors.channels.turns import Turns
from actors.channels.wire import Encoded, encode
from hetero.errors import ChildDiedError, ClosedError, HeteroError, StepTimeoutError, TransportError
from hetero.planner.plan import CALLER
from hetero.types import SequenceValue

T = TypeVar("T")
PATIENCE_S = 0.5
"""How long after a child has lost another the driver waits to lose it too, before it blames the way between them."""


class DriverChannel:
    """All children of one executor, over channels of one generation. Thread-safe.

    The first child that is lost ends it: steps in flight and all later calls raise ChildDiedError.
    """

    def __init__(
        self, generation: int, address: str, routes: DriverRoutes, *, limits: Limits | None = None
    ) -> None:
        """Raises: TransportError where it cannot listen on `address`."""
        self._endpoint = make_endpoint(CALLER, "driver", generation, address)
        self._turns = Turns(self._endpoint.fileno())
        self.card = self._endpoint.card
        self.generation = generation
        self._routes = routes
        self._outgoing = Outgoing(limits or Limits())
        self._incoming = Incoming(limits)
        self._steady = Steady(generation, CALLER, tuple(routes.given.items()), routes.begins)
        self._missing = frozenset((*routes.wanted, *(("child", k) for k in routes.silent)))
        self._flights: dict[int, Flight] = {}
        self._guard = threading.Lock()
        self._launching = threading.Lock()
        self._attempts = 0
        self.broken: HeteroError | None = None
        """Why these channels have ended, if they have."""
        self._suspicion: tuple[float, TransportError] | None = None
        self._late = 0
        self._closing = False
        self._ending = threading.Lock()
        self._connected = threading.Event()
        self._thread: threading.Thread | None = None

    def connect(self, cards: Sequence[Card], confirm: Callable[[], object], timeout_s: float) -> None:
        """Connect to the children, and begin. `confirm` is called once they may connect to us; it returns when they
        have. Raises: TransportError, and what `confirm` raises; close it then."""
        deadline = time.monotonic() + timeout_s
        self._endpoint.connect(cards)
        failures: list[TransportError] = []
        self._thread = threading.Thread(
            target=self._loop, args=(deadline, failures), name="hetero-channels", daemon=True
        )
        self._thread.start()
        confirm()
        self._connected.wait(max(0.0, deadline - time.monotonic()) + 1)
        if failures:
            raise failures[0]

    # -- steps ---------------------------------------------------------------------------------------------------
    def launch_nowait(self, step: int, given: Mapping[int, Sequence[Any]], graph_slot: str) -> Flight | None:
        """As `launch`, where nothing has to be waited for: small parcels, like those of the step before; else None."""
        contents = list(map(given.__getitem__, self._routes.given))
        outline = self._steady.outlines.get(graph_slot)
        bodies = None if outline is None else outline.bodies(contents)
        return None if bodies is None else self._launched(step, graph_slot, outline, bodies, (), None)

    def launch(
        self, step: int, given: Mapping[int, Sequence[Any]], graph_slot: str, timeout_s: float | None = None
    ) -> Flight:
        """Begin a step with the caller's parcels, which are copied; waits for credit, up to `timeout_s`.

        Raises: TransportError for what is no value; ChildDiedError; StepTimeoutError.
        """
        contents = list(map(given.__getitem__, self._routes.given))
        outline = self._steady.outlines.get(graph_slot)
        bodies = None if outline is None else outline.bodies(contents)
        encoded: Sequence[Encoded] = ()
        if bodies is None:
            encoded = [encode(values) for values in contents]
            self._steady.sent(graph_slot, contents, encoded)
        return self._launched(step, graph_slot, outline, bodies, encoded, timeout_s)

    def _launched(
        self,
        step: int,
        graph_slot: str,
        outline: Outline | None,
        bodies: Sequence[bytes] | None,
        encoded: Sequence[Encoded],
        timeout_s: float | None,
    ) -> Flight:
        """Begin it with what was encoded, or with bodies that the outline describes."""
        with self._launching:
            if self.broken is not None:
                self._check()
            self._attempts += 1
            attempt = self._attempts
            flight = Flight(step, attempt, set(self._missing))
            with self._guard:
                self._flights[attempt] = flight
            try:
                if outline is not None and bodies is not None:
                    for child, message in outline.messages(step, attempt, bodies):
                        self._endpoint.send(child, message)
                else:
                    self._begin(flight, graph_slot, encoded, timeout_s)
            except BaseException:
                self.drop(flight)  # no number may be missing over there
                raise
            if self.broken is not None:
                self._check()  # else a child that was lost meanwhile would be waited for
        return flight

    def _begin(
        self, flight: Flight, graph_slot: str, encoded: Sequence[Encoded], timeout_s: float | None
    ) -> None:
        """Send the caller's parcels, when there is credit for them."""
        step, attempt = flight.step, flight.attempt
        parcels: dict[int, list[Packed]] = {k: [] for k in self._routes.begins}
        try:
            for (parcel, destinations), content in zip(self._routes.given.items(), encoded, strict=True):
                if not self._outgoing.wait_allowed(attempt, content.nbytes, self._ended, timeout_s):
                    self._check()
                    raise StepTimeoutError("the step passed its deadline while it waited to begin")
                near = [d for d in destinations if self._endpoint.near(d)]
                far = [d for d in destinations if d not in near]
                for_near, for_far = self._outgoing.pack(parcel, content, attempt, near, far)
                for destination in destinations:
                    parcels[destination].append(for_near if destination in near else for_far)
            for child in self._routes.begins:
                self._endpoint.send(child, Begin(step, attempt, graph_slot, tuple(parcels[child])))
                parcels[child] = []
        except BaseException:
            for child, unsent in parcels.items():
                for packed in unsent:
                    self._outgoing.take_back(child, packed)
            raise

    def get(self, flight: Flight, timeout_s: float | None) -> dict[int, list[Any]]:
        """Wait for a step's outputs, by parcel; arrays are the caller's own. Ends the flight where it is over.

        Raises: what a child raised, ChildDiedError, StepTimeoutError.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while flight.missing and flight.error is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise StepTimeoutError("the step passed its deadline", step=flight.step)
            if not self._led(flight, deadline):
                flight.wait(left)
        if flight.error is not None:
            raise flight.error
        return self.taken(flight)

    def attend(self, flight: Flight, timeout_s: float | None) -> None:
        """Take what comes in until this flight is over, or the time is, or not at all: another thread does already."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if not flight.over:
            self._led(flight, deadline)

    def taken(self, flight: Flight) -> dict[int, list[Any]]:
        """The outputs of a flight that has ended well, by parcel; it is forgotten."""
        with self._guard:
            self._flights.pop(flight.attempt, None)
        return flight.arrived

    def drop(self, flight: Flight) -> None:
        """Forget a step, whether it is over or not."""
        with self._guard:
            self._flights.pop(flight.attempt, None)
        if not self._ended():
            self._abort(flight)

    def statistics(self) -> dict[str, int]:
        """Counters of messages, of what was dropped and why, and of bytes."""
        return {
            **asdict(self._endpoint.counters),
            "late": self._late,
            "in_flight": len(self._flights),
            **self._outgoing.statistics(),
        }

    def close(self) -> None:
        """End the channels; steps in flight raise ClosedError. A second call does nothing."""
        with self._ending:
            if self._closing:
                return
            self._closing = True
            self._end(ClosedError("the channels were closed", phase="transport"))
            self._turns.ring()
            if self._thread is not None:
                self._thread.join()
            self._turns.close()
            self._endpoint.close()
            self._outgoing.close()

    # -- the thread ----------------------------------------------------------------------------------------------
    def _loop(self, deadline: float, failures: list[TransportError]) -> None:
        try:
            early = wait_connected(self._endpoint, deadline)
        except TransportError as error:
            failures.append(error)
            return
        finally:
            self._connected.set()
        self._guarded(lambda events: events, early)
        while not self._closing:
            if self._turns.wait(self._patience_s()):
                try:
                    self._guarded(self._endpoint.take, self._endpoint.wait(0))
                finally:
                    self._turns.pass_on()

    def _led(self, flight: Flight, deadline: float | None) -> bool:
        """Whether this thread could lead, and has taken what came in until this flight was over or the time was."""
        if not self._turns.lead():
            return False
        try:
            while flight.missing and flight.error is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                if self._suspicion is not None:
                    patience = self._suspicion[0] - time.monotonic()
                    left = max(0.0, patience if left is None else min(left, patience))
                self._guarded(self._endpoint.take, self._endpoint.wait(left))
        finally:
            self._turns.leave()
            if len(self._flights) > 1:
                self._call_next()
        return True

    def _call_next(self) -> None:
        """Whoever has waited longest and still does may lead."""
        with self._guard:
            following = next((f for f in self._flights.values() if f.waits and not f.over), None)
        if following is not None:
            following.ring()

    def _patience_s(self) -> float | None:
        """How long to wait before a suspicion is one no more."""
        suspicion = self._suspicion
        return None if suspicion is None else max(0.0, suspicion[0] - time.monotonic())

    def _guarded(self, events: Callable[[T], Sequence[Event]], ready: T) -> None:
        """Take these events. What fails then ends the channels, else whoever waits would wait for ever."""
        try:
            self._handle(events(ready))
            if self._suspicion is not None and time.monotonic() >= self._suspicion[0]:
                broken, self._suspicion = self._suspicion[1], None
                self._end(broken)
        except Exception as error:
            broken = TransportError(f"the channels failed: {type(error).__name__}: {error}")
            broken.__cause__ = error
            self._end(broken)
        except BaseException:  # the caller's thread was interrupted: who knows what was taken
            self._end(TransportError("the channels were interrupted"))
            raise

    def _handle(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Arrived(peer, message):
                    if type(message) is Known:  # as mostly
                        self._known(message)
                    else:
                        self._take(peer, message)
                case PeerLost(peer, reason):
                    device = self._endpoint.peers[peer]
                    self._end(ChildDiedError(f"child {device} died: {reason}", device=device))
        if self._incoming.released:
            self._settle()

    def _take(self, peer: int, message: Received) -> None:
        match message:
            case Sent(step, attempt, _, _, parcels):
                self._arrived(peer, step, attempt, parcels)
            case Ended(step, attempt):
                flight = self._flight(step, attempt)
                if flight is not None:
                    self._progress(flight, ("child", peer))
            case Failed(step, attempt, fault):
                flight = self._flight(step, attempt)
                if flight is not None:
                    self._fail(flight, error_of(fault))
            case Settled():
                self._outgoing.settle(peer, message)
            case Lost(other) if other in self._endpoint.peers:
                if self._suspicion is None:
                    names = self._endpoint.peers
                    error = TransportError(f"the channel between {names[peer]} and {names[other]} broke")
                    self._suspicion = time.monotonic() + PATIENCE_S, error
                    self._turns.ring()  # it looks again when that is over
            case _:
                self._endpoint.counters.malformed += 1

    def _known(self, message: Known) -> None:
        """Copy small arrays out."""
        form, flight = message.form, self._flights.get(message.attempt)
        if form.partition == CALLER:
            self._endpoint.counters.malformed += 1
            return
        if flight is None or flight.step != message.step:
            self._late += len(form.numbers)
            return
        for parcel, values in zip(form.numbers, message.contents, strict=True):
            if parcel in flight.missing:
                flight.arrived[parcel] = [v.copy("K") for v in values]
                flight.missing.discard(parcel)
                if not flight.missing:
                    flight.ended()

    def _arrived(self, peer: int, step: int, attempt: int, parcels: Sequence[Packed]) -> None:
        """Copy what has arrived out at once: a child must not wait for credit until somebody fetches its outputs."""
        flight = self._flight(step, attempt)
        for packed in parcels:
            if flight is None:
                self._late += 1
                self._incoming.refuse(peer, packed)
            elif packed.parcel in flight.missing:
                try:
                    values = self._incoming.open(peer, self._endpoint.process(peer), attempt, packed)
                    flight.arrived[packed.parcel] = [_own(v) for v in values]
                    del values
                except (TransportError, MemoryError) as error:
                    self._fail(flight, error)
                    continue
                flight.missing.discard(packed.parcel)
                if not flight.missing:
                    flight.ended()

    def _progress(self, flight: Flight, what: Any) -> None:
        flight.missing.discard(what)
        if not flight.missing:
            flight.ended()

    def _fail(self, flight: Flight, error: Exception) -> None:
        """The first failure is the step's; the other children need not wait until the caller has looked."""
        if flight.error is None:
            error.__traceback__ = None  # its frames may hold a body
            flight.error = error if isinstance(error, HeteroError) else TransportError(f"no memory: {error}")
            self._abort(flight)
            flight.ended()

    def _flight(self, step: int, attempt: int) -> Flight | None:
        flight = self._flights.get(attempt)
        return flight if flight is not None and flight.step == step else None

    # -- ends ----------------------------------------------------------------------------------------------------
    def _abort(self, flight: Flight) -> None:
        for child in self._routes.children:
            self._endpoint.send(child, Abort(flight.step, flight.attempt))

    def _settle(self) -> None:
        for peer, tickets in self._incoming.take_released().items():
            self._endpoint.send(peer, Settled(released=tuple(tickets)))

    def _ended(self) -> bool:
        return self.broken is not None

    def _check(self) -> None:
        broken = self.broken
        if broken is not None:
            raise _again(broken)

    def _end(self, error: HeteroError) -> None:
        """Nothing more comes over these channels."""
        if self.broken is not None:
            return
        self.broken = error
        with self._guard:
            flights = list(self._flights.values())
        for flight in flights:
            if flight.error is None and flight.missing:
                flight.error = _again(error)
                flight.ended()
        self._outgoing.notify()
        self._endpoint.wake()  # whoever leads may wait for one of these


def _again(error: HeteroError) -> HeteroError:
    """The same error for another step: each raises one of its own, which may be given a step and a traceback."""
    return type(error)(error.message, device=error.device, phase=error.phase)


def _own(value: Any) -> Any:
    """The value, in memory of the caller's own."""
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    return value.mapped(_own) if isinstance(value, SequenceValue) else value
