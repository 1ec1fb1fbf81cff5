"""HeterogeneousExecutor: drives a plan over children, wherever they live."""

from __future__ import annotations

import itertools
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from hetero.binding import IOBinding
from hetero.bound_state import BoundState
from hetero.device_buffer import DeviceBuffer
from hetero.errors import ClosedError, InputError, OptionError, StateError
from hetero.extensions.registry import home_modules, load_modules
from hetero.failover import Failover
from hetero.feeds import Feeds
from hetero.futures import Batches, Results, StepFuture
from hetero.in_flight import InFlight
from hetero.model import Model, load_model
from hetero.options import RuntimeOptions
from hetero.planner.classes import plan_classes
from hetero.planner.classes import shape_classes as parse_classes
from hetero.planner.plan import Plan
from hetero.planner.planner import Wishes, graph_of
from hetero.providers.base import Provider
from hetero.providers.registry import ProviderLike, resolve
from hetero.runtime.children import Children, InlineChildren
from hetero.runtime.extensions import extension_operations
from hetero.runtime.pins import Binding
from hetero.runtime.state import Resident
from hetero.shapes.obligations import Obligations, obligations_of
from hetero.stepping import Stepping, bounds_of
from hetero.trace import Span, write_chrome_trace
from hetero.types import HostArray, TensorType

if TYPE_CHECKING:
    from actors.gateway import Gateway

Transport = Literal["auto", "objects", "channels"]
ModelLike = str | PathLike[str] | bytes | onnx.ModelProto | ir.Model


