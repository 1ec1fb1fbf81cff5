"""Bound state as the executor sees it: which outputs feed which inputs of the next step, where they stay, how long they
are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetero.errors import InputError, StateError
from hetero.planner.homes import home_of, withheld
from hetero.planner.plan import Plan
from hetero.program.program import Port, has_port
from hetero.runtime.children import Children
from hetero.runtime.state import StateChange, StateSpec
from hetero.types import HostArray, TensorSpec, TensorType, numpy_dtype

FIRST_CAPACITY = 256
"""Rows that a buffer begins with where the caller names no capacity; it doubles when it is full."""
_IN_PLACE = frozenset({"com.microsoft::GroupQueryAttention"})
"""Operators that keep their past in a buffer of fixed size even where its extent is a symbol of its own."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """An input that is fed by an output. `dims`: the input's declared extents; along `axis` it grows, if it does.

    `home`: the child where it stays; None where the executor carries it. `fixed`: the buffer is handed over whole.
    """

    output: str
    dtype: np.dtype[Any]
    dims: tuple[Any, ...]
    axis: int | None
    home: int | None
    fixed: bool


class BoundState:
    """The state pairs of one executor. Steps take turns: the executor holds a lock around `feeds` to `took`.

    A pair whose input is read on the child that makes its output, in every variant of the plan, stays there, and grows
    in place. Others are carried by the executor from step to step, like any output that is fed back. Where the plan
    changes, what stayed on a child stays on one, maybe another.
    """

    def __init__(
        self,
        planned: Callable[[], Plan],
        children: Children,
        pairs: Mapping[str, str],
        capacity: int | None,
    ) -> None:
        """`planned`: the plan as it is. `capacity`: rows of the buffers that grow, and any other extent that follows
        from no feed.

        Raises: StateError for names that are no input or output, or whose types do not go together."""
        self._planned, self._children, self._capacity = planned, children, capacity
        self._plan = plan = planned()
        inputs, outputs = {p.name: p for p in plan.inputs}, {p.name: p for p in plan.outputs}
        self._pairs: dict[str, _Pair] = {}
        for name, made in pairs.items():
            if name not in inputs or made not in outputs:
                unknown, known = (name, list(inputs)) if name not in inputs else (made, list(outputs))
                raise StateError(f"no such value; the model has {known}", operand=unknown)
            self._pairs[name] = self._pair(inputs[name], outputs[made])
        if len(set(pairs.values())) != len(pairs):
            raise StateError(f"an output feeds two inputs: {sorted(pairs.values())}")
        self.outputs = frozenset(pairs.values())
        self._symbols: dict[str, int] | None = None
        self._holds_values = False
        self._allocated: dict[str, int] | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._carried: dict[str, HostArray] = {}

    @property
    def inputs(self) -> frozenset[str]:
        """Names of the inputs that need no feed."""
        return frozenset(self._pairs)

    @property
    def resident_pairs(self) -> dict[str, str]:
        """Input -> output of what stays on a child."""
        return {name: pair.output for name, pair in self._pairs.items() if pair.home is not None}

    @property
    def length(self) -> int:
        """Rows of the states that grow; 0 where none does."""
        if self._symbols is None:  # bound or reset, and no step since
            return 0
        return max((self._shapes[n][a] for n, a in self._axes().items()), default=0)

    # -- steps ---------------------------------------------------------------------------------------------------
    def feeds(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """`feeds` and the states that are carried from step to step; the others are `resident`.

        Raises: InputError for a feed that is bound; StateError where an extent that the states share (a batch size) is
        another one than that of the values that they hold.
        """
        bound = sorted(self._pairs.keys() & feeds.keys())
        if bound:
            raise InputError(
                f"{bound} are bound as state and cannot be fed; write_state sets them", operand=bound[0]
            )
        symbols = self._symbols_of(feeds)
        held = self._symbols
        other = {} if held is None else {k: n for k, n in held.items() if symbols.get(k, n) != n}
        if other and self._holds_values:
            one, extent = next(iter(other.items()))
            raise StateError(
                f"the state holds values for {one} = {extent}, and the feeds have {one} = {symbols[one]}; "
                "reset_state() begins a new one"
            )
        if held is None or other:
            self._begin(symbols)
        return {**feeds, **self._carried}

    def resident(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the states that lie on their child, by input name."""
        return {name: self._shapes[name] for name, pair in self._pairs.items() if pair.home is not None}

    def took(self, values: Mapping[str, Any]) -> None:
        """A step succeeded with these outputs."""
        self._holds_values = True
        for name, pair in self._pairs.items():
            value = values[pair.output]
            self._shapes[name] = tuple(value.shape)
            if pair.home is None:
                self._carried[name] = value

    # -- between steps -------------------------------------------------------------------------------------------
    def rewind(self, length: int) -> None:
        """Forget rows from `length` on. Raises: StateError where there are fewer."""
        if not 0 <= length <= self.length:
            raise StateError(f"the state has {self.length} rows, and cannot go back to {length}")
        if self._symbols is None:
            return  # no step was made since it was bound or reset: there is no row to forget
        self._change(StateChange(length=length))
        for name, axis in self._axes().items():
            shape = self._shapes[name]
            self._shapes[name] = (*shape[:axis], length, *shape[axis + 1 :])
            if name in self._carried:
                self._carried[name] = self._carried[name][(*[slice(None)] * axis, slice(0, length))]

    def reset(self) -> None:
        """Begin anew at the next step, which may have other extents."""
        self._symbols = None

    def read(self) -> dict[str, HostArray]:
        """Copies of all states, by input name; none before the first step."""
        if self._symbols is None:
            return {}
        found = self._change(StateChange(read=True))
        return {**found, **{name: np.array(value) for name, value in self._carried.items()}}

    def write(self, values: Mapping[str, HostArray]) -> None:
        """Set states, by input name; the others begin anew. Raises: StateError for unknown names, dtypes and shapes."""
        unknown = sorted(values.keys() - self._pairs.keys())
        if unknown:
            raise StateError(f"is not bound as state; these are: {sorted(self._pairs)}", operand=unknown[0])
        arrays = {name: np.asarray(value) for name, value in values.items()}
        symbols: dict[str, int] = {}
        for name, array in arrays.items():
            pair = self._pairs[name]
            if array.dtype != pair.dtype or array.ndim != len(pair.dims):
                raise StateError(
                    f"must be {_text(pair)}, but is {array.dtype}{list(array.shape)}", operand=name
                )
            sizes = zip(pair.dims, array.shape, strict=True)
            symbols |= {d: n for k, (d, n) in enumerate(sizes) if isinstance(d, str) and k != pair.axis}
        self._begin(symbols)
        self._change(StateChange(values={n: a for n, a in arrays.items() if self._pairs[n].home is not None}))
        self._holds_values = True
        for name, array in arrays.items():
            self._shapes[name] = array.shape
            if self._pairs[name].home is None:
                self._carried[name] = array.copy()

    # -- helpers -------------------------------------------------------------------------------------------------
    def _begin(self, symbols: Mapping[str, int]) -> None:
        """Allocate all states for these extents, empty; those that do not grow hold zeros."""
        self._symbols = None
        specs: list[StateSpec] = []
        shapes: dict[str, tuple[int, ...]] = {}
        shared: dict[str, int] = {}
        carried: dict[str, HostArray] = {}
        for name, pair in self._pairs.items():
            shape = []
            for k, dim in enumerate(pair.dims):
                if k == pair.axis:
                    shape.append(0)
                elif not isinstance(dim, str):
                    shape.append(int(dim))
                else:
                    extent = symbols.get(dim, self._capacity)
                    if extent is None:
                        raise StateError(f"extent {dim!r} of axis {k} follows from no feed", operand=name)
                    shared[dim] = extent
                    shape.append(extent)
            full = list(shape)
            if pair.axis is not None:
                full[pair.axis] = self._capacity or FIRST_CAPACITY
            shapes[name] = tuple(full if pair.fixed else shape)
            if pair.home is None:
                carried[name] = np.zeros(shapes[name], pair.dtype)
                continue
            axis = None if pair.fixed else pair.axis
            elastic = axis is not None and self._capacity is None
            specs.append(StateSpec(name, pair.output, TensorSpec(pair.dtype, tuple(full)), axis, elastic))
        if shared == self._allocated:
            self._change(StateChange(reset=True))
        else:
            self._allocated = None
            self._children.placed(lambda: self._bind(specs))
            self._allocated = shared
        self._shapes, self._carried, self._symbols = shapes, carried, shared
        self._holds_values = False

    def _bind(self, specs: Sequence[StateSpec]) -> None:
        homes = self._homes()
        for child in sorted(set(homes.values())):
            wanted = [s for s in specs if homes[s.input] == child]
            self._children.bind_state(child, wanted, withheld(self._plan, {s.output for s in wanted}))

    def _change(self, change: StateChange) -> dict[str, HostArray]:
        def at_home() -> dict[str, HostArray]:
            found: dict[str, HostArray] = {}
            for child in sorted(set(self._homes().values())):
                found |= self._children.change_state(child, change)
            return found

        return self._children.placed(at_home)

    def _homes(self) -> dict[str, int]:
        """The child of each state that stays on one, under the present plan."""
        if self._planned() is not self._plan:
            self._plan = self._planned()
            for name, pair in self._pairs.items():
                if pair.home is not None:
                    self._pairs[name] = replace(pair, home=home_of(self._plan, name, pair.output))
        return {name: pair.home for name, pair in self._pairs.items() if pair.home is not None}

    def _pair(self, port: Port, out: Port) -> _Pair:
        """Raises: StateError where one of both is no tensor of declared shape, or they do not go together."""
        types = port.type, out.type
        for where, type_ in zip((port.name, out.name), types, strict=True):
            if not isinstance(type_, TensorType) or type_.dtype is None or None in (type_.shape or (None,)):
                raise StateError(f"must be a tensor of declared dtype and shape, not {type_}", operand=where)
        (old, dims), (new, made) = [(t.dtype, t.shape or ()) for t in types if isinstance(t, TensorType)]
        differing = [k for k, (m, n) in enumerate(zip(dims, made, strict=False)) if m != n]
        grows = bool(differing)
        mismatch = old != new or len(dims) != len(made) or len(differing) > 1
        if old is None or mismatch or (grows and not isinstance(dims[differing[0]], str)):
            raise StateError(f"{out.name} ({types[1]}) cannot be the next {types[0]}", operand=port.name)
        home = home_of(self._plan, port.name, out.name)
        axis = differing[0] if grows else None
        return _Pair(out.name, numpy_dtype(old), dims, axis, home, grows and self._is_fixed(out.name))

    def _is_fixed(self, made: str) -> bool:
        """Whether the output comes from an operator that keeps its past in a buffer of fixed size."""
        partitions = (p for section in self._plan.sections for p in section.partitions)
        maker = next((p for p in partitions if has_port(p.program.outputs, made)), None)
        if maker is None or self._capacity is None:
            return False
        slot = next(p.slot for p in maker.program.outputs if p.name == made)
        return any(slot in i.outputs and i.op.id in _IN_PLACE for i in maker.program.instructions)

    def _axes(self) -> dict[str, int]:
        return {n: p.axis for n, p in self._pairs.items() if p.axis is not None and not p.fixed}

    def _symbols_of(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """The extents that the feeds give to symbols."""
        symbols: dict[str, int] = {}
        for port in self._plan.inputs:
            if port.name in feeds and isinstance(port.type, TensorType) and port.type.shape is not None:
                shape = np.shape(feeds[port.name])
                if len(shape) == len(port.type.shape):
                    symbols |= {
                        d: n for d, n in zip(port.type.shape, shape, strict=True) if isinstance(d, str)
                    }
        return symbols


def _text(pair: _Pair) -> str:
    return f"{pair.dtype}[{', '.join(map(str, pair.dims))}]"
