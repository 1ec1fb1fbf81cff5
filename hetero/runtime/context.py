"""What all programs of one child share: provider, options, kernels, weights, arenas, counters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from hetero.options import RuntimeOptions
from hetero.providers.base import Provider
from hetero.runtime.arena import Arena
from hetero.runtime.artifacts import Artifacts
from hetero.runtime.capture.graph_slots import GraphSlot
from hetero.runtime.capture.recorder import Recorder
from hetero.runtime.extensions import Extensions
from hetero.runtime.kernel_cache import KernelCache
from hetero.runtime.op_trace import OpTrace
from hetero.runtime.slots import Kind, Slot
from hetero.runtime.weights import DeviceWeights
from hetero.types import HostArray, TensorSpec


@dataclass(slots=True)
class Statistics:
    """Counters of one child."""

    runs: int = 0
    sections_built: int = 0
    sections_reused: int = 0
    sections_evicted: int = 0
    folded: int = 0
    views: int = 0
    view_copies: int = 0
    in_place: int = 0
    contiguous_copies: int = 0
    volatile_steps: int = 0
    released: int = 0
    """Values with memory of their own that are dropped after their last reader, counted as they are bound."""
    fused_calls: int = 0
    """Calls that were bound for a run of elementwise instructions, and how many instructions those run."""
    fused_instructions: int = 0
    peak_live_bytes: int = 0
    body_runs: int = 0
    bodies_built: int = 0
    if_memo_hits: int = 0
    """Runs of an If that were answered with the results of the run before."""
    memo_primed: int = 0
    """Sections built with room to grow, after two steps in a row that grew alike."""
    memo_replayed: int = 0
    """Steps of other shapes that bound anew only what depends on them."""
    memo_shifted: int = 0
    """Instructions whose call was left as it is in such a step, but for the numbers that it reads."""
    memo_rebuilt: int = 0
    """Steps that had outgrown that room, or changed something else, and were built as a whole."""
    memo_ineligible: int = 0
    """Steps whose inputs differ from those before in more than extents."""
    scans_inlined: int = 0
    """Runs of a Scan of one iteration without slicing and stacking."""


_executors = itertools.count(1)


def artifacts_of(provider: Provider) -> tuple[Artifacts, Artifacts]:
    """The captured graphs and the weights of a new executor, which no other of this process shares."""
    executor = next(_executors)
    return Artifacts(provider.name, executor), Artifacts(provider.name, executor)


@dataclass(slots=True)
class Context:
    """What all programs of one child share. `host` computes shape arithmetic; it is `provider` where that is a host."""

    provider: Provider
    host: Provider
    options: RuntimeOptions
    kernels: KernelCache
    weights: Mapping[str, HostArray]
    statistics: Statistics = field(default_factory=Statistics)
    arenas: list[Arena] = field(default_factory=list)
    constants: dict[str, Slot] = field(default_factory=dict)
    extensions: Extensions | None = None
    artifacts: tuple[Artifacts, Artifacts] | None = None
    """The child's own (`artifacts_of`); without, this context's."""
    device_weights: DeviceWeights = field(init=False)
    recorder: Recorder = field(init=False)
    ops: OpTrace | None = field(init=False)
    graph_slots: dict[str, GraphSlot] = field(default_factory=dict)
    graph_slot: GraphSlot | None = None
    """The one that the run under way drives; None while nothing is captured."""

    def __post_init__(self) -> None:
        graphs, weights = self.artifacts or artifacts_of(self.provider)
        self.recorder = Recorder(self.provider, graphs)
        self.device_weights = DeviceWeights(self.provider, self.options, weights)
        self.ops = OpTrace(self.provider) if self.options.trace_ops else None

    def drive(self, name: str) -> None:
        """Runs from here on drive the graph slot `name`."""
        if self.options.capture and self.provider.can_capture:
            if name not in self.graph_slots:
                self.graph_slots[name] = GraphSlot(name)
            self.graph_slot = self.graph_slots[name]

    def arena(self, depth: int) -> Arena:
        """The arena of a nesting level."""
        while len(self.arenas) <= depth:
            self.arenas.append(Arena(self.provider))
        return self.arenas[depth]

    def weight(self, name: str) -> Slot:
        """The constant slot of an initializer, one for all programs."""
        slot = self.constants.get(name)
        if slot is None:
            value = self.weights[name]
            array = value if self.provider.is_host else None
            spec = TensorSpec(value.dtype, value.shape)
            slot = self.constants[name] = Slot(Kind.CONSTANT, spec, -1, False, array, value)
        return slot
