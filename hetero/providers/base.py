"""The contract of an execution provider: what it supports, how it compiles, and who owns its memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hetero.errors import CaptureError, ProviderError
from hetero.extensions.registry import find as find_extension
from hetero.extensions.registry import refusal as extension_refusal
from hetero.kernels.base import Call, Compiled
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import Array, HostArray, Spec, TensorSpec, ValueType


@dataclass(frozen=True, slots=True)
class Match:
    """Whether a provider takes an operation, and why (not). `native` is False where it would run through
    onnx.reference, a last resort that placement uses only when no provider has a kernel of its own."""

    ok: bool
    reason: str
    native: bool = True
    dispatch: Dispatch = Dispatch.BACKEND


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """What creates a provider instance, here or in an actor: plain data, safe to send.

    `ops` / `except_ops` ("Softmax" or "com.microsoft::Gelu") restrict what the instance accepts.
    """

    name: str
    options: tuple[tuple[str, Any], ...] = ()
    ops: frozenset[str] | None = None
    except_ops: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Buffer:
    """Bytes that a provider's pool handed out. Whoever took it gives it back exactly once with `Provider.give`."""

    raw: Any
    nbytes: int
    device: str
    live: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class CaptureToken:
    """Names one captured graph. Good until its (owner, slot) is captured again, discarded or the provider closed.

    Compared by identity: a token rebuilt from its fields is a foreign one.
    """

    device: str
    owner: Hashable
    slot: str
    calls: int


