"""All children of an executor for the first time: reserved at once, started, prepared, or none."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
import ray.exceptions as rex

from actors.members import Held, Home
from actors.resources import RayOptions, reserve, threads_of, wish
from actors.weights import SharedWeights
from hetero.errors import TransportError
from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan
from hetero.types import HostArray


def bring_up(
    held: Held,
    plan: Plan,
    weights: Mapping[str, HostArray],
    options: RuntimeOptions,
    ray_options: RayOptions,
    *,
    ours: bool,
) -> dict[str, list[Home]]:
    """Have the plan's children prepared, and in `held` what they are made of; returns bundles for standbys, by the kind
    of child that these can become.

    Raises: TransportError where there is no room, or it takes longer than options.start_timeout_s; what `prepare`
    raises. What was started then is in `held`.
    """
    indices = plan.children
    deadline = time.monotonic() + (options.start_timeout_s or 1e9)
    wishes = {k: wish(plan.providers[k], ray_options, ours=ours) for k in indices}
    kinds = {w.kind: w for w in wishes.values()}
    spare = {kind: ray_options.standbys * [w] for kind, w in kinds.items()}
    wanted = [*wishes.values(), *(w for each in spare.values() for w in each)]
    group = reserve(wanted, ray_options, deadline - time.monotonic(), ours=ours)
    held.groups.append(group)
    held.wishes = wishes
    held.numbers = {config.name: k for k, config in enumerate(plan.providers)}
    held.threads = threads_of(plan.providers, wishes, ray_options, ours=ours)
    for bundle, k in enumerate(indices):
        held.homes[k] = (group, bundle)
        held.members[k] = held.start(wishes[k], held.homes[k])
    held.plan = ray.put(np.frombuffer(plan.to_bytes(), np.uint8))
    needed = {k: plan.weights[k] for k in indices}
    held.weights = SharedWeights(needed, weights, ray.put, map_files=options.map_weights)
    preparing = {k: held.prepare(k, options) for k in indices}
    for k, facts in _await_ready(held, preparing, options, deadline).items():
        held.members[k].watch(facts)
    free = ((group, bundle) for bundle in range(len(indices), len(wanted)))
    return {kind: [next(free) for _ in each] for kind, each in spare.items()}


def _await_ready(
    held: Held, preparing: Mapping[int, Any], options: RuntimeOptions, deadline: float
) -> dict[int, dict[str, Any]]:
    """What each child says of itself."""
    preparing = dict(preparing)
    try:
        while True:
            try:
                facts: Sequence[dict[str, Any]] = ray.get(
                    list(preparing.values()), timeout=max(0.0, deadline - time.monotonic())
                )
                return dict(zip(preparing, facts, strict=True))
            except rex.RayTaskError:
                again = {k: held.prepared_again(k, ref, options) for k, ref in preparing.items()}
                if again == preparing:
                    raise
                preparing = again
    except rex.GetTimeoutError as cause:
        _, late = ray.wait(list(preparing.values()), num_returns=len(preparing), timeout=0)
        names = [held.wishes[k].device for k, ref in preparing.items() if ref in late]
        raise TransportError(
            f"children {names} were not ready within {options.start_timeout_s:g} s", phase="prepare"
        ) from cause
