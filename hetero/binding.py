"""IO binding: the caller's own buffers as inputs and outputs of many steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.device_buffer import DeviceBuffer
from hetero.errors import InputError
from hetero.planner.plan import CALLER, Plan
from hetero.program.program import has_port
from hetero.runtime.pins import Binding, OnDevice
from hetero.types import HostArray, TensorType, numpy_dtype


class IOBinding:
    """Which buffers a step reads and writes. Made by `HeterogeneousExecutor.io_binding`; used by one thread at a time.

    A bound input is read anew in each step: change the buffer in place and run again. A bound output is written in
    place and never reallocated; a buffer may be larger than the output along one axis (a cache of fixed stride), which
    then fills its front. A DeviceBuffer is bound where the one child that reads the input, or makes the output, is the
    one whose memory it is.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._partitions = [p for section in plan.sections for p in section.partitions]
        self._inputs = {p.name: p.type for p in plan.inputs}
        self._outputs = {p.name: p.type for p in plan.outputs}
        self._feeds: dict[str, Any] = {}
        self._targets: dict[str, HostArray] = {}
        self._sources: dict[str, DeviceBuffer] = {}
        self._device_targets: dict[str, DeviceBuffer] = {}
        self._binding: Binding | None = None

    def bind_input(self, name: str, value: Any) -> None:
        """Read `value` in each step: what `run` accepts, or a DeviceBuffer. Arrays are read where they lie.

        Raises: InputError for an unknown name, or a device buffer of another type or on another child than reads it.
        """
        if name not in self._inputs:
            raise InputError(f"no input {name!r}; the model's are {list(self._inputs)}", operand=name)
        self._sources.pop(name, None)
        if isinstance(value, DeviceBuffer):
            readers = {p.child for p in self._partitions if has_port(p.program.inputs, name)}
            self._check_device("input", name, self._inputs[name], value, readers)
            self._sources[name] = value
            value = np.broadcast_to(
                np.zeros((), value.dtype), value.shape
            )  # its extents are checked as any array's
        self._feeds[name] = value
        self._binding = None

    def bind_output(self, name: str, buffer: HostArray | DeviceBuffer) -> None:
        """Write the output into `buffer`, a writable array or a DeviceBuffer of its dtype and rank.

        Raises: InputError for an unknown name, a buffer that the declared type does not fit, or a device buffer
        on another child than makes it.
        """
        if name not in self._outputs:
            raise InputError(f"no output {name!r}; the model's are {list(self._outputs)}", operand=name)
        if isinstance(buffer, DeviceBuffer):
            makers = {p.child for p in self._partitions if has_port(p.program.outputs, name)}
            self._check_device("output", name, self._outputs[name], buffer, makers)
            self._targets.pop(name, None)
            self._device_targets[name] = buffer
            self._binding = None
            return
        if not isinstance(buffer, np.ndarray) or not buffer.flags.writeable:
            raise InputError(f"output {name!r} needs a writable array", operand=name)
        _check_type("output", name, self._outputs[name], buffer)
        self._device_targets.pop(name, None)
        self._targets[name] = buffer
        self._binding = None

    def clear(self) -> None:
        """Forget all buffers."""
        self._feeds.clear()
        self._targets.clear()
        self._sources.clear()
        self._device_targets.clear()
        self._binding = None

    @property
    def feeds(self) -> dict[str, Any]:
        """The bound inputs."""
        return self._feeds

    @property
    def output_names(self) -> list[str]:
        """The bound outputs."""
        return [*self._targets, *self._device_targets]

    @property
    def in_place(self) -> Binding:
        """What children in this process use: outputs that share memory with an input are not written there at once."""
        if self._binding is None:
            arrays = {n: v for n, v in self._feeds.items() if type(v) is np.ndarray}
            apart = {
                name: buffer
                for name, buffer in self._targets.items()
                if not any(np.may_share_memory(buffer, v) for v in arrays.values())
            }
            here = frozenset(arrays.keys() - self._sources.keys())
            self._binding = Binding(here, apart, self._on_device())
        return self._binding

    @property
    def elsewhere(self) -> Binding | None:
        """What children elsewhere use: device buffers alone."""
        if self._binding is None:
            self._binding = Binding(on_device=self._on_device())
        return self._binding if self._binding.on_device is not None else None

    def _on_device(self) -> OnDevice | None:
        if not self._sources and not self._device_targets:
            return None
        return OnDevice(
            {name: buffer.ref for name, buffer in self._sources.items()},
            {name: buffer.ref for name, buffer in self._device_targets.items()},
            frozenset(
                (parcel.id, name)
                for section in self._plan.sections
                for parcel in section.parcels
                if tuple(parcel.destinations) == (CALLER,)
                for name in parcel.values
                if name in self._device_targets
            ),
        )

    def _check_device(self, kind: str, name: str, type_: Any, buffer: DeviceBuffer, users: set[int]) -> None:
        _check_type(kind, name, type_, buffer)
        if users != {buffer.child}:
            names = sorted(self._plan.providers[k].name for k in users) or ["no child"]
            raise InputError(
                f"{kind} {name!r} belongs to {', '.join(names)}, its device buffer to {buffer.device}",
                operand=name,
            )

    def filled(self, name: str, value: Any) -> HostArray | DeviceBuffer:
        """The part of the output's buffer that holds `value`, copied there unless it was made there.

        Raises: InputError where it does not fit, naming both sizes.
        """
        if name in self._device_targets:
            return self._device_targets[name].front(*value.shape)
        buffer = self._targets[name]
        if id(value) == id(buffer):
            return buffer
        array: HostArray = np.asarray(value)
        fits = array.ndim == buffer.ndim and array.dtype == buffer.dtype
        larger = [k for k, (n, m) in enumerate(zip(buffer.shape, array.shape, strict=False)) if n != m]
        if not fits or len(larger) > 1 or any(buffer.shape[k] < array.shape[k] for k in larger):
            raise InputError(
                f"output {name!r} is {array.dtype}{list(array.shape)}, its buffer {buffer.dtype}{list(buffer.shape)}",
                operand=name,
            )
        part = buffer[(*map(slice, array.shape),)] if larger else buffer
        np.copyto(part, array)
        return part


def _check_type(kind: str, name: str, type_: Any, buffer: HostArray | DeviceBuffer) -> None:
    """Raises: InputError where the buffer is not of the declared dtype and rank."""
    if not isinstance(type_, TensorType):
        if isinstance(buffer, DeviceBuffer):
            raise InputError(f"{kind} {name!r} is {type_}, which no device buffer holds", operand=name)
        return
    fits = type_.dtype is None or numpy_dtype(type_.dtype) == buffer.dtype
    if not fits or (type_.shape is not None and len(type_.shape) != len(buffer.shape)):
        raise InputError(
            f"{kind} {name!r} is {type_}, its buffer {buffer.dtype}{list(buffer.shape)}", operand=name
        )
