"""What each child asks of the cluster, and the placement group that gives it: all children at once, or none."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from hetero.errors import OptionError, TransportError
from hetero.providers.base import ProviderConfig

_ray: Any = ray  # these functions of it have no types

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
TRACE_OF_CPU = 0.001
"""Of a CPU, for children that compute nothing on one: a placement group's bundle must not be empty."""


@dataclass(frozen=True, slots=True)
class RayOptions:
    """What cluster users tune.

    `resources` and `labels` are per child, by provider name ("cuda:0") or kind ("cuda").
    """

    address: str | None = None
    """The Ray to connect to ("host:port", "auto"). None: the one this process is connected to, else RAY_ADDRESS, else a
    local one of our own."""
    cpus_per_child: float | None = None
    """CPUs that a cpu child reserves. None: 1 on a cluster, next to nothing on a local Ray of our own."""
    threads_per_child: int | None = None
    """Threads of a child's libraries. None: the provider's `threads` option, else its share of its node's cores."""
    strategy: str = "PACK"
    """How Ray spreads children over nodes: PACK, SPREAD, STRICT_PACK, STRICT_SPREAD."""
    resources: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Further resources that a child reserves, such as {"cuda": {"A100": 1}}."""
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Node labels that a child insists on (Ray's label selectors), such as {"cuda:0": {"zone": "in(a, b)"}}."""
    standbys: int = 0
    """Spare actors that are kept ready, for each kind of child (those that reserve the same); each reserves as much."""
    store_bytes: int | None = None
    """Object store of a local Ray of our own. None: 30 % of the free memory."""
    log_to_driver: bool = False
    """Print what children print."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RayOptions:
        """Options from keywords. Raises: OptionError for an unknown one."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise OptionError(f"unknown Ray option {name!r}; there are: {', '.join(known)}", operand=name)
        return cls(**given)

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise OptionError(f"strategy must be one of {', '.join(STRATEGIES)}, not {self.strategy!r}")
        if self.cpus_per_child is not None and self.cpus_per_child < 0:
            raise OptionError(f"cpus_per_child must not be negative, but is {self.cpus_per_child}")
        if self.standbys < 0:
            raise OptionError(f"standbys must not be negative, but is {self.standbys}")
        if self.threads_per_child is not None and self.threads_per_child < 1:
            raise OptionError(f"threads_per_child must be at least 1, not {self.threads_per_child}")


@dataclass(frozen=True, slots=True)
class Wish:
    """What one child asks for."""

    device: str
    bundle: dict[str, float]
    labels: dict[str, str]

    @property
    def kind(self) -> str:
        """The same for children that an actor can take over from each other."""
        return repr((sorted(self.bundle.items()), sorted(self.labels.items())))

    def actor_options(self) -> dict[str, Any]:
        """The same as Ray's actor options."""
        extra = {k: v for k, v in self.bundle.items() if k not in ("CPU", "GPU")}
        return {
            "num_cpus": self.bundle.get("CPU", 0),
            "num_gpus": self.bundle.get("GPU", 0),
            "resources": extra or None,
        }

    def __str__(self) -> str:
        wanted = ", ".join(f"{k}: {v:g}" for k, v in self.bundle.items())
        return f"{self.device} ({wanted}{f', labels {self.labels}' if self.labels else ''})"


def wish(config: ProviderConfig, options: RayOptions, *, ours: bool) -> Wish:
    """What the child of `config` asks for: pure. `ours`: the Ray is a local one that serves us alone."""
    kind = config.name.split(":")[0]
    bundle = {"CPU": TRACE_OF_CPU}
    if kind == "cpu" and options.cpus_per_child is not None:
        bundle["CPU"] = options.cpus_per_child or TRACE_OF_CPU
    elif kind == "cpu" and not ours:
        bundle["CPU"] = 1.0
    elif kind == "cuda":
        bundle["GPU"] = 1.0
    labels: dict[str, str] = {}
    for key in (kind, config.name):
        bundle.update(options.resources.get(key, {}))
        labels.update(options.labels.get(key, {}))
    return Wish(config.name, bundle, labels)


def threads_of(
    configs: Sequence[ProviderConfig], wishes: Mapping[int, Wish], options: RayOptions, *, ours: bool
) -> dict[int, int]:
    """How many threads the libraries of each child have, by its number: pure, but for the cores of this machine."""
    computing = sum(configs[k].name.split(":")[0] == "cpu" for k in wishes)
    found = {}
    for child, wanted in wishes.items():
        asked = dict(configs[child].options).get("threads") or options.threads_per_child
        if asked is not None:
            found[child] = int(asked)
        elif not ours or options.cpus_per_child is not None:
            found[child] = max(1, int(wanted.bundle.get("CPU", 1)))
        elif configs[child].name.split(":")[0] != "cpu":
            found[child] = 1
        else:
            found[child] = max(1, len(os.sched_getaffinity(0)) // computing)
    return found


def reserve(wishes: Sequence[Wish], options: RayOptions, timeout_s: float, *, ours: bool) -> PlacementGroup:
    """A placement group with one bundle per wish, ready; none is left where it cannot be had.

    Raises: TransportError listing what was wanted and what there is.
    """
    if ours and (missing := lacking(wishes)):  # nobody will add a node to this one
        raise TransportError(f"the local Ray has no room for {missing}: {_compared(wishes)}", phase="prepare")
    labels = [dict(w.labels) for w in wishes]
    try:
        group: PlacementGroup = placement_group(
            [dict(w.bundle) for w in wishes],
            strategy=options.strategy,
            bundle_label_selector=labels if any(labels) else None,
        )
    except (ValueError, TypeError) as cause:
        raise OptionError(f"Ray refuses these placement options: {cause}", phase="prepare") from cause
    try:
        ready = group.wait(timeout_s)
    except BaseException:
        remove_placement_group(group)
        raise
    if not ready:
        remove_placement_group(group)
        raise TransportError(
            f"the cluster had no room for all children within {timeout_s:g} s"
            f" ({options.strategy}): {_compared(wishes)}",
            phase="prepare",
        )
    return group


def lacking(wishes: Sequence[Wish]) -> str:
    """The resources of which the whole cluster has too little, whoever uses them."""
    total: dict[str, float] = {}
    for one in wishes:
        for name, amount in one.bundle.items():
            total[name] = total.get(name, 0.0) + amount
    there = _ray.cluster_resources()
    return ", ".join(f"{name}" for name, amount in total.items() if amount > there.get(name, 0.0) + 1e-9)


def _compared(wishes: Sequence[Wish]) -> str:
    free = _ray.available_resources()
    have = ", ".join(
        f"{k}: {free.get(k, 0.0):g} of {v:g} free" for k, v in sorted(_countable(_ray.cluster_resources()))
    )
    return f"wanted {'; '.join(map(str, wishes))}; there is {have or 'nothing'}"


def _countable(resources: Mapping[str, float]) -> list[tuple[str, float]]:
    hidden = ("memory", "object_store_memory")
    return [
        (k, v)
        for k, v in resources.items()
        if k not in hidden and not k.startswith(("node:", "bundle")) and "_group_" not in k
    ]
