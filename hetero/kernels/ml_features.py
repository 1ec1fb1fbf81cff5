"""ai.onnx.ml's preparation of features: scaling, thresholds, imputation, selection, one-hot columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.limits import bounded
from hetero.kernels.ml_scores import FLOAT32, FLOAT64, INT64
from hetero.kernels.operands import fail, host_reason, text_of
from hetero.kernels.quiet import Quiet, quiet
from hetero.program.operation import Operation
from hetero.types import STRING, Array, HostArray, Spec, TensorSpec

NORMS = ("MAX", "L1", "L2")


def _per_feature(op: Operation, name: str, values: HostArray, features: int) -> HostArray:
    """One value for all features, or one for each. Raises: KernelError."""
    if values.size not in (1, features):
        fail(op, f"{values.size} values for {features} features", name)
    return values


def _features(op: Operation, x: TensorSpec) -> int:
    if not x.shape:
        fail(op, "must have a feature axis, is a scalar", "X")
    return x.shape[-1]


@kernel("Scaler", domain="ai.onnx.ml", versions=(1,))
def scaler(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> (X - offset) * scale along the last axis, float32; float64 and integers are computed in float64."""
    x = tensor(op, specs, 0)
    wide = FLOAT32 if x.dtype == FLOAT32 else FLOAT64
    n = _features(op, x)
    offset, scale = (
        xp.asarray(_per_feature(op, name, np.asarray(op.attr(name, (default,)), wide), n))
        for name, default in (("offset", 0.0), ("scale", 1.0))
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, out = inputs[0], outputs[0]

        def call() -> None:
            if wide == FLOAT32:
                xp.subtract(source, offset, out)
                xp.multiply(out, scale, out)
            else:
                out[...] = (source - offset) * scale

        return Quiet(call)

    return computed([TensorSpec(FLOAT32, x.shape)], bind, capture=host_reason(xp, "makes arrays"))


@kernel("Normalizer", domain="ai.onnx.ml", versions=(1,))
def normalizer(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> float32 whose rows (the last axis) have a greatest element, a sum of magnitudes (L1) or a length (L2) of 1;
    a row where that is 0 stays as it is."""
    x = tensor(op, specs, 0)
    norm = text_of(op, "norm", "MAX")
    if norm not in NORMS:
        fail(op, f"{norm!r} is none of {list(NORMS)}", "norm")
    wide = FLOAT32 if x.dtype == FLOAT32 else FLOAT64
    if _features(op, x) == 0:
        fail(op, "has no features", "X")

    def normalise(source: Array, out: Array) -> None:
        rows = source.astype(wide)
        if norm == "MAX":
            size = rows.max(-1, keepdims=True)
        elif norm == "L1":
            size = xp.abs(rows).sum(-1, keepdims=True)
        else:
            size = xp.sqrt((rows * rows).sum(-1, keepdims=True))
        out[...] = rows / xp.where(size == 0, wide.type(1), size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return quiet(normalise, inputs[0], outputs[0])

    return computed([TensorSpec(FLOAT32, x.shape)], bind, capture=host_reason(xp, "makes arrays"))


@kernel("Binarizer", domain="ai.onnx.ml", versions=(1,), strided=True)
def binarizer(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> 1 where an element exceeds the threshold, else 0, of the same dtype."""
    x = tensor(op, specs, 0)
    threshold = op.attr("threshold", 0.0)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return quiet(xp.greater, inputs[0], threshold, outputs[0], casting="unsafe")

    return computed([TensorSpec(x.dtype, x.shape)], bind)


@kernel("Imputer", domain="ai.onnx.ml", versions=(1,), strided=True)
def imputer(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X with every element that equals the replaced value (NaN too) replaced, by feature (the last axis)."""
    x = tensor(op, specs, 0)
    kind, suffix = ("int64", "int64s") if x.dtype.kind == "i" else ("float", "floats")
    listed = op.attr(f"imputed_value_{suffix}", ())
    if not listed:
        fail(op, f"is missing for {x.dtype}", f"imputed_value_{suffix}")
    imputed = _per_feature(op, f"imputed_value_{suffix}", np.asarray(listed, x.dtype), _features(op, x))
    replaced = np.asarray(op.attr(f"replaced_value_{kind}", 0), x.dtype)
    missing = bool(replaced != replaced)
    imputed = xp.asarray(imputed)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, out = inputs[0], outputs[0]

        def call() -> None:
            hit = xp.isnan(source) if missing else source == replaced
            out[...] = xp.where(hit, imputed, source)

        return Quiet(call)

    return computed([TensorSpec(x.dtype, x.shape)], bind, capture=host_reason(xp, "makes arrays"))


@kernel("ArrayFeatureExtractor", domain="ai.onnx.ml", versions=(1,), strided=True)
def array_feature_extractor(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, indices -> the elements of X's last axis that they name; a vector gives one row.

    Raises when called: KernelError for an index out of range.
    """
    x, indices = tensor(op, specs, 0), tensor(op, specs, 1)
    n = _features(op, x)
    if indices.size == 0:
        fail(op, "names no feature", "Y")
    output = TensorSpec(x.dtype, (*(x.shape[:-1] or (1,)), indices.size))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, out = inputs[0], outputs[0]
        chosen = inputs[1].reshape(-1) if inputs[1].flags.c_contiguous else None

        def call() -> None:
            index = inputs[1].reshape(-1) if chosen is None else chosen
            low, high = int(index.min()), int(index.max())
            if low < 0 or high >= n:
                fail(op, f"feature {low if low < 0 else high} is out of range for {n}", "Y")
            out[...] = source[..., index]

        return call

    return computed([output], bind, capture=host_reason(xp, "reads indices"))


@kernel("FeatureVectorizer", domain="ai.onnx.ml", versions=(1,), strided=True)
def feature_vectorizer(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Inputs [rows, n] (or one row each) -> their features side by side, float32. `inputdimensions` says how many
    columns an input gets: what is missing is 0, what is too much is left out."""
    inputs_of = [tensor(op, specs, i) for i in range(len(specs))]
    for spec in inputs_of:
        if len(spec.shape) not in (1, 2):
            fail(op, f"an input must be [features] or [rows, features], has shape {list(spec.shape)}")
    shapes = [(1, *s.shape)[-2:] for s in inputs_of]
    widths = list(op.attr("inputdimensions", ())) or [s[1] for s in shapes]
    if len(widths) != len(shapes) or min(widths, default=0) < 0:
        fail(op, f"{widths} for {len(shapes)} inputs", "inputdimensions")
    rows = shapes[0][0]
    if any(s[0] != rows for s in shapes):
        fail(op, f"inputs of {', '.join(str(s[0]) for s in shapes)} rows")
    output = bounded(op, FLOAT32, (rows, sum(widths)))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        out = outputs[0]

        def call() -> None:
            at = 0
            for source, shape, width in zip(inputs, shapes, widths, strict=True):
                taken = min(shape[1], width)
                out[:, at : at + taken] = source.reshape(shape)[:, :taken]
                out[:, at + taken : at + width] = 0
                at += width

        return Quiet(call)

    return computed([output], bind)


@kernel("OneHotEncoder", domain="ai.onnx.ml", versions=(1,), strided=True)
def one_hot_encoder(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> [..., categories] float32: 1 in the column of its category (numbers count as integers), else 0.

    Raises when called: KernelError for an unknown category unless `zeros`.
    """
    x = tensor(op, specs, 0)
    text = x.dtype == STRING
    if text and xp is not np:
        raise UnsupportedError("strings live on the host", op=op.id, node=op.name)
    listed = op.attr("cats_strings" if text else "cats_int64s", ())
    if not listed:
        fail(
            op, f"is missing for {'strings' if text else x.dtype}", "cats_strings" if text else "cats_int64s"
        )
    output = bounded(op, FLOAT32, (*x.shape, len(listed)))
    strict = not op.attr("zeros", 1)
    place: Callable[[Array, Array], Any] = partial(
        _place_texts if text else partial(_place_numbers, xp), _columns(listed)
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, out = inputs[0], outputs[0].reshape(-1, len(listed))

        def call() -> None:
            out.fill(0)
            known = place(source.reshape(-1), out)
            if strict and not known:
                fail(op, "an element is none of the categories", "X")

        return Quiet(call)

    return computed([output], bind, capture=host_reason(xp, "reads categories"))


def _columns(listed: Sequence[Any]) -> dict[Any, int]:
    """Category -> column; the last one where a category is listed twice."""
    return {c.decode("utf-8", "replace") if isinstance(c, bytes) else c: k for k, c in enumerate(listed)}


def _place_texts(columns: dict[Any, int], values: Array, out: Array) -> bool:
    known = True
    for row, value in zip(out, values.tolist(), strict=True):
        column = columns.get(value)
        if column is None:
            known = False
        else:
            row[column] = 1
    return known


def _place_numbers(xp: Any, columns: dict[Any, int], values: Array, out: Array) -> bool:
    keys = xp.asarray(np.asarray(sorted(columns), INT64))
    at = xp.asarray(np.asarray([columns[k] for k in sorted(columns)], INT64))
    whole = values.astype(INT64)
    found = xp.minimum(xp.searchsorted(keys, whole), len(columns) - 1)
    known = keys[found] == whole
    rows = xp.flatnonzero(known)
    out[rows, at[found[rows]]] = 1
    return bool(known.all())
