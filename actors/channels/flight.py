"""One attempt at a step as the driver sees it: what it still waits for, and who wants to know of its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hetero.errors import HeteroError


class Flight:
    """An attempt under way. `missing`: parcels and children (as ("child", k)) that it waits for.

    `arrived`: parcels that came back, in memory of the caller's own. `waits`: somebody waits for it and does not lead.
    """

    __slots__ = ("_bell", "_tell", "arrived", "attempt", "error", "missing", "step", "waits")

    def __init__(self, step: int, attempt: int, missing: set[Any]) -> None:
        self.step, self.attempt, self.missing = step, attempt, missing
        self.arrived: dict[int, list[Any]] = {}
        self.error: HeteroError | None = None
        self.waits = False
        self._bell: threading.Lock | None = None
        self._tell: list[Callable[[], object]] = []

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return not self.missing or self.error is not None

    def wait(self, timeout_s: float | None) -> None:
        """Wait for `ring`, unless it is over."""
        bell = threading.Lock()
        bell.acquire()
        self._bell, self.waits = bell, True  # first: whoever ends it after we have looked sees the bell
        if not self.over:
            bell.acquire(timeout=-1 if timeout_s is None else timeout_s)
        self._bell, self.waits = None, False

    def when_over(self, tell: Callable[[], object]) -> None:
        """Call `tell` once it is over: now, or from the thread that ends it, which it must neither hold up nor fail."""
        self._tell.append(tell)
        if self.over:
            self.ended()

    def ended(self) -> None:
        """It is over: tell everybody, whoever has come to see it first."""
        tell = None
        if self._tell:
            with suppress(IndexError):  # another thread was faster
                tell = self._tell.pop()
        if tell is not None:
            tell()
        self.ring()

    def ring(self) -> None:
        """Have whoever waits look again."""
        bell = self._bell
        if bell is not None:
            with suppress(RuntimeError):  # it is rung already
                bell.release()
