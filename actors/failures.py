"""What Ray raises, as our own errors: the child's error itself, or which child died and how."""

from __future__ import annotations

import re
from collections.abc import Mapping

import ray.exceptions as rex

from actors.refs import LostElementError
from hetero.errors import ChildDiedError, HeteroError, StepTimeoutError, TransportError

DEATHS = (
    rex.RayActorError,
    rex.OwnerDiedError,
    rex.WorkerCrashedError,
    rex.OutOfMemoryError,
    rex.NodeDiedError,
    rex.ObjectLostError,
)
"""A process or a node is gone, or an object with it. RayActorError includes "unavailable": such a child is fenced."""


NODE_GONE = "its node is gone"
"""How `how_it_went` begins then."""


class RemoteTracebackError(Exception):
    """Stands as the cause of an error that crossed from a child: str() is the traceback over there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def root_cause(error: BaseException) -> BaseException:
    """The first error under the wrappers that dependent calls put around it."""
    while isinstance(error, rex.RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def dead_actor(error: BaseException) -> str | None:
    """The id of the actor whose death this error tells of, however deeply wrapped; None where it tells of none."""
    root = root_cause(error)
    return root.actor_id if isinstance(root, rex.RayActorError) else None


def is_death(error: BaseException) -> bool:
    """Whether the error means that a child is gone, or something that it made."""
    return isinstance(root_cause(error), (*DEATHS, LostElementError))


def translated(error: BaseException, devices: Mapping[str, str]) -> Exception:
    """The error to raise in the caller for one that Ray raised; its `__cause__` holds the text from the other side.

    `devices`: actor id -> device name. A child's own error comes back as it was raised there.
    """
    if isinstance(error, rex.GetTimeoutError):
        return _caused(StepTimeoutError("the step passed its deadline"), error)
    root = root_cause(error)
    if isinstance(root, DEATHS):
        device = devices.get(dead_actor(error) or "")
        return _caused(
            ChildDiedError(f"child {device or '(unknown)'} died: {how_it_went(root)}", device=device), error
        )
    if isinstance(root, rex.RayError):
        return _caused(TransportError(f"{type(root).__name__}: {_first_line(str(root))}"), error)
    if isinstance(root, HeteroError) or (isinstance(root, Exception) and isinstance(error, rex.RayTaskError)):
        return _caused(root, error)
    return _caused(TransportError(f"{type(root).__name__}: {root}"), error)


def _caused(ours: Exception, theirs: BaseException) -> Exception:
    ours.__cause__ = RemoteTracebackError(_plain(str(theirs)))
    return ours


def how_it_went(error: BaseException) -> str:
    """How a child's process ended, in a few words, as far as Ray knows."""
    text = " ".join(str(error).split())
    if isinstance(error, rex.OutOfMemoryError) or re.search(r"OUT_OF_MEMORY|running low on memory", text):
        return "out of memory: its node ran low, and Ray killed it"
    if found := re.search(r"exit code (-?\d+)", text.replace("connection error code", "")):
        return f"its process ended with exit code {found[1]}"
    if "killed by `ray.kill`" in text:
        return "it was killed by ray.kill"
    if "creation task" in text:
        return f"it could not start: {_last_line(str(error))}"
    if "connection error code 2" in text:
        return "its process was killed or crashed (SIGKILL, the kernel's out-of-memory killer, a fault in native code)"
    if isinstance(error, rex.NodeDiedError) or "node" in text.lower():
        return f"{NODE_GONE} ({_first_line(text)})"
    return _first_line(text)


def _plain(text: str) -> str:
    """The text without the colours that Ray gives it."""
    return re.sub(r"\x1b\[\d*m", "", text)


def _last_line(text: str, limit: int = 300) -> str:
    """The exception itself, below its traceback."""
    line = _plain(text).strip().splitlines()
    return (line[-1] if line else "no details")[:limit]


def _first_line(text: str, limit: int = 300) -> str:
    line = re.split(r"Some common causes", text.strip())[0].strip().splitlines()
    return (line[0] if line else "no details")[:limit]
