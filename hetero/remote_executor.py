"""The executor of a caller whose Ray is a Ray Client connection: it lives in an actor, and this one forwards to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from hetero.binding import IOBinding
from hetero.device_buffer import DeviceBuffer
from hetero.errors import InputError, ProviderError
from hetero.executor import HeterogeneousExecutor, ModelLike, open_gateway
from hetero.futures import StepFuture
from hetero.in_flight import InFlight
from hetero.model.shipping import packed
from hetero.options import RuntimeOptions
from hetero.planner.plan import Plan
from hetero.providers.base import Provider
from hetero.providers.registry import ProviderLike
from hetero.runtime.pins import Binding
from hetero.trace import Span


class RemoteExecutor(HeterogeneousExecutor):
    """What `HeterogeneousExecutor(...)` makes then. The model's files are sent; providers are named, since they are
    made over there. All is as ever, but for device buffers, which cannot be reached, and errors of feeds that are
    submitted, which come from the future."""

    def __init__(
        self,
        model: ModelLike,
        providers: Sequence[ProviderLike] | None = None,
        *,
        options: RuntimeOptions | None = None,
        ray_options: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """As HeterogeneousExecutor. Raises: TransportError where the cluster cannot be reached; ProviderError for an
        object in `providers`."""
        objects = [p.name for p in providers or () if isinstance(p, Provider)]
        if objects:
            raise ProviderError(
                "through Ray Client providers are named, and made on the cluster", device=objects[0]
            )
        self.options = (options or RuntimeOptions()).with_environment()
        its = {k: v for k, v in (ray_options or {}).items() if k != "address"}
        there = {"providers": providers, "options": self.options, "ray_options": its or None, **others}
        self._in_flight = InFlight(self.options.max_in_flight, self.options.max_in_flight)
        self._state = None  # it is bound over there
        self._inline = self._whole = self._closed = False
        self._gateway = open_gateway(packed(model), there, self.options.max_in_flight, ray_options)

    @property
    def plan(self) -> Plan:
        """Which child runs what, at the moment; asked for each time."""
        self._check_open()
        return Plan.from_bytes(self._gateway.look("plan"))

    # -- running -------------------------------------------------------------------------------------------------
    def _names(self, output_names: Sequence[str] | None) -> Any:
        self._check_open()
        return output_names  # the executor knows them

    def _run(
        self, feeds: Mapping[str, Any], names: Any, graph_slot: str, binding: Binding | None = None
    ) -> dict[str, Any]:
        if binding is not None and binding.on_device is not None:
            raise InputError("device buffers are of no use through Ray Client")
        found: dict[str, Any] = self._gateway.run(feeds, names, graph_slot)
        return found

    def submit(
        self,
        feeds: Mapping[str, Any],
        output_names: Sequence[str] | None = None,
        graph_slot: str = "primary",
    ) -> StepFuture:
        """As HeterogeneousExecutor; all errors come from the future."""
        self._check_open()

        def begin(future: StepFuture, _: bool) -> Callable[[], dict[str, Any]]:
            # as many wait as begin, in that order
            wait, forget = self._gateway.begin(feeds, output_names, graph_slot)
            future.add_done_callback(lambda done: forget() if done.cancelled() else None)
            return wait

        return self._in_flight.submit(begin)

    # -- bindings ------------------------------------------------------------------------------------------------
    def io_binding(self) -> IOBinding:
        """As HeterogeneousExecutor; buffers are of this process, and values are copied in and out."""
        return IOBinding(self.plan)

    def device_buffer(
        self, provider: str, shape: Sequence[int], dtype: npt.DTypeLike = "float32"
    ) -> DeviceBuffer:
        """Raises: InputError, always."""
        raise InputError("device buffers cannot be reached through Ray Client", operand=provider)

    # -- state ---------------------------------------------------------------------------------------------------
    def bind_state(self, pairs: Mapping[str, str], *, capacity: int | None = None) -> None:
        """As HeterogeneousExecutor."""
        self._gateway.ask("bind_state", dict(pairs), capacity=capacity)

    def state_length(self) -> int:
        """As HeterogeneousExecutor."""
        return int(self._gateway.ask("state_length"))

    def rewind_state(self, length: int) -> None:
        """As HeterogeneousExecutor."""
        self._gateway.ask("rewind_state", length)

    def reset_state(self) -> None:
        """As HeterogeneousExecutor."""
        self._gateway.ask("reset_state")

    def read_state(self) -> dict[str, Any]:
        """As HeterogeneousExecutor."""
        return dict(self._gateway.ask("read_state"))

    def write_state(self, values: Mapping[str, Any]) -> None:
        """As HeterogeneousExecutor."""
        self._gateway.ask("write_state", dict(values))

    # -- looking and ending --------------------------------------------------------------------------------------
    def stats(self) -> dict[str, Any]:
        """As HeterogeneousExecutor, and of the "gateway", the actor that the executor lives in, pid and node_id."""
        self._check_open()
        return dict(self._gateway.look("stats"))

    def spans(self) -> list[Span]:
        """As HeterogeneousExecutor."""
        self._check_open()
        return list(self._gateway.look("spans"))

    def _end(self) -> None:
        self._gateway.close()
