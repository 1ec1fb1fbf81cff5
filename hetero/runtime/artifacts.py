"""Artifacts: what a provider makes for one executor (captured graphs, weights there), and when that may be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

from hetero.errors import ArtifactError

MAX_EPOCH = 2**63 - 1
"""The last epoch there is: a number that came again could let in what belongs to the first time."""


class Readiness(StrEnum):
    """Where an artifact stands. Only a complete one is executed, captured or replayed."""

    PENDING = "pending"
    """Under way. Left by the report of whoever makes it, or with its epoch."""
    COMPLETE = "complete"
    """As good as it will get. Left when it is dropped."""
    FAILED = "failed"
    """It will never be; `reason` says why. Left when it is dropped."""
    CONDEMNED = "condemned"
    """Dropped while leases were held: no new ones are given, and the last one's end frees it."""
    DROPPED = "dropped"
    """Freed. For good."""


COMPLETE, CONDEMNED = (
    Readiness.COMPLETE,
    Readiness.CONDEMNED,
)  # looked up in each replay, where an enum's members cost


class Event(StrEnum):
    """What happens to an artifact."""

    COMPLETED = "completed"
    FAILED = "failed"
    DROPPED = "dropped"
    DROPPED_IN_USE = "dropped in use"
    LAST_LEASE_ENDED = "last lease ended"


NEXT: dict[tuple[Readiness, Event], Readiness] = {
    (Readiness.PENDING, Event.COMPLETED): Readiness.COMPLETE,
    (Readiness.PENDING, Event.FAILED): Readiness.FAILED,
    (Readiness.PENDING, Event.DROPPED): Readiness.DROPPED,
    (Readiness.FAILED, Event.DROPPED): Readiness.DROPPED,
    (Readiness.COMPLETE, Event.DROPPED): Readiness.DROPPED,
    (Readiness.COMPLETE, Event.DROPPED_IN_USE): Readiness.CONDEMNED,
    (Readiness.CONDEMNED, Event.LAST_LEASE_ENDED): Readiness.DROPPED,
}
"""Every move there is."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose an artifact is: of one executor on one provider instance, in one incarnation of its child and one epoch of
    that (a new one begins where whatever was made so far stands on memory that is given up)."""

    provider: str
    executor: int
    generation: int
    epoch: int

    def __str__(self) -> str:
        return (
            f"executor {self.executor} on {self.provider}, generation {self.generation}, epoch {self.epoch}"
        )


class Artifact:
    """One artifact. Its `Artifacts` moves it; users take leases, which cost next to nothing.

    `free` is called once, when it is dropped and no lease is left.
    """

    __slots__ = ("_free", "_moved", "identity", "kind", "leases", "name", "reason", "state")

    def __init__(
        self,
        identity: Identity,
        kind: str,
        name: str,
        free: Callable[[], object] | None,
        moved: Callable[[Artifact], None],
    ) -> None:
        self.identity = identity
        self.kind = kind
        self.name = name
        self.state = Readiness.PENDING
        self.reason = ""
        self.leases = 0
        self._free = free
        self._moved = moved

    def take(self) -> None:
        """Take a lease: it is not freed before `end`. Raises: ArtifactError unless it is complete."""
        if self.state is not COMPLETE:
            self._refuse("used")
        self.leases += 1

    def end(self) -> None:
        """Give a lease back."""
        self.leases -= 1
        if self.state is CONDEMNED and not self.leases:
            self.move(Event.LAST_LEASE_ENDED)

    def move(self, event: Event) -> None:
        """Raises: ArtifactError where the state has no such move."""
        following = NEXT.get((self.state, event))
        if following is None:
            self._refuse(str(event))
        self.state = following
        self._moved(self)
        if following is Readiness.DROPPED and self._free is not None:
            free, self._free = self._free, None
            free()

    def _refuse(self, what: str) -> NoReturn:
        why = f" ({self.reason})" if self.reason else ""
        raise ArtifactError(
            f"the {self.kind} {self.name!r} of {self.identity} is {self.state}{why}, and cannot be {what}",
            operand=self.name,
            device=self.identity.provider,
        )


class Artifacts:
    """The artifacts of one executor on one provider; `identity` is that of what is begun now.

    Invariant: every artifact that is pending or complete is of the current epoch.
    """

    def __init__(self, provider: str, executor: int, generation: int = 0, epoch: int = 0) -> None:
        self.identity = Identity(provider, executor, generation, epoch)
        self._kept: dict[int, Artifact] = {}
        self._moves: Counter[Readiness] = Counter()

    def begin(self, kind: str, name: str, free: Callable[[], object] | None = None) -> Artifact:
        """An artifact is being made: pending until it is reported on."""
        artifact = Artifact(self.identity, kind, name, free, self._note)
        self._kept[id(artifact)] = artifact
        return artifact

    def complete(self, artifact: Artifact, identity: Identity) -> None:
        """Report from its maker, who made it for `identity`. Raises: ArtifactError where that is not who we are (any
        more), or there was a report before."""
        self._check(artifact, identity)
        artifact.move(Event.COMPLETED)

    def fail(self, artifact: Artifact, identity: Identity, reason: str) -> None:
        """As `complete`, with bad news."""
        self._check(artifact, identity)
        artifact.move(Event.FAILED)
        artifact.reason = reason

    def drop(self, artifact: Artifact) -> None:
        """Nobody needs it: freed now, or when its last lease ends. A second call does nothing."""
        if artifact.state in (Readiness.DROPPED, Readiness.CONDEMNED):
            return
        self._own(artifact)
        artifact.move(Event.DROPPED_IN_USE if artifact.leases else Event.DROPPED)

    def advance(self) -> None:
        """Begin a new epoch; everything of this one is dropped. Raises: ArtifactError where there is none left."""
        mine = self.identity
        if mine.epoch >= MAX_EPOCH:
            raise ArtifactError(f"there is no epoch after that of {mine}", device=mine.provider)
        self.identity = Identity(mine.provider, mine.executor, mine.generation, mine.epoch + 1)
        for artifact in list(self._kept.values()):
            self.drop(artifact)

    def statistics(self) -> dict[str, Any]:
        """The epoch, artifacts by state as they are now, and how many were completed, failed and dropped so far."""
        now = Counter(str(a.state) for a in self._kept.values())
        return {
            "generation": self.identity.generation,
            "epoch": self.identity.epoch,
            "states": dict(now),
            "completed": self._moves[Readiness.COMPLETE],
            "failed": self._moves[Readiness.FAILED],
            "dropped": self._moves[Readiness.DROPPED],
        }

    def _note(self, artifact: Artifact) -> None:
        self._moves[artifact.state] += 1
        if artifact.state is Readiness.DROPPED:
            self._kept.pop(id(artifact), None)

    def _own(self, artifact: Artifact) -> None:
        if self._kept.get(id(artifact)) is not artifact:
            raise ArtifactError(
                f"the {artifact.kind} {artifact.name!r} of {artifact.identity} is not one of {self.identity}",
                operand=artifact.name,
                device=self.identity.provider,
            )

    def _check(self, artifact: Artifact, identity: Identity) -> None:
        if identity != self.identity or artifact.identity != identity:
            raise ArtifactError(
                f"a report for {identity} on the {artifact.kind} {artifact.name!r} of {artifact.identity} reached "
                f"{self.identity}",
                operand=artifact.name,
                device=self.identity.provider,
            )
        self._own(artifact)
