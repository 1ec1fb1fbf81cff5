"""What a caller may feed: each input is checked against the model's declaration before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from hetero.errors import InputError
from hetero.program.guards import guards_for
from hetero.program.program import Port
from hetero.shapes.guards import GuardChecker
from hetero.shapes.obligations import Obligations
from hetero.types import (
    STRING,
    DataType,
    HostArray,
    MapType,
    MapValue,
    OptionalType,
    RemoteElement,
    SequenceType,
    SequenceValue,
    TensorType,
    ValueType,
    numpy_dtype,
)

_NONE: Mapping[str, tuple[int, ...]] = {}
_ARRAY = np.ndarray
"""Without a look into numpy's names, which costs a step that begins with cold caches 2 µs."""


class Feeds:
    """Checks feeds for one model. Accepted: arrays of the declared dtype, of any strides, read-only, zero-size or 0-d;
    Python numbers, and nested lists of them; str in place of object arrays; lists for sequences; dicts for maps; None
    for optionals.
    """

    def __init__(
        self,
        inputs: Sequence[Port],
        defaulted: Collection[str] = (),
        obligations: Obligations | None = None,
    ) -> None:
        """`defaulted`: inputs that the model gives a value itself, and which are constants here. `obligations`: what
        the operators behind the inputs demand of their extents."""
        self._defaulted = frozenset(defaulted)
        self._inputs = {p.name: p.type for p in inputs}
        self._usual = {name: _usual(type_) for name, type_ in self._inputs.items()}
        self._guards = GuardChecker(guards_for(inputs))
        self._obligations = obligations
        self._last: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...] | None = None
        """Name, dtype and shape of each of the last feeds, where these are arrays that were taken as they are."""

    def check(
        self, feeds: Mapping[str, Any], resident: Mapping[str, tuple[int, ...]] = _NONE
    ) -> dict[str, Any]:
        """The feeds as values (arrays are the caller's own where possible, not copies).

        `resident`: inputs that are not fed, with their shapes; of these nothing else is checked.
        Raises: InputError naming the input, what was expected and what came; GuardError where two extents that share
        a symbol disagree, or a shape that follows from them contradicts an operator or what the model declares.
        """
        last = self._last
        if last is not None and not resident and type(feeds) is dict and len(feeds) == len(last):
            for name, dtype, shape in last:
                value = feeds.get(name)
                if value.__class__ is not _ARRAY or value.dtype is not dtype or value.shape != shape:
                    break
            else:  # what was found of feeds like these holds
                return feeds.copy()
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            raise InputError(f"feeds must be a dict of input names to arrays, not {type(feeds).__name__}")
        if (feeds.keys() | resident.keys() if resident else feeds.keys()) != self._inputs.keys():
            self._names({**feeds, **resident})
        values: dict[str, Any] = {}
        shapes = dict(resident)
        for name, type_ in self._inputs.items():
            if name in shapes:
                continue
            value = feeds[name]
            usual = self._usual[name]
            if usual is None or value.__class__ is not np.ndarray or not _fits(usual, value):
                value = self._value(name, type_, value)
            values[name] = value
            if value.__class__ is np.ndarray:
                shapes[name] = value.shape
        self._guards.check(shapes)
        if self._obligations is not None:
            self._obligations.check(shapes)
        if not resident and all(self._usual.values()) and all(values[n] is v for n, v in feeds.items()):
            self._last = tuple((name, value.dtype, value.shape) for name, value in values.items())
        return values

    def _names(self, feeds: Mapping[str, Any]) -> None:
        missing = [f"{n!r} ({t})" for n, t in self._inputs.items() if n not in feeds and not _omissible(t)]
        extra = [repr(n) for n in feeds if n not in self._inputs and n not in self._defaulted]
        fixed = [repr(n) for n in feeds if n in self._defaulted]
        problems = []
        if missing:
            problems.append("missing " + ", ".join(missing))
        if extra:
            problems.append("unknown " + ", ".join(extra))
        if fixed:
            problems.append(f"{', '.join(fixed)} set by the model itself, and constant")
        if not problems:
            raise InputError(
                f"optional inputs must be given as None: {sorted(self._inputs.keys() - feeds.keys())}"
            )
        raise InputError(f"{'; '.join(problems)}; the model's inputs are {list(self._inputs)}")

    def _value(self, name: str, type_: ValueType | None, value: Any) -> Any:
        if isinstance(type_, OptionalType):
            return None if value is None else self._value(name, type_.element, value)
        if isinstance(type_, SequenceType):
            return self._sequence(name, type_, value)
        if isinstance(type_, MapType):
            return mapping(name, type_, value)
        type_ = type_ if isinstance(type_, TensorType) else TensorType(None)
        if isinstance(value, RemoteElement):
            _check(name, type_, value)
            return value
        return tensor(name, type_, value)

    def _sequence(self, name: str, type_: SequenceType, value: Any) -> SequenceValue:
        if not isinstance(value, list | tuple | SequenceValue):
            raise InputError(f"input {name!r} must be {type_}, not {type(value).__name__}", operand=name)
        handles = value.elements if isinstance(value, SequenceValue) else value
        elements = [self._value(f"{name}[{k}]", type_.element, v) for k, v in enumerate(handles)]
        inner = type_.element
        dtype = (
            numpy_dtype(inner.dtype) if isinstance(inner, TensorType) and inner.dtype is not None else None
        )
        return SequenceValue(elements, dtype)


