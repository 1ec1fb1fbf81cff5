"""Bound state: values that stay on their child between steps, in buffers that grow in place."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hetero.errors import StateError
from hetero.kernels.base import Call
from hetero.providers.base import Provider
from hetero.types import Array, HostArray, TensorSpec


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A state value: the output `output` of a step is the input `input` of the next one.

    `spec`: of its buffer, with the capacity as extent along `axis`, the axis along which it grows; None where each step
    leaves it as large as it was. `elastic`: a buffer that is full is replaced by one of twice the capacity.
    """

    input: str
    output: str
    spec: TensorSpec
    axis: int | None
    elastic: bool = False


@dataclass(frozen=True, slots=True)
class Resident:
    """Stands in a parcel, or among results, for a value that stays where it is: a state of this shape."""

    shape: tuple[int, ...]


NO_STEP = -1
"""The number of no step."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """What is done to the states of a child between two steps, in this order.

    `reset`: all begin anew. `length`: those that grow go back to so many rows. `values`: these, by input name, become
    what is given. `read`: copies of all are asked for.
    """

    reset: bool = False
    length: int | None = None
    values: Mapping[str, HostArray] = field(default_factory=dict)
    read: bool = False

    def apply(self, states: Mapping[str, State]) -> dict[str, HostArray]:
        """Apply to `states`, by input name. Raises: StateError; what came before it in the order has happened."""
        for name, state in states.items():
            if self.reset:
                state.reset()
            if self.length is not None:
                state.rewind(self.length)
            if name in self.values:
                state.write(self.values[name])
        return {name: state.read() for name, state in states.items()} if self.read else {}


class State:
    """One state value on one child. The buffer is the provider's, and the executor's own: kernels may write it.

    What a step makes of it is proposed, and holds from the next step on: `abandon` takes it back. Rows beyond `length`
    may hold anything.
    """

    def __init__(self, provider: Provider, spec: StateSpec) -> None:
        self.spec = spec
        self.length = 0
        self.unchanged = 0
        """Rows, first ones, that are as they were when the state was last copied out; steps only add rows."""
        self.copied_bytes = 0
        self._provider = provider
        self._array = self._allocated(spec.spec)
        self._spare: Array | None = None
        self._value: tuple[int, Array] | None = None
        self._first: tuple[int, Array] | None = None
        self._proposed: tuple[int, int, bool] | None = None
        extents, axis = spec.spec.shape, spec.axis
        self.alike: tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...]] | None = None
        """Its dtype, and its extents before and behind the axis along which it grows."""
        if axis is not None:
            self.alike = spec.spec.dtype, extents[:axis], extents[axis + 1 :]
        self._shapes_alone = spec.spec.dtype.kind == "f"

    @property
    def capacity(self) -> int:
        """Rows along the axis; 0 without one."""
        return 0 if self.spec.axis is None else int(self._array.shape[self.spec.axis])

    def sized(self) -> StateSpec:
        """Its spec, with the buffer that it has by now."""
        return replace(self.spec, spec=TensorSpec(self.spec.spec.dtype, tuple(self._array.shape)))

    def value(self) -> Array:
        """What the next step reads: the same array as long as it does not change."""
        if self.spec.axis is None:
            return self._array
        if self._value is None or self._value[0] != self.length:
            self._value = self.length, self.first(self.length)
        return self._value[1]

    def held(self, known: dict[Hashable, TensorSpec]) -> TensorSpec | None:
        """The spec of what the next step reads, where no shapes follow from its elements; else None. `known`: as for
        `spec_of`."""
        return self.spec_of(self.length, known) if self.alike is not None and self._shapes_alone else None

    def spec_of(self, length: int, known: dict[Hashable, TensorSpec]) -> TensorSpec:
        """The spec of its first rows. `known`: those of other states, and then this one's: it is one object for those
        that are equal."""
        assert self.alike is not None, "a state without an axis has no rows"
        key = self.alike, length
        found = known.get(key)
        if found is None:
            dtype, front, back = self.alike
            found = known[key] = TensorSpec(dtype, (*front, length, *back))
        return found

    def appending(self, rows: Array) -> Call:
        """The call that writes `rows` behind those that are there when it is called, for as long as the buffer does not
        move. On the host."""
        axis = self.spec.axis
        assert axis is not None, "a state without an axis has no rows"
        buffer, front, count = self._array, (slice(None),) * axis, rows.shape[axis]

        def append() -> None:
            length = self.length
            buffer[(*front, slice(length, length + count))] = rows

        return append

    def first(self, stop: int) -> Array:
        """A view of rows [0, stop): the same array as long as the same rows are asked for. Raises: as `rows`."""
        first = self._first
        if first is not None and first[0] == stop:
            return first[1]
        array = self.rows(0, stop)
        self._first = stop, array
        return array

    def rows(self, start: int, stop: int) -> Array:
        """A view of rows [start, stop) of the buffer. Raises: StateError where it has not that many."""
        axis, array = self.spec.axis, self._array
        assert axis is not None, "a state without an axis has no rows"
        if stop > array.shape[axis]:
            raise StateError(
                f"needs {stop} rows along axis {axis}, and its buffer has {self.capacity}",
                operand=self.spec.output,
            )
        return self._provider.narrow(array, axis, start, stop)

    @property
    def nbytes(self) -> int:
        """Bytes of its buffers."""
        return int(self._array.nbytes) * (1 if self._spare is None else 2)

    # -- steps ---------------------------------------------------------------------------------------------------
    def propose(self, step: int, shape: tuple[int, ...], array: Array | None = None) -> None:
        """`step` made a value of `shape`: in the buffer, or as `array`, which is copied aside.

        Raises: StateError where it does not fit the buffer.
        """
        axis, own = self.spec.axis, tuple(self._array.shape)
        wanted = (
            own if axis is None else (*own[:axis], shape[axis] if axis < len(shape) else 0, *own[axis + 1 :])
        )
        if shape != wanted:
            raise StateError(
                f"is of shape {list(shape)}, its buffer of {list(own)}", operand=self.spec.output
            )
        length = 0 if axis is None else shape[axis]
        if array is not None:
            if length > self.capacity:
                self.rows(0, length)
            if self._spare is None:
                self._spare = self._allocated(TensorSpec(self.spec.spec.dtype, own))
            self._copy(array, self._part(self._spare, length))
        self._proposed = step, length, array is not None

    def propose_as(self, other: State) -> None:
        """The step made, in its buffer, as much of it as it has of `other`, which is `alike`."""
        self._proposed = other._proposed

    def settle(self, step: int) -> None:
        """Make true what a step other than `step` proposed."""
        if self._proposed is None or self._proposed[0] == step:
            return
        _, self.length, aside = self._proposed
        self._proposed = None
        if aside and self._spare is not None:
            self.unchanged = 0
            self._copy(self._part(self._spare, self.length), self._part(self._array, self.length))

    def abandon(self, step: int) -> None:
        """Forget what `step` proposed."""
        if self._proposed is not None and self._proposed[0] == step:
            self._proposed = None

    # -- between steps -------------------------------------------------------------------------------------------
    def rewind(self, length: int) -> None:
        """Forget rows from `length` on. Raises: StateError where there are fewer."""
        if self.spec.axis is None:
            return
        if not 0 <= length <= self.length:
            raise StateError(
                f"has {self.length} rows, and cannot go back to {length}", operand=self.spec.input
            )
        self.length = length
        self.unchanged = min(self.unchanged, length)

    def reset(self) -> None:
        """No rows; zeros where it has no axis."""
        self._proposed = None
        self.length = self.unchanged = 0
        if self.spec.axis is None:
            self._provider.copy(self._zeros(self.spec.spec), self._array)()

    def read(self) -> HostArray:
        """A copy on the host."""
        return np.array(self._provider.download(self.value()))

    def copied_spec(self, start: int) -> TensorSpec:
        """Of what `copy_out` from row `start` on copies."""
        shape = list(self._array.shape)
        if self.spec.axis is not None:
            shape[self.spec.axis] = self.length - start
        return TensorSpec(self.spec.spec.dtype, tuple(shape))

    def copy_out(self, target: HostArray, start: int = 0) -> None:
        """Copy the value, or its rows from `start` on, to the host. It is what `unchanged` refers to from now on."""
        axis = self.spec.axis
        source = self.value() if axis is None or not start else self.rows(start, self.length)
        target[...] = self._provider.download(source)
        self.unchanged = 0 if axis is None else self.length

    def write(self, value: HostArray) -> None:
        """Become `value`. Raises: StateError where it does not fit the buffer."""
        self._proposed = None
        self.propose(NO_STEP, value.shape, self._provider.upload(value))
        self.settle(NO_STEP - 1)

    def grow(self) -> None:
        """Move to a buffer of twice the capacity; views of the old one are no longer this state's."""
        axis = self.spec.axis
        assert axis is not None, "only what grows has a capacity"
        old, shape = self.value(), list(self._array.shape)
        shape[axis] = max(2 * shape[axis], 1)
        self._array = self._allocated(TensorSpec(self.spec.spec.dtype, tuple(shape)))
        self._spare = self._value = self._first = None
        self._copy(old, self.value())

    # -- helpers -------------------------------------------------------------------------------------------------
    def _part(self, array: Array, length: int) -> Array:
        return array if self.spec.axis is None else self._provider.narrow(array, self.spec.axis, 0, length)

    def _copy(self, source: Array, target: Array) -> None:
        self._provider.copy(source, target)()
        self.copied_bytes += int(source.nbytes)

    def _allocated(self, spec: TensorSpec) -> Array:
        array = self._provider.empty(spec)
        self._provider.copy(self._zeros(spec), array)()
        return array

    def _zeros(self, spec: TensorSpec) -> Array:
        return self._provider.upload(np.zeros(spec.shape, spec.dtype))
