"""What a decoder model's inputs and outputs are for, found out from their names and shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hetero.errors import OptionError
from hetero.program.program import Port
from hetero.types import HostArray, TensorType, numpy_dtype

PASTS = ("past_key_values.", "past.")
PRESENT = "present."
IDS, LOGITS = "input_ids", "logits"

# What follows from (batch, steps in the cache, new steps) alone, and the ranks that models declare for it.
_FOLLOWING: dict[str, tuple[tuple[int, ...], Callable[[int, int, int], HostArray]]] = {
    "attention_mask": ((2,), lambda batch, past, new: np.ones((batch, past + new))),
    "position_ids": ((2,), lambda batch, past, new: np.tile(np.arange(past, past + new), (batch, 1))),
    "seqlens_k": ((1, 2), lambda batch, past, new: np.full(batch, past + new - 1)),
    "total_sequence_length": ((0, 1), lambda batch, past, new: np.array(past + new)),
    "write_indices": ((1,), lambda batch, past, new: np.full(batch, past)),
    "nonpad_kv_seqlen": ((1,), lambda batch, past, new: np.full(batch, past + new)),
}


class Signature(Protocol):
    """The inputs and outputs of a model; a `hetero.planner.plan.Plan` is one."""

    @property
    def inputs(self) -> Sequence[Port]:
        """The model's inputs, in its order."""

    @property
    def outputs(self) -> Sequence[Port]:
        """The model's outputs, in its order."""


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys or values of one layer: arrays (batch, heads, steps, size) that enter as `past` and leave as `present`."""

    past: str
    present: str
    dtype: np.dtype[Any]
    heads: int
    size: int


@dataclass(frozen=True, slots=True)
class Roles:
    """How to drive a decoder.

    capacity: steps that the caches hold where they are buffers of one size throughout; None where they grow by the new
    steps. limit: steps that a sequence may have, where that is known.
    """

    ids_dtype: np.dtype[Any]
    caches: tuple[Cache, ...]
    capacity: int | None
    limit: int | None
    vocab: int | None
    _following: tuple[tuple[str, np.dtype[Any], int], ...]

    def feeds(self, ids: HostArray, past: int) -> dict[str, HostArray]:
        """What is fed beside the caches for new tokens ids (batch, new), after `past` steps."""
        batch, new = ids.shape
        feeds = {IDS: ids.astype(self.ids_dtype)}
        for name, dtype, rank in self._following:
            value = _FOLLOWING[name][1](batch, past, new)
            feeds[name] = value.astype(dtype).reshape(value.shape + (1,) * (rank - value.ndim))
        return feeds


def roles_of(signature: Signature, max_length: int | None = None) -> Roles:
    """The roles of a decoder's inputs and outputs.

    max_length: steps that a sequence may have, and the size of the caches where they are buffers of symbolic size.
    Raises: OptionError that lists what a decoder has and this model lacks.
    """
    if max_length is not None and max_length < 1:
        raise OptionError(f"max_length must be at least 1, not {max_length}", operand="max_length")
    problems: list[str] = []
    inputs = {p.name: p.type for p in signature.inputs}
    outputs = {p.name: p.type for p in signature.outputs}
    ids = _tensor(inputs, IDS, (2,), "iu", "an integer input (batch, sequence)", problems)
    logits = _tensor(outputs, LOGITS, (3,), "fV", "a float output (batch, sequence, vocab)", problems)
    names = [n for n in inputs if n.startswith(PASTS)]
    if not names:
        problems.append("no input past_key_values.* (batch, heads, past, size)")
    found = [_cache(name, inputs, outputs, problems) for name in names]
    caches = [pair for pair in found if pair is not None]
    following = [
        (name, numpy_dtype(t.dtype), len(t.shape))
        for name, (ranks, _) in _FOLLOWING.items()
        if name in inputs
        and (t := _tensor(inputs, name, ranks, "iufbV", f"numbers of rank {ranks[0]}", problems)) is not None
        and t.dtype is not None
        and t.shape is not None
    ]
    strange = sorted(inputs.keys() - _FOLLOWING.keys() - {IDS} - set(names))
    if strange:
        problems.append(f"inputs of unknown meaning: {', '.join(strange)}")
    extents = {extent for _, extent in caches}
    if len(extents) > 1:
        problems.append(
            f"caches of different sizes: {', '.join(sorted('growing' if e is None else str(e) for e in extents))}"
        )
    extent = next(iter(extents), None)
    if isinstance(extent, str) and max_length is None:
        problems.append(f"no max_length, and the caches are buffers of symbolic size {extent!r}")
    if problems or ids is None or logits is None or ids.dtype is None or logits.shape is None:
        raise OptionError(f"the model is no decoder that can be driven: {'; '.join(problems)}", operand="ex")
    capacity = extent if isinstance(extent, int) or extent is None else max_length
    bounds = [b for b in (capacity, max_length) if b is not None]
    vocab = logits.shape[2]
    return Roles(
        numpy_dtype(ids.dtype),
        tuple(cache for cache, _ in caches),
        capacity,
        min(bounds, default=None),
        vocab if isinstance(vocab, int) else None,
        tuple(following),
    )


def _tensor(
    ports: dict[str, Any], name: str, ranks: tuple[int, ...], kinds: str, wanted: str, problems: list[str]
) -> TensorType | None:
    """The type of a value, if it is there and as wanted; dtype and rank are known then."""
    if name not in ports:
        problems.append(f"no {name!r}, {wanted}")
        return None
    type_ = ports[name]
    if (
        not isinstance(type_, TensorType)
        or type_.dtype is None
        or numpy_dtype(type_.dtype).kind not in kinds
        or type_.shape is None
        or len(type_.shape) not in ranks
    ):
        problems.append(f"{name!r} is {type_}, not {wanted}")
        return None
    return type_


def _cache(
    name: str, inputs: dict[str, Any], outputs: dict[str, Any], problems: list[str]
) -> tuple[Cache, int | str | None] | None:
    """A cache and the extent of its buffer, None where it grows."""
    wanted = "floats (batch, heads, steps, size)"
    past = _tensor(inputs, name, (4,), "fV", wanted, problems)
    suffix = next(name.removeprefix(p) for p in PASTS if name.startswith(p))
    present = _tensor(outputs, PRESENT + suffix, (4,), "fV", wanted, problems)
    if past is None or present is None or past.shape is None or present.shape is None or past.dtype is None:
        return None
    _, heads, extent, size = past.shape
    if not isinstance(heads, int) or not isinstance(size, int):
        problems.append(f"{name!r} is {past}: its heads and their size must be numbers")
        return None
    fixed = isinstance(extent, int) or (extent is not None and extent == present.shape[2])
    cache = Cache(name, PRESENT + suffix, numpy_dtype(past.dtype), heads, size)
    return cache, extent if fixed else None
