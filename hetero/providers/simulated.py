"""The simulated provider: a device without hardware, as strict as a GPU and able to fail every way one can."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, NoReturn

import numpy as np

from hetero.errors import DeviceError, KernelError, ProviderError, UnsupportedError
from hetero.kernels.base import Call, Compiled
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.providers import lookup
from hetero.providers.base import Buffer, CaptureToken, Match, Provider, ProviderConfig
from hetero.providers.cpu import check_copy, checked_limit
from hetero.providers.sim_faults import Faults, Gate
from hetero.providers.sim_memory import DeviceMemory, SimArray
from hetero.providers.sim_stream import Owner, Stream, Work
from hetero.types import (
    STRING,
    Array,
    DataType,
    HostArray,
    SequenceValue,
    Spec,
    TensorSpec,
    TensorType,
    ValueType,
    host_kind,
)


@dataclass(frozen=True, slots=True)
class SimCompiled(Compiled):
    """A compiled kernel that knows its operation, so that an error surfacing later can name it."""

    op: Operation | None = None


class SimulatedProvider(Provider):
    """NumPy kernels over memory that only they can read, run later, in stream order.

    Same kernels as the CPU's, so the same bits; what is not portable (strings, what runs on the host only) it declines.

    Options: `memory_limit_bytes` (int ≥ 0 or None), `poison` (bool, True: fresh and freed memory reads as 0xDE, fresh
    float arrays as NaN), `link_latency_s` (seconds ≥ 0 that each upload and download takes), `queue_limit` (int ≥ 1:
    the stream runs by itself when more work than this waits), `faults` (see `sim_faults.Faults`).
    """

    kind = "sim"
    is_host = False
    can_capture = True
    indexed = True
    declared_options: ClassVar = {
        "memory_limit_bytes": (int, type(None)),
        "poison": (bool,),
        "link_latency_s": (int, float),
        "queue_limit": (int,),
        "faults": (tuple, list),
    }

    def __init__(self, config: ProviderConfig, *, sleep: Callable[[float], object] = time.sleep) -> None:
        """`sleep` passes the time that the link takes. Raises: ProviderError for options that cannot be meant."""
        super().__init__(config)
        self._latency_s: float = self.options.get("link_latency_s", 0)
        queue_limit: int = self.options.get("queue_limit", 1024)
        if not 0 <= self._latency_s < float("inf"):
            raise ProviderError(f"link_latency_s of {self.name} must be 0 or more, not {self._latency_s}")
        if queue_limit < 1:
            raise ProviderError(f"queue_limit of {self.name} must be at least 1, not {queue_limit}")
        limit = checked_limit(self)
        self._sleep = sleep
        self._faults = Faults(self.name, self.options.get("faults", ()))
        self._stream = Stream(self.name, self._faults, queue_limit)
        self._memory = DeviceMemory(
            self.name, self._stream, self._faults, limit_bytes=limit, poison=self.options.get("poison", True)
        )
        self._captures = self._stream.captures
        self._link_s = 0.0
        self._copies = {"uploads": 0, "upload_bytes": 0, "downloads": 0, "download_bytes": 0}

    # -- planning ------------------------------------------------------------------------------------------------
    def supports_native(self, op: Operation, types: Sequence[ValueType | None]) -> Match:
        reason = _needs_strings(op, types)
        if reason is not None:
            return Match(False, reason)
        if lookup.is_control(op):
            return Match(True, "its bodies run here", dispatch=Dispatch.CONTROL)
        definition = lookup.find(op)
        if definition is not None and not definition.portable:
            return Match(False, f"{op.id} runs on the host only")
        reason = lookup.why_not(definition, op, types)
        if reason is not None or definition is None:
            return Match(False, reason or "")
        return Match(True, "own kernel", dispatch=definition.dispatch)

    # -- kernels -------------------------------------------------------------------------------------------------
    def compile(self, op: Operation, specs: Sequence[Spec]) -> Compiled:
        definition = lookup.find(op)
        reason = None
        if definition is None:
            reason = f"no kernel for {op.id}-{op.version}"
        elif not definition.portable:
            reason = f"{op.id} runs on the host only"
        elif any(isinstance(s, TensorSpec) and s.dtype == STRING for s in specs):
            reason = "strings live on the host only"
        if reason is None and definition is not None:
            compiled = lookup.compile_kernel(definition, op, specs, np, self.name)
            if not any(isinstance(s, TensorSpec) and s.dtype == STRING for s in compiled.outputs):
                parts = {f.name: getattr(compiled, f.name) for f in fields(Compiled)}
                return SimCompiled(**parts, op=op)
            reason = "strings live on the host only"
        raise UnsupportedError(reason or "", op=op.id, node=op.name or None, device=self.name)

    def bind(self, compiled: Compiled, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        """A call that enqueues the kernel's. Whoever holds it keeps alive what `empty` made.

        Raises: DeviceError where an operand is not this device's, or is not what `compiled` asks for; and whatever
        the kernel's bind raises.
        """
        op = _op_of(compiled)
        if compiled.bind is None:
            self._fail("a data-dependent kernel cannot be bound; run it", op)
        owners: dict[int, Owner] = {}
        try:
            ins = [self._memory.inner(v, f"input {i}", owners) for i, v in enumerate(inputs)]
            outs = [
                self._memory.inner(v, f"output {i}", owners, writable=True) for i, v in enumerate(outputs)
            ]
            scratch = self._memory.inner(workspace, "the workspace", owners, writable=True)
            self._stream.check_live(tuple(owners.values()))
            self._check_operands(compiled, inputs, outputs, workspace)
            call = compiled.bind(ins, outs, scratch)
        except Exception as error:
            lookup.fail(error, op, self.name)
        return partial(self._stream.launch, Work(call, tuple(owners.values()), op, compiled.capture))

    def view(self, compiled: Compiled, inputs: Sequence[Any]) -> tuple[Array, ...] | None:
        """As the contract says; the kernel gets only the form of inputs[0], and cannot read the other inputs."""
        if compiled.view is None:
            return None
        op = _op_of(compiled)
        try:
            source = self._memory.mine(inputs[0], "input 0")
            self._stream.check_live((source.owner,))
            views = compiled.view([source._inner, *inputs[1:]])
            return None if views is None else tuple(self._memory.view(v, source) for v in views)
        except Exception as error:
            lookup.fail(error, op, self.name)

    def run(self, compiled: Compiled, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """As the contract says: waits for the stream, so that errors of earlier work surface here too."""
        if self._captures.recording:
            self._captures.refuse("run", compiled.capture)
        op = _op_of(compiled)
        if compiled.run is None:
            self._fail("this kernel's outputs are known: bind it", op)
        owners: dict[int, Owner] = {}
        try:
            ins = [self._memory.inner(v, f"input {i}", owners) for i, v in enumerate(inputs)]
            self._stream.check_live(tuple(owners.values()))
        except DeviceError as error:
            lookup.fail(error, op, self.name)
        self._stream.synchronize()
        try:
            self._stream.launches += 1
            self._faults.at("launch")
            same = {id(inner): value for inner, value in _handles(ins, inputs)}
            return tuple(self._from_kernel(v, same) for v in compiled.run(ins))
        except Exception as error:
            lookup.fail(error, op, self.name)

    # -- memory --------------------------------------------------------------------------------------------------
    def take(self, nbytes: int) -> Buffer:
        if self._captures.recording:
            self._captures.refuse("take")
        return self._memory.take(nbytes)

    def give(self, buffer: Buffer) -> None:
        """As the contract says, in stream order: work enqueued before still finds its bytes."""
        if self._captures.recording:
            self._captures.refuse("give")
        self._memory.give(buffer)

    def array(self, buffer: Buffer, spec: TensorSpec) -> Array:
        return self._memory.array(buffer, spec)

    def empty(self, spec: TensorSpec) -> Array:
        if self._captures.recording:
            self._captures.refuse("empty")
        return self._memory.empty(spec)

    def trim(self) -> None:
        self._memory.trim()

    # -- copies --------------------------------------------------------------------------------------------------
    def upload(self, array: HostArray) -> Array:
        """As the contract says; `array` may be changed once this returns. What comes of a read-only array is a
        constant: nothing may write it, and only its bytes can be seen by a kernel that binds.

        Raises: DeviceError for strings.
        """
        if self._captures.recording:
            self._captures.refuse("upload")
        if not isinstance(array, np.ndarray):
            self._fail(f"cannot upload a {type(array).__name__}: it is not a host array")
        self._faults.at("upload")
        target = self._memory.put(array, constant=not array.flags.writeable)
        self._pass_link("upload", array.nbytes)
        return target

    def upload_into(self, array: HostArray, target: Array) -> None:
        """As the contract says, without memory of its own. Raises: DeviceError where dtype or shape differ."""
        if self._captures.recording:
            self._captures.refuse("upload")
        there = self._memory.mine(target, "the target")
        if there.spec != TensorSpec(array.dtype, array.shape):
            self._fail(f"{TensorSpec(array.dtype, array.shape)} does not fit a target of {there.spec}")
        self._stream.check_live((there.owner,))
        self._faults.at("upload")
        self._memory.fill(there, array)
        self._pass_link("upload", array.nbytes)

    def download(self, array: Array) -> HostArray:
        if self._captures.recording:
            self._captures.refuse("download")
        source = self._memory.mine(array, "the array to download")
        self._stream.check_live((source.owner,))
        self._faults.at("download")
        self._stream.synchronize()
        self._pass_link("download", source.nbytes)
        return self._memory.get(source)

    def copy(self, source: Array, target: Array) -> Call:
        """As the contract says; the call enqueues. Raises: DeviceError where dtype or shape differ."""
        check_copy(
            self._memory.mine(source, "the source"), self._memory.mine(target, "the target"), self.name
        )
        owners: dict[int, Owner] = {}
        read = self._memory.inner(source, "the source", owners)
        write = self._memory.inner(target, "the target", owners, writable=True)
        self._stream.check_live(tuple(owners.values()))
        work = Work(partial(write.__setitem__, ..., read), tuple(owners.values()))
        return partial(self._stream.launch, work)

    def narrow(self, array: Array, axis: int, start: int, stop: int) -> Array:
        source = self._memory.mine(array, "the array to narrow")
        self._stream.check_live((source.owner,))
        return self._memory.view(source._inner[(*[slice(None)] * axis, slice(start, stop))], source)

    def is_contiguous(self, array: Array) -> bool:
        contiguous: bool = self._memory.mine(array, "the array")._inner.flags.c_contiguous
        return contiguous

    # -- stream --------------------------------------------------------------------------------------------------
    def synchronize(self) -> None:
        self._stream.synchronize()

    # -- capture -------------------------------------------------------------------------------------------------
    def begin_capture(self, owner: Hashable, slot: str) -> None:
        self._captures.begin(owner, slot)

    def record(self, call: Call, op: Operation | None = None) -> None:
        """As the contract says. Simply calling a bound call while recording does the same, as on a GPU."""
        self._captures.check("record")
        call()

    def end_capture(self) -> CaptureToken:
        return self._captures.end()

    def abort_capture(self) -> None:
        self._captures.abort()

    def launch(self, token: CaptureToken) -> None:
        """Enqueue a captured graph. Raises: CaptureError, and DeviceError where memory it uses was given back."""
        self._stream.replay(self._captures.graph(token))

    def discard_capture(self, token: CaptureToken) -> None:
        self._captures.discard(token)

    # -- the rest ------------------------------------------------------------------------------------------------
    def gate(self, point: str, n: int) -> Gate:
        """Where the operation waits for which `faults` scripts a "hang": reached, and to be opened."""
        return self._faults.gate(point, n)

    def stats(self) -> dict[str, Any]:
        """The contract's counters; `launches` of kernels, `graphs` kept, `graph_launches`, `syncs` (waits for the
        stream), `queued` and `queued_peak` entries, `link_s` simulated seconds on the link, `faults` that struck."""
        return {
            **self._memory.stats(),
            **self._copies,
            "launches": self._stream.launches,
            "graphs": len(self._captures),
            "graph_launches": self._stream.graph_launches,
            "syncs": self._stream.syncs,
            "queued": self._stream.queued,
            "queued_peak": self._stream.queued_peak,
            "link_s": self._link_s,
            "faults": self._faults.struck,
        }

    def close(self) -> None:
        """As the contract says; work that still waits is dropped, as when a device is reset."""
        self._memory.close()
        self._stream.close()

    # -- helpers -------------------------------------------------------------------------------------------------
    def _check_operands(
        self, compiled: Compiled, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any
    ) -> None:
        for i in compiled.contiguous:
            if i < len(inputs) and isinstance(inputs[i], SimArray) and not self.is_contiguous(inputs[i]):
                self._fail(f"input {i} must be contiguous")
        for i, (spec, array) in enumerate(zip(compiled.outputs, outputs, strict=True)):
            if not isinstance(spec, TensorSpec) or array is None:
                continue
            if array.spec != spec:
                self._fail(f"output {i} must be {spec}, not {array.spec}")
            if not self.is_contiguous(array):
                self._fail(f"output {i} must be contiguous")
        if (workspace.nbytes if workspace is not None else 0) < compiled.workspace_bytes:
            self._fail(f"a workspace of {compiled.workspace_bytes} bytes is needed")

    def _from_kernel(self, value: Any, same: dict[int, SimArray]) -> Any:
        """A run's output on the device; an input that comes back stays the array it was."""
        if value is None:
            return None
        if isinstance(value, SequenceValue):
            return SequenceValue([self._element(v, same) for v in value], value.dtype)
        if id(value) in same:
            return same[id(value)]
        if not isinstance(value, np.ndarray):
            raise KernelError(f"a kernel returned a {type(value).__name__}, not an array")
        return self._memory.put(value)

    def _element(self, value: Any, same: dict[int, SimArray]) -> Any:
        """An element of a sequence that a kernel returned: where it is a view of an input, it stays one."""
        if isinstance(value, np.ndarray) and value.base is not None and id(value) not in same:
            for source in same.values():
                if np.may_share_memory(value, source._inner):
                    return self._memory.view(value, source)
        return self._from_kernel(value, same)

    def _pass_link(self, way: str, nbytes: int) -> None:
        self._copies[f"{way}s"] += 1
        self._copies[f"{way}_bytes"] += nbytes
        if self._latency_s:
            self._link_s += self._latency_s
            self._sleep(self._latency_s)

    def _fail(self, message: str, op: Operation | None = None) -> NoReturn:
        lookup.fail(DeviceError(message, device=self.name), op, self.name)


