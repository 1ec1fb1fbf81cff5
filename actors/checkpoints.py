"""Copies of bound state on their way to the caller's node, where the loss of a child's node cannot reach them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import ray
import ray.exceptions as rex

from actors.events import CheckpointLost, CheckpointSettled, Event
from actors.journal import Journal
from actors.members import Held
from hetero.runtime.state_copy import StateCopy

MOST_COPIES = 16
"""Of a child, of which each goes on from the one before; then a whole one takes their place."""
_TOLD_S = 1.0


class Checkpoints:
    """At most one set of copies under way: one of each child that keeps state, all after the same step.

    No step waits for more than a copy in memory. Children are told while they run a step that their state is to be
    copied when it is over, which they do when the next one begins; while they run that one, the copy is asked for.
    """

    def __init__(self, held: Held, journal: Journal) -> None:
        self._held, self._journal = held, journal
        self.forget()

    def forget(self) -> None:
        """What is due or under way is of no use."""
        self.due: int | None = None
        """The step after which there is to be one; None: nothing is due or under way."""
        self._step: int | None = None
        self._children: tuple[int, ...] = ()
        self._told: list[Any] = []
        self._copies: dict[int, Future[StateCopy]] = {}

    def take(self, step: int, children: Iterable[int]) -> None:
        """These children are to copy their state, after `step` or one of the next."""
        self.forget()
        self.due, self._children = step, tuple(children)

    def before_launch(self) -> list[Event]:
        """Return once the children know whether their state is to be copied: a step may overtake what they are told.
        Of a child that does not answer nothing is expected any more; what it has is found out elsewhere."""
        told, self._told = self._told, []
        if not told:
            return []
        ready, _ = ray.wait(told, num_returns=len(told), timeout=_TOLD_S, fetch_local=False)
        due = self.due
        if due is None or len(ready) == len(told):
            return []
        self.forget()
        return [CheckpointLost(due)]

    def launched(self, step: int) -> None:
        """The children have `step` to run: time for whatever they need not be waited for."""
        if self.due is None or self._copies:
            return
        members = {child: self._held.members[child] for child in self._children}
        if self._step is not None and self._journal.has_kept(self._step):
            self._copies = {k: m.actor.take_copy.remote(self._step).future() for k, m in members.items()}
            return
        most = max(map(len, self._journal.base.values()), default=MOST_COPIES)
        since = self._journal.base_step if most < MOST_COPIES else None
        self._step = step
        self._told = [m.actor.copy_state.remote(m.generation, step, since) for m in members.values()]

    def settle(self) -> list[Event]:
        """Where all copies are on this node, a replay begins from them in future. Does not wait."""
        copies, due, step = self._copies, self.due, self._step
        if due is None or step is None or not copies or not all(copy.done() for copy in copies.values()):
            return []
        self.forget()
        try:
            # Their bodies are views of this node's store, which keeps them for as long as they are held here.
            got = {child: copy.result() for child, copy in copies.items()}
        except rex.RayError:
            return [CheckpointLost(due)]  # what a child died of shows in the next step
        base = self._journal.base
        going_on = {child: () if copied.whole else base[child] for child, copied in got.items()}
        self._journal.checkpointed(step, {child: (*going_on[child], copied) for child, copied in got.items()})
        return [CheckpointSettled(step)]
