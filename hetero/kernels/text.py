"""Operators on strings: StringConcat, StringSplit, StringNormalizer, RegexFullMatch. On the host only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, dynamic, kernel, tensor
from hetero.kernels.broadcasting import BOOL, broadcast
from hetero.kernels.operands import fail, text_of
from hetero.kernels.prepared import once
from hetero.kernels.regex import compiled
from hetero.program.operation import Operation
from hetero.types import STRING, Array, HostArray, Spec, TensorSpec

INT64 = np.dtype(np.int64)
REASON = "strings"
_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


def strings(op: Operation, specs: Sequence[Spec], index: int = 0) -> TensorSpec:
    """Input `index` as a tensor of strings. Raises: KernelError for another dtype."""
    spec = tensor(op, specs, index)
    if spec.dtype != STRING:
        fail(op, f"must hold strings, is {spec}")
    return spec


def texts(listed: Sequence[Any]) -> list[str]:
    """An attribute of strings as str, readable where the model's bytes are not UTF-8."""
    return [t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in listed]


@kernel("StringConcat", versions=(20,), portable=False, strided=True)
def string_concat(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, Y -> X + Y element by element, broadcast."""
    x, y = strings(op, specs, 0), strings(op, specs, 1)
    output = TensorSpec(STRING, broadcast(op, x, y))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        def call() -> None:
            np.add(inputs[0], inputs[1], outputs[0])

        return call

    return computed([output], bind, capture=REASON)


@kernel("RegexFullMatch", versions=(20,), portable=False, strided=True)
def regex_full_match(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> whether the pattern matches each whole element."""
    x = strings(op, specs)
    prepared = once(op, lambda op: compiled(op, text_of(op, "pattern", ""), "pattern"))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        matches = prepared.value.fullmatch

        def call() -> None:
            found = [matches(text) is not None for text in inputs[0].reshape(-1).tolist()]
            outputs[0][...] = np.asarray(found, bool).reshape(x.shape)

        return call

    return computed([TensorSpec(BOOL, x.shape)], bind, capture=REASON)


def padded(rows: Sequence[Sequence[str]], shape: tuple[int, ...], pad: str) -> HostArray:
    """`rows`, one for each element of `shape`, as an array with one axis more, as long as the longest row."""
    width = max(map(len, rows), default=0)
    found = np.full((len(rows), width), pad, STRING)
    for k, row in enumerate(rows):
        found[k, : len(row)] = row
    return found.reshape((*shape, width))


@kernel("StringSplit", versions=(20,), portable=False, strided=True)
def string_split(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> its elements' parts along a new axis, padded with "", and how many each has (int64).

    Parts are what stands between occurrences of `delimiter`, or between runs of white space where that is empty; at
    most `maxsplit` splits are made. An empty element has no parts.
    """
    x = strings(op, specs)
    delimiter = text_of(op, "delimiter", "")
    limit: int = op.attr("maxsplit", -1)

    def run(inputs: Sequence[Any]) -> tuple[Array | None, ...]:
        rows = [
            (text.split(delimiter, limit) if text else []) if delimiter else text.split(None, limit)
            for text in inputs[0].reshape(-1).tolist()
        ]
        counts = np.asarray([len(row) for row in rows], INT64).reshape(x.shape)
        found = (padded(rows, x.shape, ""), counts)
        return tuple(v if p else None for v, p in zip(found, op.present_outputs, strict=False))

    return dynamic(run)


@kernel("StringNormalizer", versions=(10,), portable=False, strided=True)
def string_normalizer(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X [n] or [1, n] -> its elements without stop words, in upper or lower case; one "" where none is left.

    Case follows Unicode, whatever the locale. Stop words count in any case unless `is_case_sensitive`.
    """
    x = strings(op, specs)
    if len(x.shape) not in (1, 2) or (len(x.shape) == 2 and x.shape[0] != 1):
        fail(op, f"must be [n] or [1, n], has shape {list(x.shape)}", "X")
    action = text_of(op, "case_change_action", "NONE")
    if action not in _CASES:
        fail(op, f"{action!r} is none of {list(_CASES)}", "case_change_action")
    change = _CASES[action]
    key: Callable[[str], str] = str if op.attr("is_case_sensitive", 0) else str.lower
    stop = frozenset(key(word) for word in texts(op.attr("stopwords", ())))

    def run(inputs: Sequence[Any]) -> tuple[HostArray]:
        kept = [change(text) for text in inputs[0].reshape(-1).tolist() if not stop or key(text) not in stop]
        found = np.full(max(1, len(kept)), "", STRING)
        found[: len(kept)] = kept
        return (found if len(x.shape) == 1 else found.reshape(1, -1),)

    return dynamic(run)
