"""What a verb feeds a model: files, and random numbers of the declared dtypes where none is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from hetero.errors import OptionError
from hetero.program.program import Port
from hetero.shapes.expression import evaluate, is_symbol
from hetero.types import (
    STRING,
    DataType,
    Dim,
    HostArray,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    ValueType,
    numpy_dtype,
)

_SINGLE = frozenset({"batch", "batch_size", "batchsize", "n", "b"})
"""Symbols that are 1 unless something else is asked for: the model is then run on one example."""
_NARROW_FLOATS = (ml_dtypes.bfloat16,)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller says of the inputs: files, shapes and fills by input name, extents by symbol."""

    files: Mapping[str, Path] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    extents: Mapping[str, int] = field(default_factory=dict)
    fills: Mapping[str, float] = field(default_factory=dict)
    """Every element of such an input is this number."""


def asked(
    inputs: Sequence[str], shapes: Sequence[str], dims: Sequence[str], fills: Sequence[str] = ()
) -> Asked:
    """Parse the options --input name=file.npy, --shape name=1x3x224, --dim symbol=4 and --fill name=16000.

    Raises: OptionError.
    """
    files = {name: Path(text) for name, text in _pairs("--input", inputs, "x=x.npy")}
    given = {
        name: tuple(_extent("--shape", name, part) for part in text.lower().split("x") if text != "scalar")
        for name, text in _pairs("--shape", shapes, "x=1x3x224x224")
    }
    extents = {name: _extent("--dim", name, text) for name, text in _pairs("--dim", dims, "batch=4")}
    numbers = {name: _number(name, text) for name, text in _pairs("--fill", fills, "rate=16000")}
    for option, others in (("--shape", given.keys()), ("--fill", numbers.keys())):
        both = sorted(files.keys() & others)
        if both:
            raise OptionError(f"--input {both[0]} and {option} {both[0]} exclude each other", operand=both[0])
    return Asked(files, given, extents, numbers)


def feeds(ports: Sequence[Port], wish: Asked, seed: int) -> dict[str, Any]:
    """A value for every input: its file, or else numbers drawn for its dtype.

    Floats are drawn from the standard normal distribution, uint8 and int8 from all they hold, wider integers from 0 and
    1 (indices and masks of any model), single ones are 1.
    Raises: OptionError naming the input whose shape is not known, and the option that says it; OSError.
    """
    names = [p.name for p in ports]
    for option, known in (("--input", wish.files), ("--shape", wish.shapes), ("--fill", wish.fills)):
        for name in known:
            if name not in names:
                raise OptionError(f"{option} {name}: the model's inputs are {names}", operand=name)
    values: dict[str, Any] = {name: _load(name, path) for name, path in wish.files.items()}
    shapes = {**wish.shapes, **{name: tuple(v.shape) for name, v in values.items()}}
    extents = _extents(ports, shapes, wish.extents)
    rng = np.random.default_rng(seed)
    for port in ports:
        if port.name not in values:
            drawn = _draw(port.name, port.type, shapes.get(port.name), extents, rng)
            values[port.name] = (
                _filled(port.name, drawn, wish.fills[port.name]) if port.name in wish.fills else drawn
            )
    return {name: values[name] for name in names}


def _pairs(option: str, texts: Sequence[str], example: str) -> list[tuple[str, str]]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")  # names may hold one, files rarely do
        if not (name and equals and value):
            raise OptionError(f"{option} {text!r} must be like {option} {example}")
        if name in pairs:
            raise OptionError(f"{option} {name} is given twice", operand=name)
        pairs[name] = value
    return list(pairs.items())


