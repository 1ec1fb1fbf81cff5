"""A second thread of a child, which sends and receives while a partition waits for something else than the processor.

A partition that computes on the processor leaves no time for that: it is not worth a change of threads, and may hold
the interpreter's lock for long. One that waits for a device does: what it has made before is sent, and what it needs
next is here, when it has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from actors.channels.endpoint import Endpoint
from actors.channels.intake import Event
from actors.channels.turns import Turns

WORTH_S = 0.001
"""A partition that takes less time than this is not worth it."""

T = TypeVar("T")


class Beside:
    """Belongs to the thread that runs partitions, which polls the endpoint itself but in `run`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._turns = Turns(endpoint.fileno())
        self._turns.lead()
        self._waiting: set[int] = set()
        self._early: list[Event] = []
        self._thread: threading.Thread | None = None
        self._over = False

    def waits(self, partition: int) -> bool:
        """Whether this partition waited for something else than the processor when it last ran."""
        return partition in self._waiting

    def run(self, partition: int, call: Callable[[], T]) -> T:
        """Call it; meanwhile the other thread takes in and sends, if this partition waits."""
        began, busy = time.perf_counter(), time.thread_time()
        if partition not in self._waiting:
            try:
                return call()
            finally:
                self._learn(partition, began, busy)
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="hetero-channels-beside", daemon=True)
            self._thread.start()
        self._turns.leave()
        try:
            return call()
        finally:
            self._turns.lead(wait=True)
            self._learn(partition, began, busy)

    def _learn(self, partition: int, began: float, busy: float) -> None:
        took = time.perf_counter() - began
        if took >= WORTH_S and time.thread_time() - busy < 0.5 * took:
            self._waiting.add(partition)
        else:
            self._waiting.discard(partition)

    def take(self) -> list[Event]:
        """What the other thread took in."""
        early, self._early = self._early, []
        return early

    def _loop(self) -> None:
        while not self._over:
            if self._turns.wait(None):
                try:
                    self._early += self._endpoint.poll(0)
                finally:
                    self._turns.pass_on()

    def close(self) -> None:
        """End the other thread; before the endpoint is closed, and while nothing runs. A second call does nothing."""
        if self._over:
            return
        self._over = True
        self._turns.ring()
        if self._thread is not None:
            self._thread.join()
        self._turns.leave()
        self._turns.close()
