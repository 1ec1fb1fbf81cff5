"""Who takes what comes in, and sends what was left behind, while the thread it belongs to waits for a device."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable


class Courier:
    """A thread beside another one, its owner. One of them has the desk at a time: the owner, but where it lends it.

    Invariant: `turn` is called, and the owner does what must not happen meanwhile, by whoever has the desk.
    """

    def __init__(self, descriptor: int, turn: Callable[[], object]) -> None:
        """`turn` is called while the desk is lent: once each time, and when `descriptor` is readable."""
        self._descriptor, self._turn = descriptor, turn
        self._desk = threading.Lock()
        self._desk.acquire()
        self._idle = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._idle.register(self._bell, select.EPOLLIN)
        self._idle.register(descriptor, 0)
        self._listens = self._over = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name="hetero-courier", daemon=True)
        self._thread.start()

    # -- the owner's ---------------------------------------------------------------------------------------------
    def lend(self) -> None:
        """Lend the desk. It has its turn when this thread lets go of the interpreter."""
        if not self._listens:
            self._listens = True
            self._idle.modify(self._descriptor, select.EPOLLIN)
        self._desk.release()
        os.eventfd_write(self._bell, 1)

    def take_back(self) -> None:
        """Have the desk again, after a turn that has begun."""
        self._desk.acquire()

    def check(self) -> None:
        """Raises: what a turn has raised; there are no more of them then."""
        if self._failure is not None:
            raise self._failure

    def rest(self) -> None:
        """The owner waits for `descriptor` itself from now on."""
        if self._listens:
            self._listens = False
            self._idle.modify(self._descriptor, 0)

    def close(self) -> None:
        """End the thread; the desk must not be lent."""
        self._over = True
        self._desk.release()
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        self._idle.close()
        os.close(self._bell)

    # -- the thread ----------------------------------------------------------------------------------------------
    def _loop(self) -> None:
        while True:
            ready = self._idle.poll()
            with self._desk:
                if self._over:
                    return
                if any(descriptor == self._bell for descriptor, _ in ready):
                    os.eventfd_read(self._bell)
                try:
                    self._turn()
                except BaseException as error:
                    self._failure = error
                    return
