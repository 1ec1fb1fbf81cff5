"""Slices of scanned arrays, as views; and scan outputs, collected row by row into one array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Compiled
from hetero.program.program import Port, Program
from hetero.providers.base import Provider
from hetero.runtime.operands import contiguous_copy
from hetero.types import Array, SequenceValue, TensorSpec, TensorType, ValueType, numpy_dtype

_FIRST_ROWS = 16
"""Rows there is room for at first, where nobody knows how many there will be."""


def take_at(provider: Provider, array: Array, index: int, axis: int = 0) -> Array:
    """array[..., index, ...] along `axis` (counted from the front), as a view."""
    where = (slice(None),) * axis + (index, ...)
    return array[where] if provider.is_host else _viewed(provider, array, lambda inner: inner[where])


def with_axis(provider: Provider, array: Array, axis: int) -> Array:
    """The array with a new axis of extent 1, as a view."""
    where = (slice(None),) * axis + (None, ...)
    return array[where] if provider.is_host else _viewed(provider, array, lambda inner: inner[where])


def moved_axis(provider: Provider, array: Array, axis: int) -> Array:
    """The array with its axis 0 at `axis`, contiguous: a copy, unless it is there already."""
    if axis == 0:
        return array
    if provider.is_host:
        return np.ascontiguousarray(np.moveaxis(array, 0, axis))
    order = (*range(1, axis + 1), 0, *range(axis + 1, len(array.shape)))
    return contiguous_copy(provider, _viewed(provider, array, lambda inner: inner.transpose(order)))


def _viewed(provider: Provider, array: Array, view: Any) -> Array:
    views = provider.view(Compiled(view=lambda inputs: (view(inputs[0]),)), [array])
    assert views is not None, "basic indexing always gives a view"
    return views[0]


def described(value: Any) -> str:
    """What a value is, for a message."""
    if value is None:
        return "nothing"
    return "a sequence" if isinstance(value, SequenceValue) else f"{value.dtype}{list(value.shape)}"


def axis_in(axis: int, rank: int, operand: str, value: str) -> int:
    """`axis` counted from the front. Raises: KernelError that names the attribute and the value."""
    if not -rank <= axis < rank:
        raise KernelError(f"axis {axis} is out of range for {value!r} of rank {rank}", operand=operand)
    return axis + rank if axis < 0 else axis


class Rows:
    """The values that a body gives for one scan output, copied as they come; equal in dtype and shape.

    `port`: the body's output. `length`: how many there will be, where that is known; else room is made as needed.
    `backwards` (with a length): the first one is the last row.
    """

    def __init__(
        self, provider: Provider, port: Port, *, length: int | None = None, backwards: bool = False
    ) -> None:
        self._provider = provider
        self._port = port
        self._length = length
        self._backwards = backwards
        self._count = 0
        self._room = 0
        self._spec: TensorSpec | None = None
        self._rows: Array | None = None

    def add(self, value: Any) -> None:
        """One more row; `value` may change afterwards. Raises: KernelError where it does not fit the others."""
        spec = self._spec
        if spec is None:
            spec = self._begin(value)
        elif getattr(value, "shape", None) != spec.shape or value.dtype != spec.dtype:
            raise KernelError(
                f"scan output {self._port.name!r} changes between iterations: {spec}, then {described(value)}",
                operand=self._port.name,
            )
        rows = self._rows
        if rows is None or self._count == self._room:
            self._room = self._length if self._length is not None else max(_FIRST_ROWS, 2 * self._room)
            rows = self._rows = self._resized(spec, self._room)
        at = self._room - 1 - self._count if self._backwards else self._count
        if self._provider.is_host:
            rows[at, ...] = value
        else:
            self._provider.copy(value, take_at(self._provider, rows, at))()
        self._count += 1

    def _begin(self, value: Any) -> TensorSpec:
        if value is None or isinstance(value, SequenceValue):
            raise KernelError(
                f"scan output {self._port.name!r} must be a tensor, but is {described(value)}",
                operand=self._port.name,
            )
        self._spec = TensorSpec(value.dtype, tuple(value.shape))
        return self._spec

    def _resized(self, spec: TensorSpec, room: int) -> Array:
        rows = self._provider.empty(TensorSpec(spec.dtype, (room, *spec.shape)))
        kept = min(room, self._count)
        if kept:
            self._provider.copy(self._first(self._rows, kept), self._first(rows, kept))()
        return rows

    def _first(self, rows: Array, count: int) -> Array:
        where = slice(0, count)
        return rows[where] if self._provider.is_host else _viewed(self._provider, rows, lambda x: x[where])

    def stacked(self, axis: int, operand: str) -> Array | None:
        """All rows along a new `axis`, in memory of their own; None where there are none.

        Raises: KernelError for an axis out of range (`operand` names the attribute).
        """
        if self._spec is None:
            return None
        at = axis_in(axis, len(self._spec.shape) + 1, operand, self._port.name)
        rows = self._rows if self._room == self._count else self._resized(self._spec, self._count)
        return moved_axis(self._provider, rows, at)


def empty_rows(
    provider: Provider,
    port: Port,
    axis: int,
    operand: str,
    symbols: Mapping[str, int],
    whole: ValueType | None,
) -> Array:
    """What a scan output is after no iterations: of the declared type, with extent 0 along `axis`.

    `symbols`: extents that are known by name; other unknown extents are 0. `whole`: the type that the graph declares of
    the stacked output, for a body's output without a type of its own.
    Raises: UnsupportedError where nothing tells the dtype; KernelError for an axis out of range.
    """
    declared = port.type if isinstance(port.type, TensorType) else TensorType(None)
    dtype, shape = declared.dtype, declared.shape
    if isinstance(whole, TensorType):
        dtype = whole.dtype if dtype is None else dtype
        if shape is None and whole.shape is not None:
            at = axis_in(axis, len(whole.shape), operand, port.name)
            shape = whole.shape[:at] + whole.shape[at + 1 :]
    if dtype is None:
        raise UnsupportedError(
            f"a loop of no iterations needs the declared type of scan output {port.name!r}", operand=port.name
        )
    extents = [d if isinstance(d, int) else symbols.get(d or "", 0) for d in shape or ()]
    extents.insert(axis_in(axis, len(extents) + 1, operand, port.name), 0)
    return provider.upload(np.empty(extents, numpy_dtype(dtype)))


def symbols_of(body: Program, values: Sequence[Any]) -> dict[str, int]:
    """The extents that the declared types of the body's inputs name, as `values` (arrays or shapes) show them.

    What two inputs disagree about is left out: it changes between iterations.
    """
    found: dict[str, int] = {}
    torn: set[str] = set()
    for port, value in zip(body.inputs, values, strict=False):
        shape = value if isinstance(value, tuple) else getattr(value, "shape", None)
        if shape is None or not isinstance(port.type, TensorType) or port.type.shape is None:
            continue
        for dim, extent in zip(port.type.shape, shape, strict=False):
            if isinstance(dim, str) and found.setdefault(dim, extent) != extent:
                torn.add(dim)
    return {dim: extent for dim, extent in found.items() if dim not in torn}
