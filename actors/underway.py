"""A step that no thread waits for: whoever receives the last of its outputs ends it, if nothing stands against that."""

from __future__ import annotations

from actors.channels.driver import DriverChannel
from actors.channels.flight import Flight
from actors.mending import Mending
from actors.whole_step import WholeStep
from hetero.runtime.children import Ended

PATIENCE_S = 1e-3
"""Who begins or ends another step keeps the lock for less; recovery, for longer."""


class Underway:
    """Begun in `epoch`, the one of now."""

    __slots__ = ("_channel", "_ended", "_epoch", "_flight", "_mending", "_record")

    def __init__(
        self, mending: Mending, record: WholeStep, channel: DriverChannel, flight: Flight, ended: Ended
    ) -> None:
        self._mending, self._record, self._ended = mending, record, ended
        self._channel, self._flight = channel, flight
        self._epoch = mending.epoch

    def attend(self, timeout_s: float | None) -> None:
        """Help to receive, until it is over or the time is."""
        self._channel.attend(self._flight, timeout_s)

    def over(self) -> None:
        """The flight is over. What would have to be waited for is left to whoever waits for the step: this thread
        receives what other steps wait for, and recovery may wait for this thread."""
        finished = self._finished()
        self._ended(self._record.named(self._channel.taken(self._flight)) if finished else None)

    def _finished(self) -> bool:
        mending = self._mending
        if self._flight.error is not None or not mending.lock.acquire(timeout=PATIENCE_S):
            return False
        try:
            return mending.quiet() and mending.finished(self._record.step, self._epoch)
        finally:
            mending.lock.release()
