"""What an executor drives: children by number, parcels by reference; and the children of this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan
from hetero.providers.base import Provider
from hetero.runtime.assignment import assignment
from hetero.runtime.child import ChildExecutor, Value
from hetero.runtime.device_buffers import BufferChange
from hetero.runtime.pins import Binding
from hetero.runtime.state import StateChange, StateSpec
from hetero.trace import Span
from hetero.types import HostArray

ParcelRef = Any
"""A parcel that lies somewhere: a list of values here, an object reference elsewhere."""


class Children(ABC):
    """The children of one executor. Calls of one child run in the order in which they were made.

    `start` has not returned: nothing else may be called. After `close`, nothing may.
    """

    @abstractmethod
    def start(self, plan: Plan, weights: Mapping[str, HostArray]) -> None:
        """Bring up a child per provider that has partitions, and prepare it. All or nothing."""

    @abstractmethod
    def put(self, values: Sequence[Value]) -> ParcelRef:
        """A parcel of the caller's values; they are only read, until the step that uses them has ended."""

    @abstractmethod
    def call(
        self,
        child: int,
        partition: int,
        step: int,
        parcels: Sequence[ParcelRef],
        n_sends: int,
        graph_slot: str,
        binding: Binding | None = None,
    ) -> Sequence[ParcelRef]:
        """Run a partition; returns its parcels at once where it lives elsewhere. Raises what the child raises, or lets
        the parcels raise it from `get`. `binding` may be used where the caller's memory can be reached."""

    @abstractmethod
    def get(self, parcels: Sequence[ParcelRef], timeout_s: float | None) -> list[list[Value]]:
        """Wait for parcels. Raises: what the child raised, ChildDiedError, StepTimeoutError."""

    @abstractmethod
    def drop(self, step: int) -> None:
        """Tell every child to forget a step that failed."""

    @abstractmethod
    def bind_state(self, child: int, specs: Sequence[StateSpec], withheld: Sequence[tuple[int, str]]) -> None:
        """Have a child keep these values between steps (`ChildExecutor.bind_state`); waits until it does."""

    @abstractmethod
    def change_state(self, child: int, change: StateChange) -> dict[str, HostArray]:
        """Apply `change` to the states of a child, after the steps so far (`ChildExecutor.change_state`)."""

    @abstractmethod
    def change_buffer(self, child: int, change: BufferChange) -> HostArray | None:
        """Apply `change` to a buffer on a child, after the steps so far (`ChildExecutor.change_buffer`)."""

    @abstractmethod
    def stats(self) -> dict[str, dict[str, Any]]:
        """Each child's counters, by provider name."""

    @abstractmethod
    def take_spans(self) -> list[Span]:
        """Spans recorded by all children since the last call."""

    @abstractmethod
    def close(self) -> None:
        """Stop every child and free what it holds. A second call does nothing."""


class InlineChildren(Children):
    """Children in the caller's process and thread: lowest latency, easiest to debug."""

    def __init__(self, providers: Sequence[Provider], options: RuntimeOptions) -> None:
        self._providers = tuple(providers)
        self._options = options
        self._children: dict[int, ChildExecutor] = {}

    def start(self, plan: Plan, weights: Mapping[str, HostArray]) -> None:
        try:
            for index in plan.children:
                child = ChildExecutor(self._providers[index], self._options)
                self._children[index] = child
                child.prepare(assignment(plan, index), weights)
        except BaseException:
            self.close()
            raise

    def put(self, values: Sequence[Value]) -> ParcelRef:
        return values

    def call(
        self,
        child: int,
        partition: int,
        step: int,
        parcels: Sequence[ParcelRef],
        n_sends: int,
        graph_slot: str,
        binding: Binding | None = None,
    ) -> Sequence[ParcelRef]:
        return self._children[child].run(partition, step, parcels, graph_slot, binding)

    def get(self, parcels: Sequence[ParcelRef], timeout_s: float | None) -> list[list[Value]]:
        return list(parcels)

    def drop(self, step: int) -> None:
        for child in self._children.values():
            child.drop(step)

    def bind_state(self, child: int, specs: Sequence[StateSpec], withheld: Sequence[tuple[int, str]]) -> None:
        self._children[child].bind_state(specs, withheld)

    def change_state(self, child: int, change: StateChange) -> dict[str, HostArray]:
        return self._children[child].change_state(change)

    def change_buffer(self, child: int, change: BufferChange) -> HostArray | None:
        return self._children[child].change_buffer(change)

    def stats(self) -> dict[str, dict[str, Any]]:
        return {c.provider.name: c.stats() for c in self._children.values()}

    def take_spans(self) -> list[Span]:
        return [span for c in self._children.values() for span in c.take_spans()]

    def close(self) -> None:
        children, self._children = self._children, {}
        for child in children.values():
            child.close()
        for provider in self._providers:  # those without a partition have no child that does it
            provider.close()
