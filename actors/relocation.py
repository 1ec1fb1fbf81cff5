"""Room for a child that moves to another provider: a placement group of its own, and the plan that says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import ray

from actors.members import Held
from actors.resources import RayOptions, reserve, wish
from hetero.errors import HeteroError, TransportError
from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan

log = logging.getLogger("hetero.recovery")

Relocate: TypeAlias = Callable[[int, str], Plan]
"""(child, cause) -> the plan with its partitions elsewhere. Raises: HeteroError where there is nowhere."""


class Relocation:
    """Where children of one executor go that cannot come back."""

    def __init__(
        self, held: Held, options: RuntimeOptions, ray_options: RayOptions, relocate: Relocate | None
    ) -> None:
        self._held, self._options, self._ray_options = held, options, ray_options
        self._relocate = relocate

    def move(self, child: int, cause: str) -> bool:
        """Whether there is room for the child elsewhere; `held` says where from now on."""
        held = self._held
        while self._relocate is not None and held.lease is not None:
            try:
                plan = self._relocate(child, cause)
            except HeteroError as why:
                log.error("%s", why)
                return False
            wanted = wish(plan.providers[child], self._ray_options, ours=held.lease.ours)
            try:
                group = reserve(
                    [wanted], self._ray_options, self._options.start_timeout_s or 1e9, ours=held.lease.ours
                )
            except TransportError as why:
                log.warning("%s", why)
                cause = why.message
                continue
            held.groups.append(group)
            held.wishes[child] = wanted
            held.plans[child] = ray.put(np.frombuffer(plan.to_bytes(), np.uint8))
            held.homes[child] = (group, 0)
            return True
        return False
