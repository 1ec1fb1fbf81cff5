"""Children of a HeterogeneousExecutor as Ray actors, and what cluster users tune."""

from __future__ import annotations

from actors.child import ChildActor
from actors.pool import RayChildren, start_children
from actors.resources import RayOptions

__all__ = ["ChildActor", "RayChildren", "RayOptions", "start_children"]
