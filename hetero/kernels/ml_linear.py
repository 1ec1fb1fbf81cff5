"""ai.onnx.ml's linear models: LinearClassifier and LinearRegressor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.ml_scores import (
    FLOAT32,
    classified,
    labels_of,
    rows_of,
    transform,
    transform_of,
    two_columns,
)
from hetero.kernels.operands import fail, host_reason
from hetero.kernels.quiet import Quiet
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import HostArray, Spec, TensorSpec


def _weights(op: Operation, features: int, targets: int | None) -> tuple[HostArray, HostArray]:
    """Coefficients (features, targets) and intercepts (targets,), float32; targets None: as many as there are."""
    coefficients = np.asarray(op.attr("coefficients", ()), FLOAT32)
    if targets is None:
        targets = coefficients.size // features if features else 0
    if targets < 1 or coefficients.size != targets * features:
        fail(op, f"{coefficients.size} for {features} features and {targets} outputs", "coefficients")
    intercepts = np.asarray(op.attr("intercepts", ()) or (0.0,) * targets, FLOAT32)
    if intercepts.size != targets:
        fail(op, f"{intercepts.size} for {targets} outputs", "intercepts")
    return coefficients.reshape(targets, features).T.copy(), intercepts


@kernel("LinearClassifier", domain="ai.onnx.ml", versions=(1,))
def linear_classifier(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X [rows, features] -> labels [rows], scores [rows, classes] (float32).

    One row of coefficients for two labels is a binary model: the second label where the score is positive, and the
    scores [1 - score, score] ([-score, score] made probabilities for LOGISTIC and PROBIT). Otherwise the label of the
    greatest score.
    """
    rows, features = rows_of(op, specs)
    x = tensor(op, specs, 0)
    labels = labels_of(op, "classlabels_ints", "classlabels_strings")
    name = transform_of(op)
    coefficients, intercepts = _weights(op, features, len(op.attr("intercepts", ())) or None)
    targets = len(intercepts)
    single = targets == 1 and len(labels) == 2
    if targets > len(labels):
        fail(op, f"{len(labels)} labels for {targets} scores", "classlabels_ints")
    if xp is not np:
        if labels.dtype.kind == "O":
            raise UnsupportedError("strings live on the host", op=op.id, node=op.name)
        coefficients, intercepts, labels = (xp.asarray(a) for a in (coefficients, intercepts, labels))
    columns = 2 if single else targets
    parts: tuple[Part, ...] = (
        ((rows, features) if x.dtype != FLOAT32 else (0,), FLOAT32),
        ((rows, targets), FLOAT32),
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        wide, scores = carve(workspace, *parts)
        source = inputs[0].reshape(rows, features)
        converts = x.dtype != FLOAT32
        label, z = (*outputs, None)[:2]

        def call() -> None:
            if converts:
                wide[...] = source
            xp.matmul(wide if converts else source, coefficients, scores)
            xp.add(scores, intercepts, scores)
            if label is not None:
                index = (scores[:, 0] > 0).astype(np.int64) if single else scores.argmax(1)
                label[...] = labels[index]
            if z is None:
                return
            if single:
                two_columns(xp, name, scores[:, 0], z, positive=True)
            else:
                transform(xp, name, scores)
                z[...] = scores

        return Quiet(call)

    return classified(xp, op, labels, (rows, columns), bind, carved_bytes(*parts))


@kernel("LinearRegressor", domain="ai.onnx.ml", versions=(1,))
def linear_regressor(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X [rows, features] -> [rows, targets] (float32)."""
    rows, features = rows_of(op, specs)
    x = tensor(op, specs, 0)
    name = transform_of(op)
    targets: int = op.attr("targets", 1)
    coefficients, intercepts = _weights(op, features, targets)
    if xp is not np:
        coefficients, intercepts = xp.asarray(coefficients), xp.asarray(intercepts)
    parts: tuple[Part, ...] = (((rows, features) if x.dtype != FLOAT32 else (0,), FLOAT32),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        (wide,) = carve(workspace, *parts)
        source, out = inputs[0].reshape(rows, features), outputs[0]
        converts = x.dtype != FLOAT32

        def call() -> None:
            if converts:
                wide[...] = source
            xp.matmul(wide if converts else source, coefficients, out)
            xp.add(out, intercepts, out)
            transform(xp, name, out)

        return Quiet(call)

    return computed(
        [TensorSpec(FLOAT32, (rows, targets))],
        bind,
        contiguous=(0,),
        workspace_bytes=carved_bytes(*parts),
        capture=host_reason(xp, "makes arrays") if name != "NONE" else None,
    )
