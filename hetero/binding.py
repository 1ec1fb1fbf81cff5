"""IO binding: the caller's own buffers as inputs and outputs of many steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.errors import InputError
from hetero.program.program import Port
from hetero.runtime.pins import Binding
from hetero.types import HostArray, TensorType, numpy_dtype


class IOBinding:
    """Which buffers a step reads and writes. Made by `HeterogeneousExecutor.io_binding`; used by one thread at a time.

    A bound input is read anew in each step: change the buffer in place and run again. A bound output is written in
    place and never reallocated; a buffer may be larger than the output along one axis (a cache of fixed stride), which
    then fills its front.
    """

    def __init__(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        self._inputs = {p.name: p.type for p in inputs}
        self._outputs = {p.name: p.type for p in outputs}
        self._feeds: dict[str, Any] = {}
        self._targets: dict[str, HostArray] = {}
        self._binding: Binding | None = None

    def bind_input(self, name: str, value: Any) -> None:
        """Read `value` in each step. What `run` accepts is accepted; arrays are read where they lie.

        Raises: InputError for an unknown name.
        """
        if name not in self._inputs:
            raise InputError(f"no input {name!r}; the model's are {list(self._inputs)}", operand=name)
        self._feeds[name] = value
        self._binding = None

    def bind_output(self, name: str, buffer: HostArray) -> None:
        """Write the output into `buffer`, a writable array of its dtype and rank.

        Raises: InputError for an unknown name, or a buffer that the output's declared type does not fit.
        """
        if name not in self._outputs:
            raise InputError(f"no output {name!r}; the model's are {list(self._outputs)}", operand=name)
        if not isinstance(buffer, np.ndarray) or not buffer.flags.writeable:
            raise InputError(f"output {name!r} needs a writable array", operand=name)
        type_ = self._outputs[name]
        if isinstance(type_, TensorType):
            fits = type_.dtype is None or numpy_dtype(type_.dtype) == buffer.dtype
            if not fits or (type_.shape is not None and len(type_.shape) != buffer.ndim):
                raise InputError(
                    f"output {name!r} is {type_}, its buffer {buffer.dtype}{list(buffer.shape)}", operand=name
                )
        self._targets[name] = buffer
        self._binding = None

    def clear(self) -> None:
        """Forget all buffers."""
        self._feeds.clear()
        self._targets.clear()
        self._binding = None

    @property
    def feeds(self) -> dict[str, Any]:
        """The bound inputs."""
        return self._feeds

    @property
    def output_names(self) -> list[str]:
        """The bound outputs."""
        return list(self._targets)

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
            self._binding = Binding(frozenset(arrays), apart)
        return self._binding

    def filled(self, name: str, value: Any) -> HostArray:
        """The part of the output's buffer that holds `value`, copied there unless it was made there.

        Raises: InputError where it does not fit, naming both sizes.
        """
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