def _extent(option: str, name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise OptionError(f"{option} {name}: {text!r} is no extent (a number of 0 or more)", operand=name)
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError as cause:
            raise OptionError(f"--fill {name}: {text!r} is no number", operand=name) from cause


def _filled(name: str, drawn: Any, number: float) -> HostArray:
    """An array like `drawn`, of this number. Raises: OptionError where its dtype does not hold the number."""
    if not isinstance(drawn, np.ndarray) or drawn.dtype == STRING:
        raise OptionError(f"--fill {name}: the input is no array of numbers", operand=name)
    try:
        with np.errstate(all="ignore"):
            one = np.asarray(number).astype(drawn.dtype)
    except OverflowError as cause:
        raise OptionError(f"--fill {name}: {drawn.dtype} does not hold {number}", operand=name) from cause
    if drawn.dtype.kind in "iu" and int(one) != number:
        raise OptionError(f"--fill {name}: {drawn.dtype} does not hold {number}", operand=name)
    return np.full(drawn.shape, one)


def _load(name: str, path: Path) -> HostArray:
    try:
        loaded = np.load(path, allow_pickle=False)
    except ValueError as cause:
        raise OptionError(f"--input {name}: {path} is no .npy file: {cause}", operand=name) from cause
    except EOFError as cause:
        raise OptionError(f"--input {name}: {path} is empty", operand=name) from cause
    if not isinstance(loaded, np.ndarray):
        loaded.close()
        raise OptionError(f"--input {name}: {path} holds several arrays; give a .npy file", operand=name)
    return loaded


def _extents(
    ports: Sequence[Port], shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, int]
) -> dict[str, int]:
    """An extent for each symbol that --dim, a shape or a file says, or that names a batch."""
    extents = dict(given)
    declared = {p.name: p.type.shape for p in ports if isinstance(p.type, TensorType) and p.type.shape}
    used = {d for shape in declared.values() for d in shape if isinstance(d, str)}
    for name, shape in shapes.items():
        for dim, extent in zip(declared.get(name, ()), shape, strict=False):
            if isinstance(dim, str) and is_symbol(dim):
                extents.setdefault(dim, extent)
    for symbol in used:
        if symbol.lower() in _SINGLE:
            extents.setdefault(symbol, 1)
    return extents


def _draw(
    name: str,
    type_: ValueType | None,
    shape: tuple[int, ...] | None,
    extents: Mapping[str, int],
    rng: np.random.Generator,
) -> Any:
    if isinstance(type_, OptionalType):
        return None
    if isinstance(type_, SequenceType):
        return [_draw(name, type_.element, shape, extents, rng) for _ in range(2)]
    if isinstance(type_, MapType):
        keys = ["a", "b"] if type_.key == DataType.STRING else [0, 1]
        dtype = DataType.FLOAT if type_.value.dtype is None else type_.value.dtype
        return dict(zip(keys, _numbers(dtype, (2,), rng).tolist(), strict=True))
    if type_ is None or type_.dtype is None:
        raise OptionError(
            f"input {name!r} has no declared dtype; give it a value: --input {name}=file.npy", operand=name
        )
    return _numbers(type_.dtype, _shape(name, type_, extents) if shape is None else shape, rng)


def _shape(name: str, type_: TensorType, extents: Mapping[str, int]) -> tuple[int, ...]:
    if type_.shape is None:
        raise OptionError(f"input {name!r} is {type_}: say its shape with --shape {name}=1x2x3", operand=name)
    found = [evaluate(dim, extents) for dim in type_.shape]
    for axis, (dim, extent) in enumerate(zip(type_.shape, found, strict=True)):
        if extent is None:
            raise OptionError(
                f"input {name!r} is {type_}: axis {axis} has no extent; give it with {_remedy(name, dim, found)}",
                operand=name,
            )
    return tuple(e for e in found if e is not None)


def _remedy(name: str, dim: Dim, found: Sequence[int | None]) -> str:
    whole = f"--shape {name}={'x'.join('?' if e is None else str(e) for e in found)}"
    return f"--dim {dim}=… or {whole}" if is_symbol(dim) else whole


def _numbers(type_: DataType, shape: tuple[int, ...], rng: np.random.Generator) -> HostArray:
    dtype = numpy_dtype(type_)
    if dtype == STRING:
        texts: HostArray = np.array(["a", "b"], dtype=object)[rng.integers(0, 2, shape)]
        return np.asarray(texts, dtype=object)
    if dtype == np.bool_:
        return np.asarray(rng.integers(0, 2, shape), dtype=dtype)
    if dtype.kind == "c":
        return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape), dtype=dtype)
    if dtype.kind == "f" or dtype in _NARROW_FLOATS:
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    if dtype in (np.uint8, np.int8):
        info = np.iinfo(dtype)
        return np.asarray(rng.integers(info.min, info.max + 1, shape), dtype=dtype)
    return np.asarray(rng.integers(0, 2, shape) if shape else 1).astype(dtype)
