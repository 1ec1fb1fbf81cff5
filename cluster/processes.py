"""Processes that belong to a session of Ray, found in /proc, and ended when their parents are gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PATIENCE_S = 5.0


class Family:
    """Processes and what they have started, remembered from before they lose their parents.

    A raylet that is killed leaves workers and agents behind, which rename themselves so that nothing in their command
    lines tells whose they are. A process is known by its id and its start, so that no other that got the id is meant.
    """

    def __init__(self) -> None:
        self._members: set[tuple[int, int]] = set()

    def add(self, roots: Iterable[int]) -> None:
        """Remember these processes and their descendants as they are now."""
        parents, starts = _table()
        children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            children.setdefault(parent, []).append(pid)
        waiting = [pid for pid in roots if pid in starts]
        while waiting:
            pid = waiting.pop()
            self._members.add((pid, starts[pid]))
            waiting += children.get(pid, ())

    def end(self, directory: Path) -> None:
        """Kill those that live, and any process with a file of `directory` in its command line, until there are none;
        gives up after some seconds."""
        deadline = time.monotonic() + _PATIENCE_S
        while (left := self._living() | _mentioning(directory)) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self._members.clear()

    def _living(self) -> set[int]:
        _, starts = _table()
        return {pid for pid, start in self._members if starts.get(pid) == start}


def _table() -> tuple[dict[int, int], dict[int, int]]:
    """Parent and start (in clock ticks since boot) of every process that is no zombie, by id."""
    parents: dict[int, int] = {}
    starts: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:  # it has ended meanwhile
                continue
            fields = text[text.rindex(")") + 2 :].split()  # a name may hold blanks and brackets
            if fields[0] not in "ZX":
                parents[int(entry.name)], starts[int(entry.name)] = int(fields[1]), int(fields[19])
    return parents, starts


def _mentioning(directory: Path) -> set[int]:
    found = set()
    needle = os.fsencode(directory) + b"/"
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if needle in line:
                found.add(int(entry.name))
    return found