def plan(
    model: ModelLike,
    providers: Sequence[ProviderLike] | None = None,
    *,
    strict: bool = False,
    stages: Literal["auto", "model"] | None = None,
    configuration: str | None = None,
    overrides: Mapping[str, str] | None = None,
    node_times: Mapping[str, float] | None = None,
    shape_classes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """Plan `model` over `providers` (best first; default: every CUDA device, then cpu), without running anything.

    strict: a node that is not on the first provider is an error with its reason.
    stages, configuration, overrides, node_times, shape_classes: as HeterogeneousExecutor takes them.
    Raises: ModelError, ProviderError, PlanError, OptionError.
    """
    wishes = Wishes(stages, configuration, overrides or {}, node_times or {})
    classes = parse_classes(shape_classes or {})
    chosen = resolve(providers)
    try:
        return plan_classes(load_model(model), chosen, classes, strict=strict, wishes=wishes)
    finally:
        _close_made(chosen, providers)


def _close_made(chosen: Sequence[Provider], given: Sequence[ProviderLike] | None) -> None:
    """Close the providers that were made from names; those given as objects are their maker's."""
    theirs = {id(p) for p in given or ()}
    for provider in chosen:
        if id(provider) not in theirs:
            provider.close()


class HeterogeneousExecutor:
    """Runs an ONNX model split over execution providers, one child executor per provider instance.

    Args:
        model: path, bytes, onnx.ModelProto or onnx_ir.Model.
        providers: names, (name, options) pairs or Provider objects, best first; default every CUDA device, then cpu.
            Provider objects become the executor's, which closes them.
        children: "ray" (one actor per provider instance; a local Ray is started when none is reachable; where this
            process has a Ray Client connection, the executor itself lives on the cluster) or "inline" (this process and
            thread).
        transport: how values move between actors: "objects" (object references), "channels" (straight from child to
            child); "auto" uses channels once some steps have ended well, and objects where there are none to be had.
        options: switches; HETERO_* environment variables override them.
        strict: a node that falls back from the first provider is an error.
        stages: "auto" deals the nodes that the first provider takes to all instances of its kind (sim:0, sim:1…), as
            contiguous stages, balanced by time, under each one's memory limit; "model" places nodes as the model's own
            multi-device annotations say.
        configuration: the name of the device configuration to follow, where the model has several.
        overrides: node-name pattern (a glob) -> provider name; beats everything else.
        node_times: measured seconds by node name for "auto", instead of estimates (`hetero.planner.costs.measured`).
        shape_classes: name -> a dict, for steps of certain shapes that are placed otherwise: `when`, symbol -> extent
            or (least, most), and what of providers (names, best first), stages, configuration, overrides and
            node_times differs from their defaults. A step runs by the first class that fits.
        ray_options: what `actors.start_children` takes (placement strategy, resources…); only with children="ray".

    Thread-safe. Close it, or use it as a context manager: its actors live until then.
    Raises: ModelError, ProviderError, PlanError, OptionError before any actor starts.
    """

    def __new__(cls, *_: Any, **options: Any) -> HeterogeneousExecutor:
        """Through Ray Client the executor lives on the cluster, and this is one that forwards to it."""
        on_ray = cls is HeterogeneousExecutor and options.get("children", "ray") == "ray"
        if on_ray and _by_client(options.get("ray_options")):
            from hetero.remote_executor import RemoteExecutor

            return super().__new__(RemoteExecutor)
        return super().__new__(cls)

    def __init__(
        self,
        model: ModelLike,
        providers: Sequence[ProviderLike] | None = None,
        *,
        children: Literal["ray", "inline"] = "ray",
        transport: Transport = "auto",
        options: RuntimeOptions | None = None,
        strict: bool = False,
        stages: Literal["auto", "model"] | None = None,
        configuration: str | None = None,
        overrides: Mapping[str, str] | None = None,
        node_times: Mapping[str, float] | None = None,
        shape_classes: Mapping[str, Mapping[str, Any]] | None = None,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        if children not in ("ray", "inline"):
            raise OptionError(f'children must be "ray" or "inline", not {children!r}', operand="children")
        if transport not in ("auto", "objects", "channels"):
            raise OptionError(
                f'transport must be "auto", "objects" or "channels", not {transport!r}', operand="transport"
            )
        if transport == "channels" and children != "ray":
            raise OptionError('transport="channels" goes with children="ray"', operand="transport")
        if ray_options and children != "ray":
            raise OptionError('ray_options go with children="ray"', operand="ray_options")
        self.options = (options or RuntimeOptions()).with_environment()
        load_modules(self.options.extensions)
        wishes = Wishes(stages, configuration, overrides or {}, node_times or {})
        classes = parse_classes(shape_classes or {})
        chosen = resolve(providers)
        try:
            loaded = load_model(model)
            planned = plan_classes(loaded, chosen, classes, strict=strict, wishes=wishes)
            recovers = children == "ray" and self.options.recover
            self._failover = Failover(loaded if recovers else None, planned, classes, wishes)
            self._feeds = Feeds(self.plan.inputs, loaded.optional_inputs, _obligations(loaded, self.plan))
            bounds = bounds_of(self.plan)
        except BaseException:
            _close_made(chosen, providers)
            raise
        self._weights = loaded.weights
        self._steps = itertools.count(1)
        self._inline = children == "inline"
        self._in_flight = InFlight(
            self.options.max_in_flight, 1 if self._inline else self.options.max_in_flight
        )
        self._spans: list[Span] = []
        self._taking = threading.Lock()
        self._state: BoundState | None = None
        self._turns = threading.Lock()
        self._closed = False
        self._children = self._start(chosen, transport, dict(ray_options or {}))
        self._timeout_s = self.options.step_timeout_s or None
        self._stepping = Stepping(
            self._children, self._failover, bounds, self._weights, self._timeout_s, inline=self._inline
        )
        self._output_names = self._stepping.output_names
        self._whole = self._stepping.whole

    @property
    def plan(self) -> Plan:
        """Which child runs what, at the moment: where a provider is lost, its nodes go elsewhere."""
        return self._failover.plan

    def _start(
        self, providers: tuple[Provider, ...], transport: Transport, ray_options: dict[str, Any]
    ) -> Children:
        if self._inline:
            children: Children = InlineChildren(providers, self.options)
        else:
            from actors import start_children  # the one place that reaches Ray

            for provider in providers:
                provider.close()
            used = home_modules(
                extension_operations(p.program for s in self.plan.sections for p in s.partitions)
            )
            named = ",".join(dict.fromkeys([*filter(None, self.options.extensions.split(",")), *used]))
            with_extensions = replace(self.options, extensions=named)
            children = start_children(self.plan.providers, with_extensions, transport, **ray_options)
        children.start(self.plan, self._weights, self._failover)
        return children

    # -- running -------------------------------------------------------------------------------------------------
    def run(
        self,
        feeds: Mapping[str, Any],
        output_names: Sequence[str] | None = None,
        graph_slot: str = "primary",
    ) -> dict[str, Any]:
        """Run one step: input name -> array, to output name -> ndarray, SequenceValue, MapValue (a dict) or None.

        Args:
            output_names: which outputs to return, default all.
            graph_slot: which captured graph the step drives.

        Outputs are the caller's own, but for two kinds: what only rearranges a feed may share its memory, and what is a
        constant of the model is read-only.
        Raises: InputError, GuardError before anything runs; KernelError and its kin with node and device;
        ChildDiedError, StepTimeoutError; ClosedError. A step that failed leaves no partial results.
        """
        if output_names is not None or self._state is not None or not self._whole or self._closed:
            return self._run(feeds, self._names(output_names), graph_slot)
        # What repeats, flat: between two steps the children's processes have the caches, and a function that is called
        # for the first time since takes ten times as long as when it is called again at once.
        names, turns, stepping = self._output_names, self._in_flight.turns, self._stepping
        values = self._feeds.check(feeds)
        turns.get()
        try:
            step = next(self._steps)
            try:
                found = self._children.run_whole(step, values, graph_slot, self._timeout_s)
            except BaseException as error:
                stepping.failed(step, error)
                raise
            if found is None:
                return stepping.step(step, values, names, graph_slot)
            with stepping.counting:
                stepping.counters["steps"] += 1
            return found if len(found) == len(names) else stepping.outputs(values, names, found)
        finally:
            turns.put(None)

    def _run(
        self, feeds: Mapping[str, Any], names: Sequence[str], graph_slot: str, binding: Binding | None = None
    ) -> dict[str, Any]:
        """A step in this thread, when it has its turn among those in flight."""
        values = None if self._state is not None else self._feeds.check(feeds)
        self._in_flight.turns.get()
        try:
            if values is None:
                return self._stateful(feeds, names, graph_slot, binding)
            return self._stepping.step(next(self._steps), values, names, graph_slot, binding)
        finally:
            self._in_flight.turns.put(None)

    def submit(
        self,
        feeds: Mapping[str, Any],
        output_names: Sequence[str] | None = None,
        graph_slot: str = "primary",
    ) -> StepFuture:
        """Start a step and return at once; waits while options.max_in_flight steps are under way. The future can be
        awaited; in a coroutine this call never waits, and steps that are too many begin later.

        The feeds are read until the future is done: do not change them before. Bad feeds raise here (with bound state,
        whose steps take turns, from the future); what happens in the step raises from the future's result().
        """
        names = self._names(output_names)
        values = None if self._state is not None else self._feeds.check(feeds)

        def begin(future: StepFuture, at_once: bool) -> Callable[[], dict[str, Any]] | None:
            if values is None:
                return partial(self._stateful, feeds, names, graph_slot)
            step = next(self._steps)
            if at_once and self._begun(future, step, values, names, graph_slot):
                return None
            return partial(self._stepping.step, step, values, names, graph_slot)

        return self._in_flight.submit(begin)

    def _begun(
        self, future: StepFuture, step: int, values: dict[str, Any], names: Sequence[str], graph_slot: str
    ) -> bool:
        """Begin a step in this thread where that need not wait for anything: whoever receives its outputs ends it then,
        and a worker only where there is something to wait for after all."""
        if not self._whole:
            return False

        def ended(found: dict[str, Any] | None) -> None:
            if found is None:
                self._in_flight.hand_over(future, partial(self._stepping.awaited, step, values, names))
                return
            self._stepping.count("steps")
            outputs = self._stepping.outputs(values, names, found)
            if not future.fulfilled(outputs):
                self._in_flight.hand_over(future, lambda: outputs)

        attend = self._children.launch_nowait(step, values, graph_slot, ended)
        if attend is not None:
            future.begun(attend)
        return attend is not None

    def map(
        self, batches: Batches, *, max_in_flight: int = 4, output_names: Sequence[str] | None = None
    ) -> Results:
        """Outputs for each of `batches`, in order, with up to `max_in_flight` steps under way; `async for` works too.

        An error ends the iteration at the step it belongs to; steps after it are awaited and dropped.
        """
        if max_in_flight < 1:
            raise OptionError(
                f"max_in_flight must be at least 1, not {max_in_flight}", operand="max_in_flight"
            )
        limit = min(max_in_flight, self.options.max_in_flight)
        return Results(lambda feeds: self.submit(feeds, output_names), batches, limit)

    def _names(self, output_names: Sequence[str] | None) -> Sequence[str]:
        """The outputs to return: all but those that are bound as state, or these. Raises: InputError."""
        if self._closed:
            self._check_open()
        if output_names is None and self._state is None:
            return self._output_names
        kept = frozenset() if self._state is None else self._state.outputs
        if output_names is None:
            return [n for n in self._output_names if n not in kept]
        if isinstance(output_names, str) or not isinstance(output_names, Iterable):
            raise InputError(f"output_names must be a list of names, not {output_names!r}")
        names = list(output_names)
        unknown = [n for n in names if n not in self._output_names]
        if unknown:
            raise InputError(f"unknown outputs {unknown}; the model's are {list(self._output_names)}")
        if not kept.isdisjoint(names):
            raise InputError(f"{sorted(kept & set(names))} are bound as state; read_state returns them")
        return names

    def _stateful(
        self,
        feeds: Mapping[str, Any],
        names: Sequence[str],
        graph_slot: str,
        binding: Binding | None = None,
    ) -> dict[str, Any]:
        """A step over bound state. They take turns, each on what the one before has left."""
        assert self._state is not None, "called with bound state only"
        with self._turns:
            fed = self._state.feeds(feeds)
            resident = self._state.resident()
            values = self._feeds.check(fed, resident)
            values.update((name, Resident(shape)) for name, shape in resident.items())
            wanted = [*names, *self._state.outputs]
            outputs = self._stepping.step(next(self._steps), values, wanted, graph_slot, binding)
            self._state.took(outputs)
            return {name: outputs[name] for name in names}

    # -- bindings ------------------------------------------------------------------------------------------------
    def io_binding(self) -> IOBinding:
        """A binding of inputs and outputs to buffers of the caller's, for `run_with_binding`."""
        self._check_open()
        return IOBinding(self.plan)

    def device_buffer(
        self, provider: str, shape: Sequence[int], dtype: npt.DTypeLike = np.float32
    ) -> DeviceBuffer:
        """Memory on the device of a child, for `io_binding`: steps read inputs from it and leave outputs in it.

        Raises: InputError where no child has that provider's name; MemoryLimitError.
        """
        self._check_open()
        children = {self.plan.providers[child].name: child for child in self.plan.children}
        if provider not in children:
            raise InputError(f"no child {provider!r}; there are {sorted(children)}", operand=provider)
        extents = tuple(operator.index(n) for n in shape)
        return DeviceBuffer.made(self._children, children[provider], provider, dtype, extents)

    def run_with_binding(self, binding: IOBinding, graph_slot: str = "primary") -> dict[str, Any]:
        """Run one step on the bound buffers; returns the bound outputs, as views of what was filled of the buffers.

        With inline children on a host, inputs are read and outputs written where they lie, and nothing is allocated;
        elsewhere they are copied. A step that fails may have written a part of the outputs.
        Raises: InputError where an input is not bound, or a buffer is too small; as `run`.
        """
        names = self._names(binding.output_names)
        chosen = binding.in_place if self._inline else binding.elsewhere
        outputs = self._run(binding.feeds, names, graph_slot, chosen)
        return {name: binding.filled(name, outputs[name]) for name in names}

    # -- state ---------------------------------------------------------------------------------------------------
    def bind_state(self, pairs: Mapping[str, str], *, capacity: int | None = None) -> None:
        """From the next step on, keep values between steps: input name -> the output that is its next value.

        The inputs need no feed any more and the outputs are not returned. Where an output is its input and further rows
        (`present.0.key` of `past_key_values.0.key`), the rows are written behind the others in a buffer that stays on
        the child; nothing is copied. The state starts empty, or with zeros where it does not grow.

        Args:
            capacity: rows that fit; a step beyond it raises StateError. None: buffers double when they are full.

        Call it before any step was submitted, or again with {} to unbind. Steps with bound state take turns.
        Raises: StateError for names that the model does not have and types that do not go together; OptionError.
        """
        self._check_open()
        if capacity is not None and capacity < 1:
            raise OptionError(f"capacity must be at least 1, not {capacity}", operand="capacity")
        with self._turns, self._in_flight.lock:
            if self._in_flight.used:
                raise StateError("state must be bound before the first step is submitted")
            failover = self._failover
            state = BoundState(lambda: failover.plan, self._children, pairs, capacity) if pairs else None
            self._state = state
            self._in_flight.workers = 1 if self._inline or pairs else self.options.max_in_flight
            self._failover.states = {} if state is None else state.resident_pairs
            if not pairs:
                self._children.placed(self._unbind)

    def _unbind(self) -> None:
        for child in self.plan.children:
            self._children.bind_state(child, (), ())

    def state_length(self) -> int:
        """Rows of the states that grow; 0 where there are none."""
        with self._turns:
            return self._bound().length

    def rewind_state(self, length: int) -> None:
        """Forget the rows from `length` on, of every state that grows. Raises: StateError where there are fewer."""
        with self._turns:
            self._bound().rewind(length)

    def reset_state(self) -> None:
        """Begin anew with the next step, whose extents (a batch size) may be others."""
        with self._turns:
            self._bound().reset()

    def read_state(self) -> dict[str, Any]:
        """Copies of the bound values, by input name: what `write_state` takes; empty before the first step."""
        with self._turns:
            return self._bound().read()

    def write_state(self, values: Mapping[str, Any]) -> None:
        """Set bound values, by input name; those that are not given begin anew. Raises: StateError."""
        with self._turns:
            self._bound().write(values)

    def _bound(self) -> BoundState:
        self._check_open()
        if self._state is None:
            raise StateError("no state is bound: bind_state names the pairs")
        return self._state

    # -- looking -------------------------------------------------------------------------------------------------
    def stats(self) -> dict[str, Any]:
        """Nested counters: steps, plan (partitions, transfers), children (by provider name), recovery (empty where
        there is none), degraded (provider that is lost -> those that have its nodes)."""
        self._check_open()
        return {
            **self._stepping.counts(),
            "plan": {
                "partitions": len(self.plan.partitions),
                "transfers": len(self.plan.transfers),
                "parcels": len(self.plan.parcels),
            },
            "transport": self._children.transport(),
            "children": self._children.stats(),
            "recovery": self._children.recovery(),
            "degraded": self._failover.degraded,
        }

    def write_trace(self, path: str | PathLike[str]) -> Path:
        """Write the spans recorded so far (options.trace, options.trace_ops) as a Chrome trace that Perfetto opens."""
        return write_chrome_trace(self.spans(), path)

    def spans(self) -> list[Span]:
        """The spans recorded so far (options.trace, options.trace_ops), of each child in the order in which they ended;
        `write_trace` writes the same."""
        self._check_open()
        taken = self._children.take_spans()
        with self._taking:
            self._spans += taken
            return list(self._spans)

    # -- ending --------------------------------------------------------------------------------------------------
    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this executor is closed")

    def close(self) -> None:
        """Wait for the steps that were submitted, then stop the children. A second call does nothing.

        A `run` of another thread is not waited for: it may end with ClosedError or ChildDiedError.
        """
        if self._closed:
            return
        self._in_flight.close()
        self._closed = True
        self._end()

    def _end(self) -> None:
        """Stop what runs the steps."""
        self._stepping.closed = True
        self._children.close()

    def __enter__(self) -> HeterogeneousExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _by_client(ray_options: Mapping[str, Any] | None) -> bool:
    """Whether this process's Ray is a Ray Client connection, or is to be one; looks at it only where it is loaded."""
    client, ray = sys.modules.get("ray.util.client"), sys.modules.get("ray")
    if client is not None and client.ray.is_connected():
        return True
    if ray is not None and ray.is_initialized():
        return False
    address = (ray_options or {}).get("address") or os.environ.get("RAY_ADDRESS", "")
    return str(address).startswith("ray://")


def open_gateway(
    files: Mapping[str, HostArray],
    options: Mapping[str, Any],
    max_in_flight: int,
    ray_options: Mapping[str, Any] | None,
) -> Gateway:
    """The way to an executor that is made on the cluster, of a model of these files.

    Raises: TransportError where there is none; what making the executor raises.
    """
    from actors.gateway import Gateway

    address = (ray_options or {}).get("address") or os.environ.get("RAY_ADDRESS")
    return Gateway(HeterogeneousExecutor, files, options, max_in_flight, address)


def _obligations(model: Model, plan: Plan) -> Obligations | None:
    """What the model's operators demand of its inputs' extents; None where all of these are numbers."""
    types = [p.type for p in plan.inputs]
    if all(isinstance(t, TensorType) and t.shape and all(isinstance(d, int) for d in t.shape) for t in types):
        return None
    return obligations_of(graph_of(model).nodes, plan.inputs, model.weights, model.declared)
