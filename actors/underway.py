"""A step that no thread waits for: whoever receives the last of its outputs ends it, if nothing stands against that."""

from __future__ import annotations

from collections.abc import Sequence

from actors.journal import RayParcel
from actors.mending import Mending
from actors.roads import ChannelFlight
from hetero.runtime.children import Ended

PATIENCE_S = 1e-3
"""Who begins or ends another step keeps the lock for less; recovery, for longer."""


class Underway:
    """Begun in `epoch`, the one of now."""

    __slots__ = ("_back", "_ended", "_epoch", "_flight", "_mending", "_step")

    def __init__(
        self, mending: Mending, step: int, flight: ChannelFlight, back: Sequence[RayParcel], ended: Ended
    ) -> None:
        self._mending, self._step, self._flight, self._back, self._ended = mending, step, flight, back, ended
        self._epoch = mending.epoch

    def over(self) -> None:
        """The flight is over. What would have to be waited for is left to whoever calls `get`: this thread receives
        what other steps wait for, and recovery may wait for this thread."""
        self._ended(self._back, self._flight.taken() if self._finished() else None)

    def _finished(self) -> bool:
        mending = self._mending
        if self._flight.flight.error is not None or not mending.lock.acquire(timeout=PATIENCE_S):
            return False
        try:
            return mending.quiet and mending.finished(self._step, self._epoch)
        finally:
            mending.lock.release()
