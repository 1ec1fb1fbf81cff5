"""The CPU provider: NumPy kernels over this process's memory, onnx.reference where there is none."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from hetero.errors import DeviceError, ProviderError, UnsupportedError
from hetero.kernels.base import Call, Compiled
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.providers import lookup
from hetero.providers.base import Buffer, CaptureToken, Match, Provider, ProviderConfig
from hetero.providers.capture import Captures
from hetero.providers.pool import BytePool
from hetero.providers.straight_line import failed_call, straight_line
from hetero.types import STRING, Array, HostArray, Spec, TensorSpec, ValueType

_Step = tuple[Call, "Operation | None"]


class _Graph:
    """Recorded calls, as one function without a branch."""

    def __init__(self, steps: Sequence[_Step]) -> None:
        self._run = straight_line([call for call, _ in steps])
        self._ops = tuple(op for _, op in steps)

    def run(self, device: str) -> None:
        try:
            self._run()
        except Exception as error:
            lookup.fail(error, self._ops[failed_call(error)], device)


class CpuProvider(Provider):
    """NumPy in this process. Calls run at once and in order; `synchronize` has nothing to wait for.

    Options: `threads` (int ≥ 1 or None: how many the caller means its libraries to use; reported, not set),
    `memory_limit_bytes` (int ≥ 0 or None: bounds the pool and what `empty` hands out).
    """

    kind = "cpu"
    is_host = True
    can_capture = True
    shortest_segment = 8
    fuses = True
    declared_options: ClassVar = {"threads": (int, type(None)), "memory_limit_bytes": (int, type(None))}

    def __init__(self, config: ProviderConfig) -> None:
        super().__init__(config)
        self.threads: int | None = self.options.get("threads")
        if self.threads is not None and self.threads < 1:
            raise ProviderError(f"threads of {self.name} must be at least 1, not {self.threads}")
        limit = checked_limit(self)
        self._pool = BytePool(self.name, limit)
        self._captures: Captures[_Step, _Graph] = Captures(self.name, _Graph)
        self._fallbacks: dict[str, str] = {}
        self._launches = 0

    # -- planning ------------------------------------------------------------------------------------------------
    def supports_native(self, op: Operation, types: Sequence[ValueType | None]) -> Match:
        if lookup.is_control(op):
            return Match(True, "its bodies run here", dispatch=Dispatch.CONTROL)
        definition = lookup.find(op)
        reason = lookup.why_not(definition, op, types)
        if reason is None and definition is not None:
            return Match(True, "own kernel", dispatch=definition.dispatch)
        from hetero.kernels.reference import reference_supports

        refused = reference_supports(op)
        if refused is None:
            return Match(
                True, f"runs through onnx.reference ({reason})", native=False, dispatch=Dispatch.LIBRARY
            )
        return Match(False, f"{reason}; {refused}")

    # -- kernels -------------------------------------------------------------------------------------------------
    def compile(self, op: Operation, specs: Sequence[Spec]) -> Compiled:
        """Our kernel, or onnx.reference where there is none or it declines (listed in stats).

        Raises: UnsupportedError, KernelError.
        """
        definition = lookup.find(op)
        if definition is None:
            declined = UnsupportedError(f"no kernel for {op.id}-{op.version}", op=op.id, node=op.name or None)
        else:
            try:
                return lookup.compile_kernel(definition, op, specs, np, self.name)
            except UnsupportedError as error:
                declined = error
        compiled = self._compile_reference(op, specs, declined)
        self._fallbacks[op.id] = declined.message
        return compiled

    def _compile_reference(
        self, op: Operation, specs: Sequence[Spec], declined: UnsupportedError
    ) -> Compiled:
        from hetero.kernels.reference import reference_compile, reference_supports

        refused = reference_supports(op)
        if refused is not None:
            reason = f"{declined.message}; {refused}"
            raise UnsupportedError(reason, op=op.id, node=op.name or None, device=self.name) from declined
        try:
            compiled: Compiled = reference_compile(op, specs)
            return compiled
        except Exception as error:
            lookup.fail(error, op, self.name)

    def bind(self, compiled: Compiled, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if compiled.bind is None:
            raise DeviceError("a data-dependent kernel cannot be bound; run it", device=self.name)
        return compiled.bind(inputs, outputs, workspace)

    def view(self, compiled: Compiled, inputs: Sequence[Any]) -> tuple[Array, ...] | None:
        return None if compiled.view is None else compiled.view(inputs)

    def run(self, compiled: Compiled, inputs: Sequence[Any]) -> tuple[Any, ...]:
        if self._captures.recording:
            self._captures.refuse("run")
        if compiled.run is None:
            raise DeviceError("this kernel's outputs are known: bind it", device=self.name)
        return compiled.run(inputs)

    # -- memory --------------------------------------------------------------------------------------------------
    def take(self, nbytes: int) -> Buffer:
        if self._captures.recording:
            self._captures.refuse("take")
        return self._pool.take(nbytes)

    def give(self, buffer: Buffer) -> None:
        if self._captures.recording:
            self._captures.refuse("give")
        self._pool.give(buffer)

    def array(self, buffer: Buffer, spec: TensorSpec) -> Array:
        """As the contract says. Strings are Python objects: they live outside `buffer`, in an array of their own.

        Raises: DeviceError where the buffer was given back or is too small.
        """
        check_buffer(buffer, spec, self.name)
        if spec.dtype == STRING:
            return np.empty(spec.shape, STRING)
        return np.ndarray(spec.shape, spec.dtype, buffer.raw)

    def empty(self, spec: TensorSpec) -> Array:
        if self._captures.recording:
            self._captures.refuse("empty")
        if self._pool.limit_bytes is None:
            return np.empty(spec.shape, spec.dtype)
        self._pool.reserve(spec.nbytes)
        array = np.empty(spec.shape, spec.dtype)
        # Views hold `array` as their base, so this runs when the last of them is gone.
        weakref.finalize(array, self._pool.unreserve, spec.nbytes).atexit = False
        return array

    def trim(self) -> None:
        self._pool.trim()

    # -- copies --------------------------------------------------------------------------------------------------
    def upload(self, array: HostArray) -> Array:
        if self._captures.recording:
            self._captures.refuse("upload")
        return array

    def download(self, array: Array) -> HostArray:
        if self._captures.recording:
            # Recorded calls have not run: the bytes are those of the step before.
            self._captures.refuse("download")
        host: HostArray = array
        return host

    def copy(self, source: Array, target: Array) -> Call:
        """As the contract says. Raises: DeviceError where dtype or shape differ."""
        check_copy(source, target, self.name)
        # Half of np.copyto's overhead, which dominates for small arrays.
        return partial(target.__setitem__, ..., source)

    def narrow(self, array: Array, axis: int, start: int, stop: int) -> Array:
        view: Array = array[(*[slice(None)] * axis, slice(start, stop))]
        return view

    def is_contiguous(self, array: Array) -> bool:
        contiguous: bool = array.flags.c_contiguous
        return contiguous

    # -- stream --------------------------------------------------------------------------------------------------
    def synchronize(self) -> None:
        if self._captures.recording:
            self._captures.refuse("synchronize")

    # -- capture -------------------------------------------------------------------------------------------------
    def begin_capture(self, owner: Hashable, slot: str) -> None:
        self._captures.begin(owner, slot)

    def record(self, call: Call, op: Operation | None = None) -> None:
        self._captures.add((call, op))

    def end_capture(self) -> CaptureToken:
        return self._captures.end()

    def abort_capture(self) -> None:
        self._captures.abort()

    def launch(self, token: CaptureToken) -> None:
        self._launches += 1
        self._captures.graph(token).run(self.name)

    def discard_capture(self, token: CaptureToken) -> None:
        self._captures.discard(token)

    # -- the rest ------------------------------------------------------------------------------------------------
    def stats(self) -> dict[str, Any]:
        """The contract's counters (copies are never made here, so they stay 0); `graphs` kept, `graph_launches`,
        `threads` as given; `reference_fallbacks`: op id -> why it last ran through onnx.reference."""
        return {
            **self._pool.stats(),
            "uploads": 0,
            "upload_bytes": 0,
            "downloads": 0,
            "download_bytes": 0,
            "graphs": len(self._captures),
            "graph_launches": self._launches,
            "threads": self.threads,
            "reference_fallbacks": dict(self._fallbacks),
        }

    def close(self) -> None:
        self._captures.clear()
        self._pool.close()


def checked_limit(provider: Provider) -> int | None:
    """The provider's memory_limit_bytes. Raises: ProviderError where it is negative."""
    limit: int | None = provider.options.get("memory_limit_bytes")
    if limit is not None and limit < 0:
        raise ProviderError(f"memory_limit_bytes of {provider.name} must not be negative, but is {limit}")
    return limit


def check_buffer(buffer: Buffer, spec: TensorSpec, device: str) -> None:
    """Raises: DeviceError unless `buffer` is live and holds `spec`."""
    if not buffer.live:
        raise DeviceError("an array was asked for in a buffer that was given back", device=device)
    if spec.nbytes > buffer.nbytes and spec.dtype != STRING:
        raise DeviceError(f"{spec} needs {spec.nbytes} bytes, its buffer has {buffer.nbytes}", device=device)


def check_copy(source: Array, target: Array, device: str) -> None:
    """Raises: DeviceError unless both are of one dtype and shape."""
    if source.dtype != target.dtype or source.shape != target.shape:
        raise DeviceError(
            f"cannot copy {TensorSpec(source.dtype, source.shape)} into {TensorSpec(target.dtype, target.shape)}",
            device=device,
        )
