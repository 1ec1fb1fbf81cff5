"""Which road a step takes: object references, which always work, or channels once the plan is steady."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import ray
import ray.exceptions as rex

from actors.channels.cards import Card
from actors.channels.driver import DriverChannel
from actors.channels.routes import driver_routes
from hetero.errors import ChildDiedError, HeteroError, TransportError
from hetero.planner.plan import Plan

Transport = Literal["auto", "objects", "channels"]
STEADY_STEPS = 2
"""Steps that have to end well before "auto" opens channels."""
OPEN_S = 5.0
MOST_CUTS = 3
"""How often channels may break between children that live."""


class Roads:
    """The channels of one executor's children, if it has any. The pool calls it from any thread.

    `transport`: "channels" opens them when told to and raises where that fails; "auto" opens them by itself after
    STEADY_STEPS good steps, and goes back to objects for good where it cannot, or where they break while all live.
    `plan`: the one by which children are prepared when channels are opened. `channel`: those that there are; they may
    have ended by themselves.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.generation = 0
        self.channel: DriverChannel | None = None
        self._actors: Callable[[], Mapping[int, Any]] = dict
        self.plan: Plan | None = None
        self._steady = 0
        self._cuts = 0
        self._reason: str | None = None if transport != "objects" else "asked for"

    def start(self, actors: Callable[[], Mapping[int, Any]]) -> None:
        """The children are prepared. `actors`: the actor of each child, as it is when channels are opened.

        Raises: TransportError where channels were asked for and cannot be had.
        """
        self._actors = actors
        if self.transport == "channels":
            self.open()

    def open(self) -> None:
        """Open channels of a new generation between the present actors, in place of those that there were.

        Call it again after children were replaced. Raises: TransportError where a channel cannot be had.
        """
        assert self.plan is not None, "channels are opened once the children are prepared"
        self._let_go()
        self.generation += 1
        routes = driver_routes(self.plan)
        actors = {k: actor for k, actor in self._actors().items() if k in routes.children}
        channel = DriverChannel(self.generation, node_address(), routes)
        deadline = time.monotonic() + OPEN_S
        try:
            cards: list[Card] = _answers(
                [a.open_channels.remote(self.generation) for a in actors.values()], deadline
            )
            everyone = [*cards, channel.card]

            def confirm() -> None:
                left = max(0.1, deadline - time.monotonic())
                _answers([a.connect_channels.remote(everyone, left) for a in actors.values()], deadline)

            channel.connect(cards, confirm, max(0.1, deadline - time.monotonic()))
        except BaseException:
            channel.close()
            self._close_there()
            raise
        self.channel = channel

    def fall_back(self, reason: str) -> None:
        """Close the channels: steps go over objects from now on, until `open` is called.

        Steps in flight over them raise ClosedError where they have not ended.
        """
        self._reason = reason
        if self.channel is not None:
            self._let_go()
            self._close_there()  # before any call for a step that goes over objects

    # -- steps ---------------------------------------------------------------------------------------------------
    @property
    def objects(self) -> bool:
        """Whether a step goes over objects, without more ado."""
        return self.channel is None and (self._reason is not None or self._steady < STEADY_STEPS)

    def succeeded(self) -> None:
        """A step over objects has ended well."""
        self._steady += 1

    def choice(self) -> DriverChannel | None:
        """The channels for a step, which may have ended by themselves; None: it goes over objects.

        Raises: TransportError, and what Ray raises, where they were asked for and cannot be opened.
        """
        channel = self.channel
        if channel is not None:
            broken = channel.broken
            if broken is None or self.transport == "channels" or isinstance(broken, ChildDiedError):
                return channel
            self.fall_back(f"channels failed: {broken}")
        elif self._reason is None and self._steady >= STEADY_STEPS:
            try:
                self.open()
            except (HeteroError, rex.RayError) as error:
                if self.transport == "channels":
                    raise
                self.fall_back(f"channels failed: {error}")
        return self.channel

    def pause(self) -> None:
        """Children are being brought back: steps go over objects until some have ended well, and then over channels
        of a new generation."""
        if self.channel is not None:
            self._let_go()
            self._close_there()
        self._steady = 0

    def cut(self, reason: str) -> None:
        """They broke while all children live. Where that goes on, "auto" keeps to objects."""
        self._cuts += 1
        if self._cuts >= MOST_CUTS and self.transport == "auto":
            self.fall_back(reason)

    # -- looking and ending --------------------------------------------------------------------------------------
    def statistics(self) -> dict[str, Any]:
        """The road, and why it is the one; the driver's counters."""
        channel = self.channel
        if channel is None:
            return {"road": "objects", "reason": self._reason or "not steady yet"}
        return {"road": "channels", "generation": self.generation, **channel.statistics()}

    def close(self) -> None:
        """Close the channels. A second call does nothing."""
        self._reason = "closed"
        self._let_go()

    def _close_there(self) -> None:
        for actor in self._actors().values():
            actor.close_channels.remote(self.generation)

    def _let_go(self) -> None:
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()


def node_address() -> str:
    """The address under which Ray knows this machine."""
    known: Any = ray.util
    return str(known.get_node_ip_address())


def _answers(calls: Sequence[Any], deadline: float) -> list[Any]:
    """Raises: TransportError where one does not come in time; what the actors raise."""
    try:
        return list(ray.get(list(calls), timeout=max(0.1, deadline - time.monotonic())))
    except rex.GetTimeoutError as cause:
        raise TransportError(f"no channels within {OPEN_S:g} s", phase="prepare") from cause