Usual: TypeAlias = tuple[np.dtype[Any], int, tuple[tuple[int, int], ...]]
"""dtype, rank, and the axes whose extents are numbers with these."""


def _usual(type_: ValueType | None) -> Usual | None:
    """What an array has that is fed as it is, without a closer look; None where each takes one."""
    if not isinstance(type_, TensorType) or type_.dtype is None or type_.shape is None:
        return None
    dtype = numpy_dtype(type_.dtype)
    if dtype == STRING:
        return None
    fixed = [(axis, extent) for axis, extent in enumerate(type_.shape) if isinstance(extent, int)]
    return dtype, len(type_.shape), tuple(fixed)


def _fits(usual: Usual, value: HostArray) -> bool:
    dtype, rank, fixed = usual
    shape = value.shape
    if value.dtype != dtype or len(shape) != rank:
        return False
    for axis, extent in fixed:  # noqa: SIM110 - half the time of all() and a generator
        if shape[axis] != extent:
            return False
    return True


def _omissible(type_: ValueType | None) -> bool:
    return isinstance(type_, OptionalType)


def mapping(name: str, type_: MapType, value: Any) -> MapValue:
    """`value`, a mapping of integers or texts to numbers or texts, as a map of `type_`. Raises: InputError."""
    if not isinstance(value, Mapping):
        raise InputError(f"input {name!r} must be {type_}, not {type(value).__name__}", operand=name)
    texts = type_.key is DataType.STRING
    for key in value:
        if not isinstance(key, str if texts else int | np.integer) or isinstance(key, bool):
            raise InputError(f"input {name!r} must be {type_}, but has the key {key!r}", operand=name)
    keys = list(value) if texts else list(map(int, value))
    scalar = TensorType(type_.value.dtype, (len(keys),))
    held = tensor(name, scalar, list(value.values()) if keys else [])
    return MapValue(zip(keys, held.tolist(), strict=True), held.dtype)


def tensor(name: str, type_: TensorType, value: Any) -> HostArray:
    """`value` as an array of `type_`. Raises: InputError."""
    expected = None if type_.dtype is None else numpy_dtype(type_.dtype)
    array = _array(name, type_, expected, value)
    _check(name, type_, array)
    return array