def _op_of(compiled: Compiled) -> Operation | None:
    return compiled.op if isinstance(compiled, SimCompiled) else None


def _handles(inner: Sequence[Any], outer: Sequence[Any]) -> list[tuple[Any, SimArray]]:
    """(what the kernel got, whose it is) for every array among a run's inputs, sequence elements included."""
    pairs: list[tuple[Any, SimArray]] = []
    for got, value in zip(inner, outer, strict=True):
        if isinstance(value, SequenceValue):
            pairs += _handles(got.elements, value.elements)
        elif value is not None:
            pairs.append((got, value))
    return pairs


def _needs_strings(op: Operation, types: Sequence[ValueType | None]) -> str | None:
    """The reason, where an operand or an attribute shows that the operation reads or makes strings."""
    for i, given in enumerate(types):
        kind = host_kind(given)
        if kind is not None:
            return f"input {i} holds {kind}, which live on the host only"
    for name, value in op.attributes.items():
        made = (
            (name == "to" and value == DataType.STRING)
            or (isinstance(value, np.ndarray) and value.dtype == STRING)
            or (name.endswith(("_string", "_strings")) and bool(value))
            or (isinstance(value, TensorType) and value.dtype == DataType.STRING)
        )
        if made:
            return f"attribute {name} makes strings, which live on the host only"
    return None
