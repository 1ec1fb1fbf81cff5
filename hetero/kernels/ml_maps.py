"""ai.onnx.ml's operators over maps, which live on the host: ZipMap, DictVectorizer, CastMap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.errors import KernelError
from hetero.kernels.base import Compiled, dynamic, kernel, tensor
from hetero.kernels.limits import bounded
from hetero.kernels.ml_scores import FLOAT32, INT64, labels_of
from hetero.kernels.operands import fail, text_of, zero_of
from hetero.program.operation import Operation
from hetero.types import STRING, HostArray, MapSpec, MapValue, SequenceValue, Spec

REASON = "maps change from step to step"
_CASTS = {"TO_FLOAT": FLOAT32, "TO_STRING": STRING, "TO_INT64": INT64}


def _map(op: Operation, specs: Sequence[Spec]) -> MapSpec:
    spec = specs[0] if specs else None
    if not isinstance(spec, MapSpec):
        fail(op, "must be a map", "X")
    return spec


@kernel("ZipMap", domain="ai.onnx.ml", versions=(1,), portable=False, strided=True)
def zip_map(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X [rows, classes] (or one row) -> a sequence of a map per row, from the class labels to float32 values."""
    x = tensor(op, specs, 0)
    labels = labels_of(op, "classlabels_int64s", "classlabels_strings").tolist()
    if len(x.shape) not in (1, 2) or x.shape[-1] != len(labels):
        fail(op, f"of shape {list(x.shape)} for {len(labels)} labels", "X")

    def run(inputs: Sequence[Any]) -> tuple[SequenceValue]:
        rows = inputs[0].reshape(-1, len(labels)).tolist()
        return (SequenceValue([MapValue(zip(labels, row, strict=True), x.dtype) for row in rows]),)

    return dynamic(run, capture=REASON)


@kernel("DictVectorizer", domain="ai.onnx.ml", versions=(1,), portable=False, strided=True)
def dict_vectorizer(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A map -> [1, n] of its values for the n keys of the vocabulary; 0 or "" where the map lacks one."""
    dtype = _map(op, specs).dtype
    vocabulary = labels_of(op, "int64_vocabulary", "string_vocabulary").tolist()
    blank = zero_of(dtype)

    def run(inputs: Sequence[Any]) -> tuple[HostArray]:
        found = np.empty((1, len(vocabulary)), dtype)
        found[0, :] = [inputs[0].get(key, blank) for key in vocabulary]
        return (found,)

    return dynamic(run, capture=REASON)


@kernel("CastMap", domain="ai.onnx.ml", versions=(1,), portable=False, strided=True)
def cast_map(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A map from int64 -> its values as float32, int64 or text: DENSE [1, n] in the order of the keys, SPARSE
    [1, max_map] with each value at its key and 0 or "" between.

    Raises when called: KernelError for text that is no number; for SPARSE, a key outside of [0, max_map).
    """
    _map(op, specs)
    cast, form = text_of(op, "cast_to", "TO_FLOAT"), text_of(op, "map_form", "DENSE")
    if cast not in _CASTS:
        fail(op, f"{cast!r} is none of {list(_CASTS)}", "cast_to")
    if form not in ("DENSE", "SPARSE"):
        fail(op, f"{form!r} is neither DENSE nor SPARSE", "map_form")
    dtype = _CASTS[cast]
    width: int = op.attr("max_map", 1)
    if form == "SPARSE":
        bounded(op, dtype, (1, max(width, 0)))

    def run(inputs: Sequence[Any]) -> tuple[HostArray]:
        keys = sorted(inputs[0])
        values = [_cast(op, inputs[0][key], dtype) for key in keys]
        if form == "SPARSE":
            if keys and not 0 <= keys[0] <= keys[-1] < width:
                fail(op, f"keys are {keys[0]} to {keys[-1]}, max_map is {width}", "X")
            found = np.full((1, max(width, 0)), zero_of(dtype), dtype)
            found[0, keys] = values
        else:
            found = np.empty((1, len(keys)), dtype)
            found[0, :] = values
        return (found,)

    return dynamic(run, capture=REASON)


def _cast(op: Operation, value: Any, dtype: np.dtype[Any]) -> Any:
    """One value of the map in terms of `dtype`. Numbers become text with six decimals, as in C."""
    if dtype == STRING:
        return value if isinstance(value, str) else f"{value:f}"
    try:
        return float(value) if dtype == FLOAT32 else int(float(value))
    except (ValueError, OverflowError) as error:
        raise KernelError(f"no {dtype}: {error}", op=op.id, node=op.name, operand="X") from error
