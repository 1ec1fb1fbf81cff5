"""What an executor drives: children by number, parcels by reference; and the children of this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeAlias, TypeVar

from hetero.errors import StateError
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
Ended: TypeAlias = Callable[["dict[str, Value] | None"], None]
Attend: TypeAlias = "Callable[[float | None], None]"
T = TypeVar("T")


class Planner(Protocol):
    """Who knows what to do without a child that is lost for good."""

    def without(self, child: int, cause: str) -> Plan:
        """A plan over the same providers in which this child, and those named before, have no part. Raises: HeteroError
        where there is none."""

    def adopt(self, plan: Plan) -> None:
        """The children drive this plan from now on."""


class Children(ABC):
    """The children of one executor. Calls of one child run in the order in which they were made.

    `start` has not returned: nothing else may be called. After `close`, nothing may.
    """

    @abstractmethod
    def start(
        self,
        plan: Plan,
        weights: Mapping[str, HostArray],
        planner: Planner | None = None,
    ) -> None:
        """Bring up a child per provider that has partitions, and prepare it. All or nothing.

        `planner` is asked for another plan where a child is lost for good."""

    def launching(self, step: int) -> AbstractContextManager[object]:
        """Around `put` and `call` of one step, whose calls are made together: those of another come before or after,
        and the plan does not change meanwhile."""
        return nullcontext()

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

    def run_whole(
        self, step: int, values: Mapping[str, Value], graph_slot: str, timeout_s: float | None
    ) -> dict[str, Value] | None:
        """Run a step of the plan itself, not one of a shape class, where children send to each other: the caller's
        values by name, to the outputs that partitions send, in the plan's order. None, and nothing has happened: it has
        to be `call`ed partition by partition. Raises: as `get`."""
        return None

    def launch_nowait(
        self, step: int, values: Mapping[str, Value], graph_slot: str, ended: Ended
    ) -> Attend | None:
        """As `run_whole`, where nothing has to be waited for, now or by whoever receives the outputs; else None, and
        nothing has happened. `ended` is called once, from any thread, which it must not hold up: with what comes back,
        or None where `awaited` has to be called. What is returned may be called with a time: it helps to receive, until
        the step is over or that time is."""
        return None

    def awaited(self, step: int, timeout_s: float | None) -> dict[str, Value]:
        """Wait for a step that `launch_nowait` has begun: what comes back. Raises: as `get`."""
        raise StateError("no such step has begun", step=step)

    @abstractmethod
    def get(self, parcels: Sequence[ParcelRef], timeout_s: float | None) -> list[list[Value]]:
        """Wait for a step's parcels, which end it. Raises: what the child raised, ChildDiedError, StepTimeoutError."""

    @abstractmethod
    def drop(self, step: int) -> None:
        """Tell every child to forget a step that failed."""

    def placed(self, act: Callable[[], T]) -> T:
        """`act()`, which changes the states of children by number: once more where the plan changes meanwhile."""
        return act()

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

    def recovery(self) -> dict[str, Any]:
        """Counters of what was done about children that died; empty where they cannot die by themselves."""
        return {}

    def transport(self) -> dict[str, Any]:
        """The road that values take between children, and its counters."""
        return {}

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

    def start(
        self,
        plan: Plan,
        weights: Mapping[str, HostArray],
        planner: Planner | None = None,
    ) -> None:
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
