"""Recovery as a pure state machine: what has happened goes in as events, what to do comes out as commands.

It knows names and numbers only: no process, no value, no clock. Whoever drives it (`actors.mending`) does what it says,
in order, and tells it how that went. docs/recovery.md has a paragraph for each state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from actors.events import (
    ActorLost,
    CheckpointLost,
    CheckpointSettled,
    ChildPrepared,
    ChildRetired,
    Closed,
    Command,
    DeadlinePassed,
    Event,
    Failover,
    Fence,
    GiveUp,
    HeartbeatMissed,
    NodeLost,
    PrepareAnew,
    Promote,
    Replanned,
    Replay,
    RestartFailed,
    Restore,
    StandbyLost,
    StandbyReady,
    Start,
    StartStandby,
    StateBegan,
    StateEnded,
    StepDropped,
    StepsReplayed,
    TakeCheckpoint,
)
from hetero.errors import TransportError

BACKOFF_S = 0.5
"""Wait before a restart that follows a failed one; doubles with each."""
_HISTORY = 32


# -- states ------------------------------------------------------------------------------------------------------
State = Literal["ready", "starting", "prepared", "lost", "retired", "closed"]

NEXT: dict[tuple[State, type[Any]], State] = {
    ("ready", ActorLost): "starting",
    ("ready", HeartbeatMissed): "starting",
    ("ready", DeadlinePassed): "starting",
    ("ready", NodeLost): "starting",
    ("starting", ChildPrepared): "prepared",
    ("starting", ActorLost): "starting",
    ("starting", RestartFailed): "starting",
    ("starting", Failover): "lost",
    ("ready", Replanned): "starting",
    ("starting", Replanned): "starting",
    ("prepared", Replanned): "starting",
    ("retired", Replanned): "starting",
    ("ready", ChildRetired): "retired",
    ("starting", ChildRetired): "retired",
    ("prepared", ChildRetired): "retired",
    ("lost", ChildRetired): "retired",
    ("retired", ChildRetired): "retired",
    ("prepared", ActorLost): "starting",
    ("prepared", HeartbeatMissed): "starting",
    ("prepared", DeadlinePassed): "starting",
    ("prepared", NodeLost): "starting",
    ("prepared", StepsReplayed): "ready",
    ("ready", Closed): "closed",
    ("starting", Closed): "closed",
    ("prepared", Closed): "closed",
    ("lost", Closed): "closed",
    ("retired", Closed): "closed",
}


@dataclass(slots=True)
class _Child:
    kind: str
    state: State = "ready"
    generation: int = 1
    failures: int = 0


@dataclass(slots=True)
class Counts:
    """What recovery has done so far."""

    losses: int = 0
    restarts: int = 0
    promotions: int = 0
    recoveries: int = 0
    replayed_steps: int = 0
    given_up_steps: int = 0
    checkpoints: int = 0
    stale_events: int = 0


@dataclass(slots=True)
class Recovery:
    """The machine of one executor, whose `children` (name -> kind of standby that can replace it) are all ready.

    `epoch` counts losses: results of an earlier epoch are not delivered (`delivers`).
    """

    children: Mapping[str, str]
    max_restarts: int = 3
    max_step_deaths: int = 3
    checkpoint_every: int = 0
    epoch: int = 0
    counts: Counts = field(default_factory=Counts)
    open: list[int] = field(default_factory=list)
    """Steps in flight, in the order of their launch."""
    kept: list[int] = field(default_factory=list)
    """Steps that have finished since the checkpoint, where state is kept."""
    stateful: bool = False
    base: int | None = None
    """The step of the checkpoint; None: the state's beginning."""
    _by_name: dict[str, _Child] = field(default_factory=dict)
    _standbys: dict[str, int] = field(default_factory=dict)
    _wanted: list[str] = field(default_factory=list)
    _deaths: dict[int, int] = field(default_factory=dict)
    _pending: int | None = None
    _closed: bool = False
    _history: deque[Event | tuple[str, int]] = field(default_factory=lambda: deque(maxlen=_HISTORY))

    def __post_init__(self) -> None:
        self._by_name = {name: _Child(kind) for name, kind in self.children.items()}

    # -- looking -------------------------------------------------------------------------------------------------
    def state(self, child: str) -> State:
        return self._by_name[child].state

    def generation(self, child: str) -> int:
        return self._by_name[child].generation

    @property
    def running(self) -> bool:
        """Whether every child that has a part in the plan is ready, so that steps may be launched."""
        return all(c.state in ("ready", "retired") for c in self._by_name.values())

    @property
    def lost(self) -> list[str]:
        return [name for name, c in self._by_name.items() if c.state == "lost"]

    def delivers(self, step: int, epoch: int) -> bool:
        """Whether a result of `step`, launched in `epoch`, may become the caller's."""
        return epoch == self.epoch and step in self.open  # of which there are none when it is closed

    # -- the ways in: what every step tells, in one call and without an event; and what happens else ---------------
    def launched(self, step: int) -> None:
        """A step's calls follow. Raises: TransportError as `handle`."""
        self._history.append(("launched", step))
        if self._closed:
            return
        for child in self._by_name.values():
            if child.state not in ("ready", "retired"):
                self._refuse()
        if step in self.open:
            self._refuse()
        self.open.append(step)

    def finished(self, step: int) -> list[Command]:
        """A step's outputs are the caller's. What to do now, and Raises: as `handle`."""
        self._history.append(("finished", step))
        if self._closed:
            return []
        if step not in self.open:
            self._refuse()
        self.open.remove(step)
        if self._deaths:  # kept ones did no harm
            self._deaths = {step: n for step, n in self._deaths.items() if step in self.open}
        if not self.stateful:
            return []
        self.kept.append(step)
        if self.checkpoint_every and self._pending is None and len(self.kept) >= self.checkpoint_every:
            self._pending = step
            return [TakeCheckpoint(step)]
        return []

    def handle(self, event: Event) -> list[Command]:
        """What to do now that this has happened. Raises: TransportError for what cannot happen in this state."""
        self._history.append(event)
        if self._closed:
            return []
        match event:
            case ActorLost() | HeartbeatMissed():
                return self._gone(event, [(event.child, event.generation)], event.step, event.cause)
            case DeadlinePassed():
                return self._gone(event, list(event.suspects), event.step, event.cause)
            case NodeLost():
                return self._gone(event, list(event.children), event.step, event.cause)
            case ChildPrepared():
                return self._prepared(event)
            case RestartFailed():
                if self._is_stale(event.child, event.generation):
                    return []
                self._move(event.child, event)
                return [
                    Fence(event.child, event.generation),
                    *self._restart(event.child, event.at_s, event.cause),
                ]
            case Replanned():
                return self._replanned(event)
            case StepsReplayed():
                return self._replayed(event)
            case StepDropped():
                self._end(event.step)
            case StateBegan() | StateEnded():
                self.stateful = isinstance(event, StateBegan)
                self.kept, self.base, self._pending = [], None, None
            case CheckpointSettled():
                self._settled(event.step)
            case CheckpointLost():
                self._pending = None if self._pending == event.step else self._pending
            case StandbyReady():
                self._standbys[event.kind] = self._standbys.get(event.kind, 0) + 1
            case StandbyLost():
                self._standbys[event.kind] = max(0, self._standbys.get(event.kind, 0) - 1)
            case Closed():
                for name in self._by_name:
                    self._move(name, event)
                self._closed = True
                self.open.clear()
        return []

    # -- losing --------------------------------------------------------------------------------------------------
    def _gone(
        self, event: Event, children: list[tuple[str, int]], step: int | None, cause: str
    ) -> list[Command]:
        gone = [name for name, generation in children if not self._is_stale(name, generation)]
        if children and not gone:
            return []
        commands: list[Command] = []
        self.epoch += 1
        for name in gone:
            self._pending = None  # it cannot be told whether this child's copy got out
            self.counts.losses += 1
            commands.append(Fence(name, self._by_name[name].generation))
        commands += self._blame(step, cause)
        at_s = getattr(event, "at_s", 0.0)
        for name in gone:
            starting = self.state(name) != "ready"
            self._move(name, event)
            commands += self._restart(name, at_s, cause) if starting else self._start(name, at_s)
        if not gone and self.running:
            commands += self._again()  # nobody to blame but the step: it has another try
        return commands

    def _blame(self, step: int | None, cause: str) -> list[Command]:
        """Count a loss against the step that was run; one that nobody ran is counted against the oldest in flight, so
        that no step can go on for ever."""
        if step is None or (step not in self.open and step not in self.kept):
            step = next(iter(self.open), None)
        if step is None:
            return []
        deaths = self._deaths[step] = self._deaths.get(step, 0) + 1
        if deaths < self.max_step_deaths:
            return []
        del self._deaths[step]
        # Where one of the steps that the state is made of cannot be replayed, nothing behind it can be run.
        ended = [step] if step in self.open else list(self.open)
        for each in ended:
            self._end(each)
            self.counts.given_up_steps += 1
        return [GiveUp(each, deaths, cause) for each in ended]

    def _restart(self, name: str, at_s: float, cause: str) -> list[Command]:
        """Start once more what did not start."""
        child = self._by_name[name]
        child.failures += 1
        if child.failures >= self.max_restarts:
            child.state = NEXT[child.state, Failover]
            return [Failover(name, cause)]
        return self._start(name, at_s + BACKOFF_S * 2 ** (child.failures - 1))

    def _start(self, name: str, at_s: float) -> list[Command]:
        child = self._by_name[name]
        child.generation += 1
        if self._standbys.get(child.kind, 0) > 0:
            self._standbys[child.kind] -= 1
            self._wanted.append(child.kind)
            self.counts.promotions += 1
            return [Promote(name, child.generation, child.kind)]
        self.counts.restarts += 1
        return [Start(name, child.generation, at_s)]

    def _replanned(self, event: Replanned) -> list[Command]:
        """Everyone begins anew by the other plan: who lives is prepared again where it is."""
        commands: list[Command] = []
        taking_part = dict(event.children)
        self.epoch += 1
        for name, child in self._by_name.items():
            if child.state == "starting" or (
                name not in taking_part and child.state in ("ready", "prepared")
            ):
                commands.append(Fence(name, child.generation))
            if name not in taking_part:
                self._move(name, ChildRetired(name))
        for name, kind in taking_part.items():
            child = self._by_name.setdefault(name, _Child(kind, "retired", generation=0))
            lives = child.state in ("ready", "prepared")
            self._move(name, event)
            child.kind = kind
            if lives:
                child.generation += 1
                commands.append(PrepareAnew(name, child.generation))
            else:
                commands += self._start(name, event.at_s)
        return commands

    # -- coming back ---------------------------------------------------------------------------------------------
    def _prepared(self, event: ChildPrepared) -> list[Command]:
        if self._is_stale(event.child, event.generation):
            return []
        self._move(event.child, event)
        if not all(c.state in ("ready", "prepared", "retired") for c in self._by_name.values()):
            return []
        return self._again()

    def _again(self) -> list[Command]:
        restore: list[Command] = [Restore(self.base)] if self.stateful else []
        return [*restore, Replay(self.epoch, tuple(self.kept), tuple(self.open))]

    def _replayed(self, event: StepsReplayed) -> list[Command]:
        if event.epoch != self.epoch:
            self.counts.stale_events += 1
            return []
        for name, child in self._by_name.items():
            if child.state == "prepared":
                self._move(name, event)
                child.failures = 0
        self.counts.recoveries += 1
        self.counts.replayed_steps += len(self.kept) + len(self.open)
        wanted, self._wanted = self._wanted, []
        return [StartStandby(kind) for kind in wanted]

    # -- steps ---------------------------------------------------------------------------------------------------
    def _settled(self, step: int) -> None:
        if self._pending is None or step < self._pending or step not in self.kept:
            self.counts.stale_events += 1
            return
        self._pending, self.base = None, step
        del self.kept[: self.kept.index(step) + 1]
        self.counts.checkpoints += 1

    def _end(self, step: int) -> None:
        if step in self.open:
            self.open.remove(step)
        self._deaths.pop(step, None)

    # -- helpers -------------------------------------------------------------------------------------------------
    def _is_stale(self, name: str, generation: int) -> bool:
        child = self._by_name[name]
        stale = generation != child.generation or child.state in ("lost", "retired", "closed")
        self.counts.stale_events += stale
        return stale

    def _move(self, name: str, event: Event) -> None:
        child = self._by_name[name]
        following = NEXT.get((child.state, type(event)))
        if following is None:
            self._refuse()
        child.state = following

    def _refuse(self) -> NoReturn:
        """What came last cannot happen in this state."""
        states = {name: (c.state, c.generation) for name, c in self._by_name.items()}
        *before, last = self._history
        raise TransportError(f"recovery cannot take {last} now; children are {states}, before came {before}")
