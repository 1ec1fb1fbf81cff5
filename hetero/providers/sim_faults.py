"""Scripted faults of a simulated device: which operation fails, and how, as plain data."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hetero.errors import DeviceError, MemoryLimitError, ProviderError

POINTS = ("launch", "alloc", "upload", "download", "sync", "replay")
"""Where a fault may strike: a kernel as the stream runs it, a take from the pool, a copy, a wait for the stream, and
the launch of a captured graph."""
ACTIONS = ("error", "memory", "hang", "crash")
"""DeviceError, MemoryLimitError, waiting until the fault's gate is opened, and the end of the process."""
CRASH_STATUS = 70
"""Exit status of a process that a fault ended."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Where a hanging operation waits. `reached` is set when it got there; it goes on when `opened` is set."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)


class Faults:
    """A script of (point, n, action[, marker]): the n-th operation at `point` (from 1) meets with `action`.

    `marker` is the path of a file: the fault strikes only in the process that creates it, once, however many
    incarnations of the device follow the same script.

    Raises: ProviderError for a script that is not of this form.
    """

    def __init__(self, device: str, script: Any = ()) -> None:
        self.device = device
        self.struck = 0
        self._script: dict[tuple[str, int], tuple[str, str | None]] = {}
        self._counts: Counter[str] = Counter()
        self._gates: dict[tuple[str, int], Gate] = {}
        for entry in script:
            point, n, action, marker = self._checked(entry)
            if (point, n) in self._script:
                raise ProviderError(f"faults of {device}: {point} {n} is given twice", device=device)
            self._script[point, n] = (action, marker)

    def at(self, point: str) -> None:
        """Count one operation at `point`, and fail, hang or crash where the script says so.

        Raises: DeviceError, MemoryLimitError.
        """
        if not self._script:
            return
        self._counts[point] += 1
        n = self._counts[point]
        action, marker = self._script.get((point, n), (None, None))
        if action is None or (marker is not None and not _created(marker)):
            return
        self.struck += 1
        message = f"scripted fault: {point} {n} of {self.device}"
        if action == "error":
            raise DeviceError(message, device=self.device)
        if action == "memory":
            raise MemoryLimitError(message, device=self.device)
        if action == "crash":
            os._exit(CRASH_STATUS)
        gate = self.gate(point, n)
        gate.reached.set()
        gate.opened.wait()

    def gate(self, point: str, n: int) -> Gate:
        """The gate of the fault ("hang") scripted for the n-th operation at `point`."""
        if self._script.get((point, n), ("", None))[0] != "hang":
            raise DeviceError(f"no hang is scripted for {point} {n} of {self.device}", device=self.device)
        return self._gates.setdefault((point, n), Gate())

    def _checked(self, entry: Any) -> tuple[str, int, str, str | None]:
        match entry:
            case (str(point), int(n), str(action), *rest) if (
                point in POINTS and n >= 1 and not isinstance(n, bool) and action in ACTIONS
            ):
                match rest:
                    case []:
                        return point, n, action, None
                    case [str(marker)]:
                        return point, n, action, marker
        raise ProviderError(
            f"faults of {self.device}: {entry!r} is not (point, n, action[, marker file]) with a point of {POINTS}, "
            f"n from 1 and an action of {ACTIONS}",
            device=self.device,
        )


def _created(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True
