"""What can happen to children and their steps (events, in the past tense), and what is to be done (commands)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


# -- events ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ActorLost:
    """The process of a child is gone. `step`: which it was running, as far as can be told."""

    child: str
    generation: int
    at_s: float
    step: int | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatMissed:
    """A child has not given a sign of life for too long."""

    child: str
    generation: int
    at_s: float
    step: int | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """A step took too long. `suspects`: (child, generation) of those that were running it, or a step before it."""

    step: int
    suspects: tuple[tuple[str, int], ...]
    at_s: float
    cause: str = ""


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone, and `children` (child, generation) with it. `step`: what one of them was running."""

    node: str
    children: tuple[tuple[str, int], ...]
    at_s: float
    step: int | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class ChildPrepared:
    """A child was started anew and holds its programs and weights."""

    child: str
    generation: int


@dataclass(frozen=True, slots=True)
class RestartFailed:
    """A child could not be started anew."""

    child: str
    generation: int
    at_s: float
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Replanned:
    """There is a plan without a child that could not be brought back. `children`: those that have a part in it, new
    ones among them, and the kind of standby that can replace each."""

    children: tuple[tuple[str, str], ...]
    at_s: float


@dataclass(frozen=True, slots=True)
class ChildRetired:
    """A child has no part in the plan any more."""

    child: str


@dataclass(frozen=True, slots=True)
class StepsReplayed:
    """What `Replay` named was given to the children again."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StepDropped:
    """A step has ended with an error of its own."""

    step: int


@dataclass(frozen=True, slots=True)
class StateBegan:
    """State is kept from here on, and nothing before matters to it."""


@dataclass(frozen=True, slots=True)
class StateEnded:
    """No state is kept any more."""


@dataclass(frozen=True, slots=True)
class CheckpointSettled:
    """The state after `step` lies where the loss of any child cannot reach it."""

    step: int


@dataclass(frozen=True, slots=True)
class CheckpointLost:
    step: int


@dataclass(frozen=True, slots=True)
class StandbyReady:
    kind: str


@dataclass(frozen=True, slots=True)
class StandbyLost:
    kind: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The executor was closed."""


Event: TypeAlias = (
    ActorLost | HeartbeatMissed | DeadlinePassed | NodeLost | ChildPrepared | RestartFailed | Replanned
    | ChildRetired | StepsReplayed | StepDropped | StateBegan | StateEnded
    | CheckpointSettled | CheckpointLost | StandbyReady | StandbyLost | Closed
)  # fmt: skip


# -- commands ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Fence:
    """Make sure that this incarnation never delivers anything again: end its process, forget its results."""

    child: str
    generation: int


@dataclass(frozen=True, slots=True)
class Start:
    """Start and prepare a new incarnation, not before `at_s`."""

    child: str
    generation: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Promote:
    """Prepare a warm standby of this kind as the new incarnation."""

    child: str
    generation: int
    kind: str


@dataclass(frozen=True, slots=True)
class PrepareAnew:
    """Have a child that lives forget all that it has, and prepare it as a new incarnation, by the present plan."""

    child: str
    generation: int


@dataclass(frozen=True, slots=True)
class StartStandby:
    kind: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Bring every child that holds state to the checkpoint of this step; None: to where the state began."""

    step: int | None


@dataclass(frozen=True, slots=True)
class Replay:
    """Give these steps to the children again, in this order: `kept` for what they leave, `open` for their outputs."""

    epoch: int
    kept: tuple[int, ...]
    open: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End this step with an error: children went with it so many times."""

    step: int
    deaths: int
    cause: str


@dataclass(frozen=True, slots=True)
class Failover:
    """This child cannot be brought back: what is there to do without it?"""

    child: str
    cause: str


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Copy the state as it is after this step."""

    step: int


Command: TypeAlias = (
    Fence
    | Start
    | Promote
    | PrepareAnew
    | StartStandby
    | Restore
    | Replay
    | GiveUp
    | Failover
    | TakeCheckpoint
)
