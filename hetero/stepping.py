"""One step of a plan: which section of it and which road it takes, what comes of it, and what is counted."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from hetero.errors import ClosedError, HeteroError
from hetero.failover import Failover
from hetero.planner.check import symbols_of
from hetero.planner.homes import withheld
from hetero.planner.plan import Parcel, Plan
from hetero.routes import Only
from hetero.runtime.children import Children, ParcelRef
from hetero.runtime.pins import Binding
from hetero.types import HostArray

_OF_CLASS = "steps of class "


Bounds: TypeAlias = list[tuple[str, tuple[tuple[str, int, int, int | None], ...]]]


def bounds_of(plan: Plan) -> Bounds:
    """For each shape class its counter, and for each of its symbols an input and axis and the bounds."""
    at = symbols_of(plan) if plan.variants else {}
    return [
        (
            _OF_CLASS + variant.name,
            tuple((*at[symbol], least, most) for symbol, least, most in variant.when),
        )
        for variant in plan.variants
    ]


class Stepping:
    """Runs the steps of one executor over its children, each in its caller's thread. Thread-safe.

    `whole`: whether steps may go over the children as a whole (`Children.run_whole`) without a look at their shapes.
    """

    def __init__(
        self,
        children: Children,
        failover: Failover,
        classes: Bounds,
        weights: Mapping[str, HostArray],
        timeout_s: float | None,
        *,
        inline: bool,
    ) -> None:
        """`classes`: as `bounds_of` has them. `inline`: the children are in this process."""
        self._children, self._failover, self._weights = children, failover, weights
        self._timeout_s, self._inline = timeout_s, inline
        self._classes = classes
        self.output_names = tuple(p.name for p in failover.plan.outputs)
        self.whole = not (inline or self._classes)
        self.closed = False
        self.counters = {"steps": 0, "failed_steps": 0, **dict.fromkeys((c[0] for c in self._classes), 0)}
        self.counting = threading.Lock()

    def step(
        self,
        step: int,
        values: dict[str, Any],
        names: Sequence[str],
        graph_slot: str,
        binding: Binding | None = None,
    ) -> dict[str, Any]:
        """Run it with these values, which it may add to; returns the outputs that are named.

        Raises: what the children raise; nothing is left of it then.
        """
        if binding is not None and binding.on_device is not None:
            values.update(binding.on_device.inputs)
        section = 0 if not self._classes else self._fitting(values)
        only = self._failover.routes[section].only if self._inline else None
        left: Sequence[Sequence[Any]] = ()
        try:
            if only is not None:
                left = self._alone(only, step, values, graph_slot, binding)
            else:
                found = self._by_children(section, step, values, graph_slot, binding)
        except BaseException as error:
            self.failed(step, error)
            raise
        self.count("steps")
        if only is not None:
            if only.returns and names is self.output_names:
                return dict(zip(names, left[0]))  # noqa: B905 - as many as there are; a look takes half as long again
            for sent, got in zip(only.sends, left, strict=True):
                values.update(zip(sent, got, strict=True))
            found = {}
        return self.outputs(values, names, found)

    def awaited(self, step: int, values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """As `step`, of one that `Children.launch_nowait` has begun."""
        try:
            found = self._children.awaited(step, self._timeout_s)
        except BaseException as error:
            self.failed(step, error)
            raise
        self.count("steps")
        return self.outputs(values, names, found)

    def outputs(self, values: dict[str, Any], names: Sequence[str], found: dict[str, Any]) -> dict[str, Any]:
        """Those that are named, of a step with these values of which `found` has come back."""
        values.update(found)
        return {name: values[name] if name in values else self._weights[name] for name in names}

    def failed(self, step: int, error: BaseException) -> None:
        """Nothing is left of a step that has failed; the error says which it was."""
        self.count("failed_steps")
        if not self.closed:
            self._children.drop(step)
        if isinstance(error, HeteroError):
            error.at(step=step)

    def _fitting(self, values: Mapping[str, Any]) -> int:
        """The plan's section for the first shape class that a step with these inputs belongs to."""
        for section, (name, bounds) in enumerate(self._classes, 1):
            if all(
                least <= values[port].shape[axis] and (most is None or values[port].shape[axis] <= most)
                for port, axis, least, most in bounds
            ):
                self.count(name)
                return section
        return 0

    def _by_children(
        self, section: int, step: int, values: dict[str, Any], graph_slot: str, binding: Binding | None
    ) -> dict[str, Any]:
        """What the partitions send to the caller."""
        found = None
        if self.closed:
            raise ClosedError("this executor is closed")
        if section == 0 and (binding is None or binding.on_device is None):
            found = self._children.run_whole(step, values, graph_slot, self._timeout_s)
        if found is None:
            found = {}
            with self._children.launching(step):
                pending = self._called(section, step, values, graph_slot, binding)
            arrived = self._children.get([r for _, r in pending], self._timeout_s)
            for (parcel, _), got in zip(pending, arrived, strict=True):
                found.update(zip(parcel.values, got, strict=True))
        return found

    def _alone(
        self, only: Only, step: int, values: dict[str, Any], graph_slot: str, binding: Binding | None
    ) -> Sequence[Sequence[Any]]:
        """As `_by_children`, for one partition in this process, which spares a small model 2 µs. Returns what it
        sends, as `only.sends` names it."""
        if self.closed:
            raise ClosedError("this executor is closed")
        if len(only.receives) == 1:
            arrived = [[values[v] for v in only.receives[0]]]
        else:
            arrived = [[values[v] for v in names] for names in only.receives]
        return self._children.call(
            only.child, only.partition, step, arrived, len(only.sends), graph_slot, binding
        )

    def _called(
        self, section: int, step: int, values: dict[str, Any], graph_slot: str, binding: Binding | None
    ) -> list[tuple[Parcel, ParcelRef]]:
        """Begin the step by calling every partition in the plan's order; returns what comes back."""
        children, routes = self._children, self._failover.routes[section]
        if binding is not None and binding.on_device is not None and self._failover.degraded:
            on_device = binding.on_device
            kept = frozenset(withheld(self._failover.plan, on_device.outputs.keys()))
            binding = replace(binding, on_device=replace(on_device, withheld=kept))
        parcels: dict[int, ParcelRef] = {
            parcel: children.put([values[v] for v in names]) for parcel, names in routes.given
        }
        for partition, receives, sends in routes.calls:
            arrived = [parcels[p] for p in receives]
            left = children.call(
                partition.child, partition.id, step, arrived, len(sends), graph_slot, binding
            )
            parcels.update(zip(sends, left, strict=True))
        return [(parcel, parcels[parcel.id]) for parcel in routes.to_caller]

    def count(self, counter: str) -> None:
        with self.counting:
            self.counters[counter] += 1

    def counts(self) -> dict[str, Any]:
        """Steps that ended well, failed, and of each class."""
        with self.counting:
            counters = dict(self.counters)
        return {
            **{k: n for k, n in counters.items() if not k.startswith(_OF_CLASS)},
            "steps_by_class": {
                k.removeprefix(_OF_CLASS): n for k, n in counters.items() if k.startswith(_OF_CLASS)
            },
        }
