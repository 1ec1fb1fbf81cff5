"""Pins: the caller's own buffers that a program reads and writes where they lie, step after step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hetero.program.program import Program
from hetero.runtime.device_buffers import BufferRef
from hetero.types import HostArray


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Inputs that lie in buffers on a child's device, and outputs that go there; `withheld`: (parcel, name) pairs that
    leave as Resident, since only the caller would get them."""

    inputs: Mapping[str, BufferRef]
    outputs: Mapping[str, BufferRef]
    withheld: frozenset[tuple[int, str]]


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """What a step reads and writes in place: names of inputs whose arrays stay the same, and arrays for outputs.

    The caller keeps the arrays alive and in place; inputs are read again in each step, also where they were changed.
    """

    inputs: frozenset[str] = frozenset()
    outputs: Mapping[str, HostArray] = field(default_factory=dict)
    on_device: OnDevice | None = None


@dataclass(frozen=True, eq=False)
class Pins:
    """A binding as one program sees it: by input position, and by output slot."""

    inputs: Mapping[int, HostArray]
    outputs: Mapping[int, HostArray]

    @cached_property
    def key(self) -> bytes:
        """Where they lie: calls that are bound to other memory are of no use."""
        parts = [(k, *_place(a)) for k, a in (*self.inputs.items(), *self.outputs.items())]
        return repr(parts).encode()


def _place(array: HostArray) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return array.__array_interface__["data"][0], array.shape, array.strides


def pins_of(program: Program, inputs: Sequence[Any], binding: Binding) -> Pins:
    """The binding of a run of `program` with these inputs."""
    read = {
        k: value
        for k, (port, value) in enumerate(zip(program.inputs, inputs, strict=True))
        if port.name in binding.inputs and isinstance(value, np.ndarray)
    }
    written = {
        port.slot: array
        for port in program.outputs
        if (array := binding.outputs.get(port.name)) is not None and _writable_in_place(array)
    }
    return Pins(read, written)


def _writable_in_place(array: HostArray) -> bool:
    """Whether kernels may write their result into the array."""
    flags = array.flags
    return bool(flags.c_contiguous and flags.aligned and flags.writeable and array.dtype != object)
