"""ai.onnx.ml's tables from one value to another: LabelEncoder and CategoryMapper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.ml_scores import FLOAT32, INT64
from hetero.kernels.operands import fail, host_reason
from hetero.kernels.prepared import Prepared, once
from hetero.kernels.quiet import Quiet
from hetero.program.operation import Operation
from hetero.types import STRING, Array, HostArray, Spec, TensorSpec

_KINDS = {"strings": STRING, "int64s": INT64, "floats": FLOAT32}


@dataclass(frozen=True, slots=True)
class Table:
    """Keys with their values, and what every other key gets. The first of two equal keys counts; NaN equals NaN.

    Keys that are numbers are sorted (NaN last); `texts` has their positions where they are text. `values` has the
    default behind the last.
    """

    keys: HostArray
    values: HostArray
    texts: dict[str, int] | None

    def positions(self, xp: Any, x: Array) -> Array:
        """Where in `values` the value of each element of the flat `x` stands."""
        n = len(self.keys)
        if self.texts is not None:
            return np.fromiter((self.texts.get(v, n) for v in x.tolist()), np.int64, len(x))
        if n == 0:
            return xp.zeros(len(x), np.int64)
        keys = xp.asarray(self.keys)
        found = xp.minimum(xp.searchsorted(keys, x), n - 1)
        there = keys[found]
        return xp.where((there == x) | ((there != there) & (x != x)), found, n)


def table_of(op: Operation, keys: HostArray, values: HostArray, default: HostArray) -> Table:
    """Raises: KernelError where keys and values differ in number."""
    if len(keys) != len(values):
        fail(op, f"{len(keys)} keys for {len(values)} values")
    extended = np.concatenate([values, default.astype(values.dtype).reshape(1)])
    if keys.dtype == STRING:
        texts: dict[str, int] = {}
        for k, key in enumerate(keys.tolist()):
            texts.setdefault(key, k)
        return Table(keys, extended, texts)
    order = np.argsort(keys, kind="stable")
    return Table(keys[order], extended[[*order.tolist(), len(keys)]], None)


def _array(listed: Any, dtype: np.dtype[Any]) -> HostArray:
    if isinstance(listed, np.ndarray):
        return listed.reshape(-1)
    found = np.empty(len(listed), dtype)
    found[:] = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in listed]
    return found


def _listed(op: Operation, side: str) -> HostArray:
    """keys_* or values_*, whichever is there. Raises: KernelError."""
    given = op.attr(f"{side}_tensor")
    if given is not None:
        return _array(given, given.dtype)
    for kind, dtype in _KINDS.items():
        if op.attr(f"{side}_{kind}") is not None:
            return _array(op.attr(f"{side}_{kind}"), dtype)
    return fail(op, "none of its forms is there", f"{side}_*")


def _default(op: Operation, dtype: np.dtype[Any]) -> HostArray:
    given = op.attr("default_tensor")
    if given is not None:
        if given.size != 1 or given.dtype != dtype:
            fail(op, f"must hold one {dtype}, is {given.dtype}{list(given.shape)}", "default_tensor")
        return np.asarray(given).reshape(1)
    if dtype == STRING:
        return _array((op.attr("default_string", "_Unused"),), STRING)
    plain = op.attr("default_int64", -1) if dtype.kind == "i" else op.attr("default_float", -0.0)
    return np.asarray([plain]).astype(dtype)


def _encoder(op: Operation) -> Table:
    values = _listed(op, "values")
    return table_of(op, _listed(op, "keys"), values, _default(op, values.dtype))


@kernel("LabelEncoder", domain="ai.onnx.ml", versions=(2, 4), strided=True)
def label_encoder(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> the values of its elements' keys; the default for other elements."""
    prepared: Prepared[tuple[Table, ...]] = once(op, lambda op: (_encoder(op),))
    return _looked_up(op, specs, xp, prepared, 0)


def _both_ways(op: Operation, texts: HostArray, numbers: HostArray) -> tuple[Table, Table]:
    """From text to numbers, and back."""
    return (
        table_of(op, texts, numbers, _default(op, INT64)),
        table_of(op, numbers, texts, _default(op, STRING)),
    )


def _classes(op: Operation) -> tuple[Table, Table]:
    texts = _array(op.attr("classes_strings", ()), STRING)
    return _both_ways(op, texts, np.arange(len(texts)))


def _categories(op: Operation) -> tuple[Table, Table]:
    texts, numbers = _array(op.attr("cats_strings", ()), STRING), _array(op.attr("cats_int64s", ()), INT64)
    return _both_ways(op, texts, numbers)


@kernel("LabelEncoder", domain="ai.onnx.ml", versions=(1,), strided=True)
def label_encoder_1(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Strings -> their positions in classes_strings (int64), or positions -> strings."""
    return _looked_up(op, specs, xp, once(op, _classes), int(tensor(op, specs, 0).dtype != STRING))


@kernel("CategoryMapper", domain="ai.onnx.ml", versions=(1,), strided=True)
def category_mapper(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Strings -> the integers of their categories, or integers -> strings."""
    return _looked_up(op, specs, xp, once(op, _categories), int(tensor(op, specs, 0).dtype != STRING))


def _looked_up(
    op: Operation, specs: Sequence[Spec], xp: Any, prepared: Prepared[tuple[Table, ...]], which: int
) -> Compiled:
    x = tensor(op, specs, 0)
    table = prepared.value[which]
    if table.keys.dtype != x.dtype:
        fail(op, f"is {x.dtype}, the keys are {table.keys.dtype}", "X")
    if xp is not np and STRING in (x.dtype, table.values.dtype):
        raise UnsupportedError("strings live on the host", op=op.id, node=op.name)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        chosen = prepared.value[which]
        values = chosen.values if xp is np else xp.asarray(chosen.values)

        def call() -> None:
            outputs[0][...] = values[chosen.positions(xp, inputs[0].reshape(-1))].reshape(x.shape)

        return Quiet(call)

    return computed([TensorSpec(table.values.dtype, x.shape)], bind, capture=host_reason(xp, "makes arrays"))
