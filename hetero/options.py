"""Every switch of the runtime, with its environment override; read once per executor, never per process."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hetero.errors import OptionError

PREFIX = "HETERO_"


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Switches of one executor. The environment variable HETERO_<FIELD> overrides the field's value.

    Every off-switch gives the same bits, only slower or with more memory.
    """

    fold_constants: bool = True
    """Compute nodes whose inputs are constants once, when shapes are first seen, instead of every step."""
    fold_limit_bytes: int = 64 << 20
    """Largest result that folding keeps."""
    in_place: bool = True
    """Let a kernel overwrite an input that dies with it."""
    fuse_elementwise: bool = True
    """Run neighbouring float32 elementwise instructions as one call, where the provider can."""
    share_repeats: bool = True
    """On the host, multiply by heads that a model repeats (Expand, Reshape) where they lie, not by copies of them, and
    compute attention over them in one instruction."""
    reuse_buffers: bool = True
    """Share one buffer between values whose lives do not overlap."""
    release_dead: bool = True
    """Drop a value that has memory of its own right after its last reader, instead of when the run ends."""
    capture: bool = True
    """Record what was run twice with the same shapes, and replay it."""
    stage_bytes: int = 64 << 10
    """Largest input or result of a program on the host that is copied in or out, so that calls keep their addresses and
    are recorded; larger ones are handed on as they are. 0: none, on devices neither."""
    decode_memo: bool = True
    """Where extents grow from step to step, bind anew only what depends on them."""
    verify_decode_memo: bool = False
    """Check every such step's shapes, and the numbers that its calls read, against a program bound from scratch (slow;
    for tests)."""
    max_specializations: int = 16
    """Input signatures (shapes, dtypes) that a program keeps bound; the least recently used is dropped."""
    weight_budget_bytes: int = 0
    """Bytes of weights that may lie on each device at a time; the rest are copied there whenever they are needed. 0: no
    limit. No effect on the host, where weights are mapped files, and the system pages them."""
    map_weights: bool = True
    """Have children on Ray map the files that weights lie in (those of a model in memory are written to an unnamed
    one), where they can; False: all weights are objects of the store."""
    prefetch_nodes: int = 0
    """How many instructions ahead a weight that does not stay on its device is copied there, as memory permits; 0:
    right before its use."""
    frame_bytes: int = 16 << 10
    """Largest value that an iterated body keeps in one place, which it is copied to in every iteration; 0: none."""
    memo_if_bytes: int = 64 << 10
    """Largest sum of captured bytes, and of results, for which an If is not run again while they stay; 0: never."""
    inline_single_scan: bool = False
    """Run a Scan of one iteration on views, without slicing and stacking."""
    kernel_cache_size: int = 8192
    """Compiled kernels that a child keeps."""
    max_in_flight: int = 8
    """Runs that may be under way at once; a further one waits."""
    max_value_bytes: int = 64 << 30
    """Largest single value (and workspace of one node) that a model may ask for; the memory of the machine bounds it
    further."""
    step_timeout_s: float = 0.0
    """Deadline of a step on Ray children (inline ones run in the caller's own thread); 0 means none."""
    start_timeout_s: float = 60.0
    """How long children may take to start and prepare."""
    recover: bool = True
    """Replace children on Ray that die or hang, and replay the steps in flight; False: their steps, and all later ones,
    raise ChildDiedError or StepTimeoutError."""
    max_restarts: int = 3
    """How many times in a row a child may fail to start anew."""
    max_step_deaths: int = 3
    """How many times children may die, or hang, with the same step before it is given up."""
    checkpoint_every: int = 32
    """Steps after which bound state is copied to the caller's node, so that no more than these are replayed; 0: never,
    and all steps since the state began are."""
    heartbeat_timeout_s: float = 30.0
    """A child on Ray that gives no sign of life for so long is replaced, and one of the caller's machine that is
    stopped (SIGSTOP) for some seconds; 0: they are waited for."""
    trace: bool = False
    """Record a span for each partition run, for `write_trace`; they are kept until the executor is closed."""
    trace_ops: bool = False
    """Record a span for each instruction too; calls are then made one by one, which takes longer."""
    extensions: str = ""
    """Modules, separated by commas, that register extensions when they are imported; children import them too."""
    seed: int = 0
    """Base of the counter-based random numbers."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            accepted = (float, int) if kind is float else kind
            # bool is an int to Python, never to a user who writes seed=True
            if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
                raise OptionError(
                    f"{field.name} must be of type {kind.__name__}, not {value!r}", operand=field.name
                )
        for name in (
            "max_specializations",
            "kernel_cache_size",
            "max_in_flight",
            "max_value_bytes",
            "max_restarts",
            "max_step_deaths",
        ):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1, not {getattr(self, name)}", operand=name)
        for name in (
            "step_timeout_s",
            "start_timeout_s",
            "fold_limit_bytes",
            "frame_bytes",
            "stage_bytes",
            "weight_budget_bytes",
            "prefetch_nodes",
            "memo_if_bytes",
            "checkpoint_every",
            "heartbeat_timeout_s",
        ):
            if not getattr(self, name) >= 0:  # nor NaN
                raise OptionError(f"{name} must not be negative, but is {getattr(self, name)}", operand=name)

    def with_environment(self, environment: Mapping[str, str] | None = None) -> RuntimeOptions:
        """These options with the HETERO_* variables applied.

        Raises: OptionError for a value that is not of the field's type.
        """
        environment = os.environ if environment is None else environment
        changes: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            text = environment.get(PREFIX + field.name.upper())
            if text is not None:
                changes[field.name] = _parse(
                    PREFIX + field.name.upper(), text, type(getattr(self, field.name))
                )
        return dataclasses.replace(self, **changes) if changes else self


def _parse(variable: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise OptionError(f"{variable} must be 0 or 1, not {text!r}", operand=variable)
    try:
        return kind(text)
    except ValueError as cause:
        raise OptionError(
            f"{variable} must be of type {kind.__name__}, not {text!r}", operand=variable
        ) from cause
