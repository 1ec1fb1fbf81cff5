"""What to do without a child that cannot be brought back: another plan, room for it, and what was begun goes by it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import ray

from actors.journal import Journal
from actors.members import Held
from actors.rerouting import Rerouting
from actors.resources import RayOptions, Wish, reserve, threads_of, wish
from hetero.errors import HeteroError
from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan
from hetero.runtime.children import Planner

log = logging.getLogger("hetero.recovery")


class Relocation:
    """Has the children of one executor go by another plan. `drive` is told of it; `planner` makes it."""

    def __init__(
        self,
        held: Held,
        journal: Journal,
        options: RuntimeOptions,
        ray_options: RayOptions,
        planner: Planner,
        drive: Callable[[Plan], None],
    ) -> None:
        self._held, self._journal = held, journal
        self._options, self._ray_options = options, ray_options
        self._planner, self._drive = planner, drive

    def without(self, child: int, cause: str) -> tuple[tuple[str, str], ...]:
        """Go by a plan without this child: who takes part in it, and the kind of standby that can replace each.

        Steps in flight, and what the journal has, are for that plan from now on. Raises: HeteroError where there is no
        plan, or no room for one; then everything is as it was.
        """
        held, old = self._held, self._held.roads.plan
        assert old is not None, "children were started by a plan"
        assert held.lease is not None, "children are on a Ray"
        ours = held.lease.ours
        while True:
            plan = self._planner.without(child, cause)
            wishes = {k: wish(plan.providers[k], self._ray_options, ours=ours) for k in plan.children}
            fresh = [k for k in wishes if k not in held.homes]
            refused = self._make_room({k: wishes[k] for k in fresh}, ours=ours)
            if refused is None:
                break
            child, cause = refused
        held.roads.pause()
        Rerouting(old, plan).reroute(self._journal)
        assert held.weights is not None, "children were prepared with their weights"
        held.weights.need({k: plan.weights[k] for k in plan.children})
        held.wishes.update(wishes)
        held.threads = threads_of(plan.providers, wishes, self._ray_options, ours=ours)
        held.plan = ray.put(np.frombuffer(plan.to_bytes(), np.uint8))
        self._planner.adopt(plan)
        self._drive(plan)
        return tuple((w.device, w.kind) for w in wishes.values())

    def _make_room(self, wishes: dict[int, Wish], *, ours: bool) -> tuple[int, str] | None:
        """Reserve a bundle for each of these children, or say for which there is none, and why."""
        for child, wanted in wishes.items():
            try:
                group = reserve([wanted], self._ray_options, self._options.start_timeout_s or 1e9, ours=ours)
            except HeteroError as why:
                log.warning("%s", why)
                return child, why.message
            self._held.groups.append(group)
            self._held.homes[child] = (group, 0)
        return None