def _check(name: str, type_: TensorType, array: HostArray | RemoteElement) -> None:
    """Raises: InputError where the dtype or the shape is not of `type_`."""
    expected = None if type_.dtype is None else numpy_dtype(type_.dtype)
    if expected is not None and array.dtype != expected:
        came = f"{array.dtype.str} (byte-swapped)" if not array.dtype.isnative else str(array.dtype)
        raise InputError(f"input {name!r} must be {type_}, but is {came}{list(array.shape)}", operand=name)
    shape = type_.shape
    if shape is not None:
        if len(shape) != len(array.shape):
            raise InputError(
                f"input {name!r} must be {type_} (rank {len(shape)}), but is {array.dtype}{list(array.shape)}"
                f" (rank {len(array.shape)})",
                operand=name,
            )
        for axis, (want, have) in enumerate(zip(shape, array.shape, strict=True)):
            if isinstance(want, int) and want != have:
                raise InputError(
                    f"input {name!r} must be {type_}, but is {array.dtype}{list(array.shape)}: "
                    f"axis {axis} must be {want}, not {have}",
                    operand=name,
                )


def _array(name: str, type_: TensorType, expected: np.dtype[Any] | None, value: Any) -> HostArray:
    text = type_.dtype is DataType.STRING
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
        return _array(name, type_, expected, _plain(name, type_, value))
    if isinstance(value, np.ndarray):
        if text and value.dtype.kind in "UT":
            return value.astype(object)
        if text and value.dtype == STRING:
            return _texts(name, type_, value)
        if value.dtype == STRING or value.dtype.kind in "MmVUST":
            if value.dtype == expected:
                return value  # ml_dtypes' narrow types are of kind V
            raise InputError(
                f"input {name!r} must be {type_}, but is an array of {_describe(value)}", operand=name
            )
        return value
    if isinstance(value, np.generic):
        return _array(name, type_, expected, np.asarray(value))
    if value is None or (isinstance(value, str) and not text):
        raise InputError(f"input {name!r} must be {type_}, not {value!r}", operand=name)
    if isinstance(value, str | int | float | bool | complex | list | tuple):
        return _from_python(name, type_, expected, value)
    if hasattr(value, "__array__"):
        try:
            converted = np.asarray(value)
        except Exception as cause:  # whatever the object's own code raises
            raise InputError(
                f"input {name!r} must be {type_}; the {type(value).__name__} given does not convert: {cause}",
                operand=name,
            ) from cause
        return _array(name, type_, expected, converted)
    raise InputError(f"input {name!r} must be {type_}, not {type(value).__name__}", operand=name)


def _plain(name: str, type_: TensorType, value: HostArray) -> HostArray:
    """A subclass's elements: kernels index and reshape, which np.matrix and its like do in ways of their own."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(f"input {name!r} must be {type_}, not an array with masked elements", operand=name)
    return value.view(np.ndarray)


def _texts(name: str, type_: TensorType, value: HostArray) -> HostArray:
    for element in value.flat:
        if not isinstance(element, str):
            raise InputError(
                f"input {name!r} must be {type_}, but holds an element of type {type(element).__name__}",
                operand=name,
            )
    return value


def _from_python(name: str, type_: TensorType, expected: np.dtype[Any] | None, value: Any) -> HostArray:
    try:
        if type_.dtype is DataType.STRING:
            return _texts(name, type_, np.array(value, dtype=object))
        plain = np.array(value)
        if expected is None or plain.dtype == expected:
            return plain
        kinds = {"b": "b", "i": "biuf", "f": "f", "c": "c"}.get(plain.dtype.kind, "")
        if plain.size == 0 or expected.kind in kinds or (expected.kind == "V" and plain.dtype.kind in "if"):
            with np.errstate(all="ignore"):
                converted = plain.astype(expected)
                back = converted.astype(plain.dtype)
            fits = np.array_equal(back, plain) if plain.dtype.kind == "i" else not _overflows(plain, back)
            if fits:
                return converted
    except (ValueError, TypeError, OverflowError) as cause:
        raise InputError(f"input {name!r} must be {type_}: {cause}", operand=name) from cause
    raise InputError(
        f"input {name!r} must be {type_}; the Python value given does not convert without loss", operand=name
    )


def _overflows(plain: HostArray, back: HostArray) -> bool:
    """Whether a finite number of `plain` became infinite; rounding is what a narrower float means."""
    return plain.dtype.kind == "f" and bool((np.isfinite(plain) & ~np.isfinite(back)).any())


def _describe(value: HostArray) -> str:
    return f"{'objects' if value.dtype == STRING else value.dtype}{list(value.shape)}"
