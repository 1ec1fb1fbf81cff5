"""What ai.onnx.ml models do with their scores: post transforms, the second column of a binary model, labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Bind, Compiled, computed, tensor
from hetero.kernels.operands import fail, host_reason, text_of
from hetero.program.operation import Operation
from hetero.types import STRING, Array, HostArray, Spec, TensorSpec

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""In the order of TreeEnsemble's numbers."""
FLOAT32, FLOAT64, INT64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)
_TINY = 1e-7
"""What SOFTMAX_ZERO takes for zero."""


def rows_of(op: Operation, specs: Sequence[Spec]) -> tuple[int, int]:
    """(rows, features) of input 0; a vector is one row. Raises: KernelError for another rank."""
    shape = tensor(op, specs, 0).shape
    if len(shape) not in (1, 2):
        fail(op, f"must be [features] or [rows, features], has shape {list(shape)}", "X")
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])


def transform_of(op: Operation) -> str:
    """The post_transform attribute. Raises: KernelError for an unknown one."""
    name = text_of(op, "post_transform", "NONE")
    if name not in TRANSFORMS:
        fail(op, f"{name!r} is none of {list(TRANSFORMS)}", "post_transform")
    return name


def labels_of(op: Operation, ints: str, strings: str) -> HostArray:
    """The class labels (int64, or objects), from whichever of the two attributes is not empty. Raises: KernelError."""
    texts = op.attr(strings, ())
    if texts:
        found = np.empty(len(texts), STRING)
        found[:] = [t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in texts]
        return found
    numbers = np.asarray(op.attr(ints, ()), INT64)
    if not numbers.size:
        fail(op, "a classifier needs labels", ints)
    return numbers


def classified(
    xp: Any,
    op: Operation,
    labels: HostArray,
    shape: tuple[int, int],
    bind: Bind,
    workspace_bytes: int,
) -> Compiled:
    """A classifier's kernel: label of each row, and scores of `shape` (rows, columns)."""
    declared = (TensorSpec(labels.dtype, shape[:1]), TensorSpec(FLOAT32, shape))
    return computed(
        [s if p else None for s, p in zip(declared, op.present_outputs, strict=False)],
        bind,
        contiguous=(0,),
        workspace_bytes=workspace_bytes,
        capture=host_reason(xp, "makes arrays"),
    )


def transform(xp: Any, name: str, scores: Array) -> None:
    """Apply a post transform in place to scores (rows, n)."""
    if not scores.size:
        return
    if name == "SOFTMAX":
        scores -= scores.max(1, keepdims=True)
        xp.exp(scores, scores)
        scores /= scores.sum(1, keepdims=True)
    elif name == "SOFTMAX_ZERO":
        _softmax_zero(xp, scores)
    elif name == "LOGISTIC":
        scores[...] = logistic(xp, scores)
    elif name == "PROBIT":
        scores[...] = probit(xp, scores)


def _softmax_zero(xp: Any, scores: Array) -> None:
    """Softmax over the scores that are not zero; the others stay (all but) zero."""
    greatest = scores.max(1, keepdims=True)
    counts = xp.abs(scores) > _TINY
    scores[...] = xp.where(counts, xp.exp(scores - greatest), scores * xp.exp(-greatest))
    total = (scores * counts).sum(1, keepdims=True)
    scores /= xp.where(total == 0, total.dtype.type(1), total)


def logistic(xp: Any, scores: Array) -> Array:
    """1 / (1 + exp(-scores)), from the exponentials that cannot overflow."""
    positive = 1 / (1 + xp.exp(-xp.abs(scores)))
    return xp.where(scores < 0, 1 - positive, positive)


def probit(xp: Any, scores: Array) -> Array:
    """The quantile of the normal distribution, by the approximation of the inverse error function (to 4 digits) that
    runtimes share: sign(x) sqrt(sqrt(v² - w) - v), v = 2 / (0.147 π) + log(1 - x²) / 2, w = log(1 - x²) / 0.147."""
    x = 2 * scores - 1
    log = xp.log((1 - x) * (1 + x))
    v = 2 / (3.14159 * 0.147) + log / 2
    return np.sqrt(2).astype(scores.dtype) * xp.sign(x) * xp.sqrt(xp.sqrt(v * v - log / 0.147) - v)


def two_columns(xp: Any, name: str, score: Array, out: Array, *, positive: bool) -> None:
    """A binary model's one score as the scores of both classes, out (rows, 2).

    `positive`: the scores are probabilities already, and the other class has the rest.
    """
    if name == "LOGISTIC":
        out[:, 1] = logistic(xp, score)
        out[:, 0] = logistic(xp, -score)
        return
    if name == "PROBIT":
        score = probit(xp, score)
    out[:, 1] = score
    out[:, 0] = 1 - score if positive and name != "PROBIT" else -score
