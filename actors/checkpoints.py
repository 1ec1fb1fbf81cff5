"""Copies of bound state on their way to the caller's node, where the loss of a child's node cannot reach them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ray
import ray.exceptions as rex

from actors.events import CheckpointLost, CheckpointSettled, Event
from actors.journal import Journal
from actors.members import Held
from hetero.runtime.state_copy import StateCopy

MOST_COPIES = 16
"""Of a child, of which each goes on from the one before; then a whole one takes their place."""


class Checkpoints:
    """At most one set of copies under way: one of each child that keeps state, all after the same step."""

    def __init__(self, held: Held, journal: Journal) -> None:
        self._held, self._journal = held, journal
        self._step: int | None = None
        self._copies: dict[int, Any] = {}
        self._copying: list[Any] = []

    def take(self, step: int, children: Iterable[int]) -> None:
        """Have these children copy their state as it is now. Their next step waits for a copy in memory alone."""
        self._step, self._copies = step, {}
        most = max(map(len, self._journal.base.values()), default=MOST_COPIES)
        since = self._journal.base_step if most < MOST_COPIES else None
        for child in children:
            member = self._held.members[child]
            self._copying.append(member.actor.copy_state.remote(member.generation, step, since))
            self._copies[child] = member.actor.take_copy.remote()

    def wait_copied(self, timeout_s: float | None) -> None:
        """Return once the children have copied their state: a step over channels would not wait for that by itself."""
        copying, self._copying = self._copying, []
        if copying:
            ray.wait(copying, num_returns=len(copying), timeout=timeout_s, fetch_local=False)

    def forget(self) -> None:
        """What is under way is of no use."""
        self._step, self._copies = None, {}

    def settle(self) -> list[Event]:
        """Where all copies are on this node, a replay begins from them in future. Does not wait."""
        if self._step is None:
            return []
        step, copies = self._step, self._copies
        if len(ray.wait(list(copies.values()), num_returns=len(copies), timeout=0)[0]) < len(copies):
            return []
        self.forget()
        try:
            # Their bodies are views of this node's store, which keeps them for as long as they are held here.
            got: dict[int, StateCopy] = dict(zip(copies, ray.get(list(copies.values())), strict=True))
        except rex.RayError:
            return [CheckpointLost(step)]  # what a child died of shows in the next step
        base = self._journal.base
        going_on = {child: () if copied.whole else base[child] for child, copied in got.items()}
        self._journal.checkpointed(step, {child: (*going_on[child], copied) for child, copied in got.items()})
        return [CheckpointSettled(step)]