class Provider(ABC):
    """One provider instance: a device, its memory and its kernels. Owned by one child; used from one thread at a time.

    Arrays of a host provider are numpy.ndarray; another provider's arrays are opaque here, and must have `dtype`,
    `shape` and `nbytes`.
    """

    kind: str
    """"cpu", "cuda", "sim"…"""
    is_host: bool
    """True where its arrays are numpy arrays in this process's memory."""
    can_capture: ClassVar[bool] = False
    """Whether begin_capture and its like work."""
    shortest_segment: ClassVar[int] = 1
    """Calls in a row from which launching them as a graph costs less than calling them."""
    fuses: ClassVar[bool] = False
    """True where the runtime may run several elementwise kernels as one tape over its arrays (host memory that is
    computed on at once)."""
    indexed: ClassVar[bool] = False
    """True where instances are numbered devices: the bare kind then means number 0 ("cuda" is "cuda:0")."""
    array_module: Any = np
    """What its kernels get as `xp`, whose arrays theirs are inside a kernel."""
    declared_options: ClassVar[Mapping[str, tuple[type, ...]]] = {}
    """Option name -> the types its value may have (beside `ops` and `except_ops`, which every provider takes)."""

    def __init__(self, config: ProviderConfig) -> None:
        """Raises: ProviderError for an option that is not declared, or whose value has another type."""
        self.config = config
        self.name = config.name
        self.options = checked_options(config, self.declared_options)

    # -- planning ------------------------------------------------------------------------------------------------
    @property
    def memory_limit_bytes(self) -> int | None:
        """Bytes that the device's memory holds, as far as planning can count on them; None: no limit is known."""
        limit: int | None = self.options.get("memory_limit_bytes")
        return limit

    def supports(self, op: Operation, types: Sequence[ValueType | None]) -> Match:
        """Whether it takes this operation at its version, dtypes and declared shapes; pure.

        Applies `ops` / `except_ops` first. An operation with bodies is taken when every operation inside is too.
        """
        refused = forbidden(self.config, op)
        if refused is not None:
            return Match(False, refused)
        for attribute, body in op.bodies().items():
            known: dict[int, ValueType | None] = {p.slot: p.type for p in (*body.inputs, *body.constants)}
            for inner in body.instructions:
                match = self.supports(inner.op, [known.get(s) for s in inner.inputs])
                if not match.ok:
                    return Match(
                        False, f"{attribute}: node {inner.op.name!r} ({inner.op.id}): {match.reason}"
                    )
                known.update(zip(inner.outputs, inner.types, strict=True))
        extension = find_extension(op)
        if extension is not None:
            reason = extension_refusal(extension, op, types, self.kind)
            return Match(reason is None, reason or "extension", dispatch=Dispatch.EXTENSION)
        return self.supports_native(op, types)

    @abstractmethod
    def supports_native(self, op: Operation, types: Sequence[ValueType | None]) -> Match:
        """`supports`, after the filters and the bodies were looked at."""

    # -- kernels -------------------------------------------------------------------------------------------------
    @abstractmethod
    def compile(self, op: Operation, specs: Sequence[Spec]) -> Compiled:
        """Compile for these specs. Raises: UnsupportedError, KernelError."""

    @abstractmethod
    def bind(self, compiled: Compiled, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        """`compiled.bind` over this provider's arrays; on a device the call enqueues on the provider's stream."""

    @abstractmethod
    def view(self, compiled: Compiled, inputs: Sequence[Any]) -> tuple[Array, ...] | None:
        """`compiled.view` over this provider's arrays; the result keeps the owner's memory alive."""

    @abstractmethod
    def run(self, compiled: Compiled, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """`compiled.run` over this provider's arrays (waits for the stream where it must read data)."""

    # -- memory --------------------------------------------------------------------------------------------------
    @abstractmethod
    def take(self, nbytes: int) -> Buffer:
        """A buffer of at least `nbytes`, 64-byte aligned, uninitialised. Raises: MemoryLimitError."""

    @abstractmethod
    def give(self, buffer: Buffer) -> None:
        """Give a buffer back to the pool. Raises: DeviceError for a second time or another provider's buffer."""

    @abstractmethod
    def array(self, buffer: Buffer, spec: TensorSpec) -> Array:
        """A contiguous array of `spec` at the start of `buffer` (which stays the caller's to give back)."""

    @abstractmethod
    def empty(self, spec: TensorSpec) -> Array:
        """A fresh contiguous array that owns its memory and frees it with its last reference."""

    @abstractmethod
    def trim(self) -> None:
        """Return pooled bytes that nobody holds to the system."""

    # -- copies --------------------------------------------------------------------------------------------------
    @abstractmethod
    def upload(self, array: HostArray) -> Array:
        """A device array with the bytes of `array`. On a host provider: the array itself.

        A read-only `array` is a constant: nothing writes what comes of it, and kernels may keep between calls what
        they derive from it when they bind.
        """

    def upload_into(self, array: HostArray, target: Array) -> None:
        """Have the bytes of `array` in `target` (contiguous, of its dtype and shape), in stream order: work enqueued
        before still finds the old ones. A read-only `array` may be read as late as that; it stays as it is.

        This one takes device memory for another copy meanwhile; a device that need not should do better.
        """
        self.copy(self.upload(array), target)()

    @abstractmethod
    def download(self, array: Array) -> HostArray:
        """The bytes of `array` on the host; waits for the stream. On a host provider: the array itself."""

    @abstractmethod
    def copy(self, source: Array, target: Array) -> Call:
        """A call that copies `source` into `target` (of any strides, both), both on this provider."""

    @abstractmethod
    def narrow(self, array: Array, axis: int, start: int, stop: int) -> Array:
        """A view of rows [start, stop) of `array` along `axis`; keeps the owner's memory alive.

        0 <= start <= stop <= array.shape[axis]. What is copied into the view is in `array`.
        """

    @abstractmethod
    def is_contiguous(self, array: Array) -> bool:
        """Whether the array is C-contiguous."""

    # -- stream --------------------------------------------------------------------------------------------------
    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything enqueued has run. Raises what enqueued work raised (DeviceError, KernelError)."""

    # -- capture ------------------------------------------------------------------------------------------------
    # Recording collects calls without running them. While it is open, take, give, empty, upload, download, run and
    # synchronize raise CaptureError and break the recording: only abort_capture gets out of a broken one.
    def begin_capture(self, owner: Hashable, slot: str) -> None:
        """Open a recording for `owner`'s graph slot. Raises: CaptureError where one is open already."""
        raise CaptureError(f"{self.name} cannot capture", device=self.name)

    def record(self, call: Call, op: Operation | None = None) -> None:
        """Put one bound call into the open recording; it does not run. `op` is named should it fail at replay."""
        raise CaptureError(f"{self.name} cannot capture", device=self.name)

    def end_capture(self) -> CaptureToken:
        """Close the recording. It replaces the graph of its (owner, slot), whose token goes stale."""
        raise CaptureError(f"{self.name} cannot capture", device=self.name)

    def abort_capture(self) -> None:
        """Drop the open recording, broken or not; does nothing where none is open (so `finally` may call it)."""
        raise CaptureError(f"{self.name} cannot capture", device=self.name)

    def launch(self, token: CaptureToken) -> None:
        """Replay a captured graph. Raises: CaptureError for a stale or foreign token, and while recording."""
        raise CaptureError(f"{self.name} cannot capture", device=self.name)

    def discard_capture(self, token: CaptureToken) -> None:
        """Free a captured graph and what it keeps alive; a stale token is ignored."""
        raise CaptureError(f"{self.name} cannot capture", device=self.name)

    # -- the rest ------------------------------------------------------------------------------------------------
    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Counters: pool_bytes, pool_peak_bytes, live_bytes, uploads, upload_bytes, downloads, download_bytes…"""

    def close(self) -> None:  # noqa: B027  (a provider may have nothing to free)
        """Free everything. A second call does nothing."""


def forbidden(config: ProviderConfig, op: Operation) -> str | None:
    """Why the user's `ops` / `except_ops` keep the operation off the provider; None where they do not."""
    if config.ops is None and not config.except_ops:
        return None
    names = {op.id, op.op_type}
    if names & config.except_ops:
        return f"{op.id} is in except_ops of {config.name}"
    if config.ops is not None and not names & config.ops:
        return f"{op.id} is not in ops of {config.name}"
    return None


def checked_options(config: ProviderConfig, declared: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """The options by name. Raises: ProviderError for one that is not declared, given twice or of another type."""
    found: dict[str, Any] = {}
    for option, value in config.options:
        if option not in declared:
            known = ", ".join(sorted({*declared, "ops", "except_ops"}))
            raise ProviderError(
                f"{config.name} has no option {option!r}; it has: {known}", device=config.name
            )
        if option in found:
            raise ProviderError(f"option {option!r} of {config.name} is given twice", device=config.name)
        types = declared[option]
        # bool is an int to Python, never to a user who writes threads=True.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            wanted = " or ".join("None" if t is type(None) else t.__name__ for t in types)
            raise ProviderError(
                f"option {option!r} of {config.name} must be {wanted}, not {type(value).__name__}",
                device=config.name,
            )
        found[option] = value
    return found
