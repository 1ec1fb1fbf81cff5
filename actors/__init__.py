"""Children of a HeterogeneousExecutor as Ray actors, and what cluster users tune."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.child import ChildActor
    from actors.pool import RayChildren, start_children
    from actors.resources import RayOptions

__all__ = ["ChildActor", "RayChildren", "RayOptions", "start_children"]

# Loaded at first use: an actor needs nothing of what starts and mends actors.
_HOME = {
    "ChildActor": "actors.child",
    "RayChildren": "actors.pool",
    "RayOptions": "actors.resources",
    "start_children": "actors.pool",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'actors' has no attribute {name!r}")
    return getattr(import_module(home), name)
