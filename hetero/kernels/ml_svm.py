"""ai.onnx.ml's support vector machines: SVMClassifier and SVMRegressor, computed in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel
from hetero.kernels.ml_scores import (
    FLOAT32,
    FLOAT64,
    classified,
    labels_of,
    logistic,
    rows_of,
    transform,
    transform_of,
    two_columns,
)
from hetero.kernels.operands import fail, host_reason, text_of
from hetero.kernels.quiet import Quiet
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, HostArray, Spec, TensorSpec

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_LEAST = 1e-7
"""Pairwise probabilities stay this far from 0 and 1."""
_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Similarity:
    """k(x, v) of rows with vectors, (vectors, features): LINEAR x·v, POLY (gamma x·v + coef0) ** degree, SIGMOID
    tanh(gamma x·v + coef0), RBF exp(-gamma |x - v|²)."""

    kind: str
    vectors: Array
    gamma: float = 0.0
    coef0: float = 0.0
    degree: float = 0.0

    def into(self, xp: Any, x: Array, out: Array) -> None:
        """out (rows, vectors) = k(x, vectors), for x (rows, features)."""
        xp.matmul(x, self.vectors.T, out)
        if self.kind == "RBF":
            xp.multiply(out, -2, out)
            out += (x * x).sum(1, keepdims=True)
            out += (self.vectors * self.vectors).sum(1)
            xp.maximum(out, 0, out=out)
            xp.multiply(out, -self.gamma, out)
            xp.exp(out, out)
        elif self.kind != "LINEAR":
            xp.multiply(out, self.gamma, out)
            xp.add(out, self.coef0, out)
            if self.kind == "POLY":
                xp.power(out, self.degree, out)
            else:
                xp.tanh(out, out)


def _floats(op: Operation, name: str) -> HostArray:
    return np.asarray(op.attr(name, ()), FLOAT64)


def _similarity(op: Operation, vectors: HostArray, xp: Any) -> Similarity:
    kind = text_of(op, "kernel_type", "LINEAR")
    if kind not in KERNELS:
        fail(op, f"{kind!r} is none of {list(KERNELS)}", "kernel_type")
    params = op.attr("kernel_params", ()) or (0.0, 0.0, 0.0)
    if len(params) != 3:
        fail(op, f"must be gamma, coef0, degree; there are {len(params)}", "kernel_params")
    return Similarity(kind, xp.asarray(vectors), *(float(p) for p in params))


def _support(op: Operation, n: int, features: int) -> HostArray:
    vectors = _floats(op, "support_vectors")
    if vectors.size != n * features:
        fail(op, f"{vectors.size} numbers for {n} vectors of {features} features", "support_vectors")
    return vectors.reshape(n, features)


def _at_least(op: Operation, name: str, values: HostArray, n: int) -> None:
    if values.size < n:
        fail(op, f"{values.size} numbers, where {n} are expected", name)


@kernel("SVMRegressor", domain="ai.onnx.ml", versions=(1,))
def svm_regressor(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X [rows, features] -> [rows, 1] (float32): the weighted similarities to the support vectors plus rho; without
    support vectors a linear model. one_class: 1 where that is positive, else -1."""
    rows, features = rows_of(op, specs)
    name = transform_of(op)
    n: int = op.attr("n_supports", 0)
    coefficients, rho = _floats(op, "coefficients"), _floats(op, "rho")
    _at_least(op, "rho", rho, 1)
    if n > 0:
        similarity = _similarity(op, _support(op, n, features), xp)
    else:
        _at_least(op, "coefficients", coefficients, features)
        similarity = Similarity("LINEAR", xp.asarray(coefficients[:features].reshape(1, features)))
        coefficients = np.ones(1, FLOAT64)
    n = max(n, 1)
    _at_least(op, "coefficients", coefficients, n)
    weights = xp.asarray(coefficients[:n].reshape(n, 1))
    one_class = bool(op.attr("one_class", 0))
    parts: tuple[Part, ...] = (
        ((rows, features), FLOAT64),
        ((rows, n), FLOAT64),
        ((rows, 1), FLOAT64),
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        wide, alike, scores = carve(workspace, *parts)
        source, out = inputs[0].reshape(rows, features), outputs[0]

        def call() -> None:
            wide[...] = source
            similarity.into(xp, wide, alike)
            xp.matmul(alike, weights, scores)
            xp.add(scores, rho[0], scores)
            if one_class:
                scores[...] = xp.where(scores > 0, 1.0, -1.0)
            transform(xp, name, scores)
            out[...] = scores

        return Quiet(call)

    return computed(
        [TensorSpec(FLOAT32, (rows, 1))],
        bind,
        contiguous=(0,),
        workspace_bytes=carved_bytes(*parts),
        capture=host_reason(xp, "makes arrays"),
    )


@dataclass(frozen=True, slots=True)
class _Machines:
    """One machine for each pair of classes i < j: where those of class i's vectors are weighed by row j - 1 of the
    coefficients and those of class j's by row i. A positive score is a vote for i."""

    classes: int
    starts: tuple[int, ...]
    coefficients: Array
    rho: HostArray
    prob_a: HostArray
    prob_b: HostArray

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """In the order of rho."""
        return [(i, j) for i in range(self.classes) for j in range(i + 1, self.classes)]

    def score(self, xp: Any, alike: Array) -> tuple[Array, Array]:
        """(rows, pairs) scores and (rows, classes) votes, of similarities (rows, vectors)."""
        pairs = self.pairs
        scores = xp.empty((alike.shape[0], len(pairs)), FLOAT64)
        votes = xp.zeros((alike.shape[0], self.classes), np.int64)
        for k, (i, j) in enumerate(pairs):
            of_i = slice(self.starts[i], self.starts[i + 1])
            of_j = slice(self.starts[j], self.starts[j + 1])
            total = (
                alike[:, of_i] @ self.coefficients[j - 1, of_i] + alike[:, of_j] @ self.coefficients[i, of_j]
            )
            scores[:, k] = total + self.rho[k]
            wins = scores[:, k] > 0
            votes[:, i] += wins
            votes[:, j] += ~wins
        return scores, votes

    def probabilities(self, xp: Any, scores: Array) -> Array:
        """(rows, classes), from each pair's probability that the first of it wins."""
        rows, c = scores.shape[0], self.classes
        wins = xp.zeros((rows, c, c), FLOAT64)
        for k, (i, j) in enumerate(self.pairs):
            p = 1 - logistic(xp, scores[:, k] * self.prob_a[k] + self.prob_b[k])
            wins[:, i, j] = xp.clip(p, _LEAST, 1 - _LEAST)
            wins[:, j, i] = 1 - wins[:, i, j]
        return _coupled(xp, wins)


def _coupled(xp: Any, wins: Array) -> Array:
    """Class probabilities (rows, classes) that fit pairwise ones best: the second method of Wu, Lin and Weng,
    "Probability Estimates for Multi-class Classification by Pairwise Coupling" (2004), a row until it is settled."""
    rows, c, _ = wins.shape
    q = -wins * wins.transpose(0, 2, 1)
    diagonal = (wins * wins).sum(1)
    for i in range(c):
        q[:, i, i] = diagonal[:, i]
    p = xp.full((rows, c), 1 / c, FLOAT64)
    for _ in range(_ROUNDS):
        qp = (q @ p[:, :, None])[:, :, 0]
        pqp = (p * qp).sum(1)
        open_ = xp.abs(qp - pqp[:, None]).max(1) >= 0.005 / c
        if not bool(open_.any()):
            break
        for i in range(c):
            step = xp.where(open_, (pqp - qp[:, i]) / q[:, i, i], 0)
            p[:, i] += step
            pqp = (pqp + step * (step * q[:, i, i] + 2 * qp[:, i])) / (1 + step) ** 2
            qp = (qp + step[:, None] * q[:, i]) / (1 + step[:, None])
            p /= 1 + step[:, None]
    return p


def _machines(op: Operation, classes: int, xp: Any) -> tuple[_Machines, int]:
    """The machines, and how many support vectors there are. Raises: KernelError for too few numbers."""
    counts = np.asarray(op.attr("vectors_per_class", ()), np.int64)
    if len(counts) != classes or (counts < 0).any():
        fail(op, f"{counts.tolist()} for {classes} classes", "vectors_per_class")
    starts = (0, *np.cumsum(counts).tolist())
    pairs = classes * (classes - 1) // 2
    coefficients = _floats(op, "coefficients")
    rho, a, b = (_floats(op, name) for name in ("rho", "prob_a", "prob_b"))
    _at_least(op, "rho", rho, pairs)
    _at_least(op, "coefficients", coefficients, (classes - 1) * starts[-1])
    if a.size or b.size:
        _at_least(op, "prob_a", a, pairs)
        _at_least(op, "prob_b", b, pairs)
    table = coefficients[: (classes - 1) * starts[-1]].reshape(classes - 1, starts[-1])
    return _Machines(classes, starts, xp.asarray(table), rho, a, b), starts[-1]


@kernel("SVMClassifier", domain="ai.onnx.ml", versions=(1,))
def svm_classifier(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X [rows, features] -> labels [rows], scores (float32).

    The label has the most votes of the machines, one for each pair of classes. Scores: with prob_a and prob_b the
    probability of each class [rows, classes]; without, one per pair, and [-score, score] for two classes ([1 - score,
    score] where a post transform other than LOGISTIC and PROBIT is named). Without support vectors: a linear model
    with a score per class, whose label has the greatest.
    """
    rows, features = rows_of(op, specs)
    labels = labels_of(op, "classlabels_ints", "classlabels_strings")
    if xp is not np and labels.dtype.kind == "O":
        raise UnsupportedError("strings live on the host", op=op.id, node=op.name)
    name, classes = transform_of(op), len(labels)
    linear = not any(op.attr("vectors_per_class", ()))
    machines: _Machines | None = None
    rho = _floats(op, "rho")
    if linear:
        vectors = _floats(op, "coefficients")
        _at_least(op, "coefficients", vectors, classes * features)
        _at_least(op, "rho", rho, 1)
        similarity = Similarity(
            "LINEAR", xp.asarray(vectors[: classes * features].reshape(classes, features))
        )
        n, columns = classes, classes
    else:
        machines, n = _machines(op, classes, xp)
        similarity = _similarity(op, _support(op, n, features), xp)
        columns = classes if machines.prob_a.size else max(2, len(machines.pairs))
    parts: tuple[Part, ...] = (((rows, features), FLOAT64), ((rows, n), FLOAT64))
    table = xp.asarray(labels) if xp is not np else labels

    def finish(alike: Array, z: Array | None) -> Array:
        if machines is None:
            scores = alike + rho[0]
            index = scores.argmax(1)
        else:
            scores, votes = machines.score(xp, alike)
            index = votes.argmax(1)
            if machines.prob_a.size:
                scores = machines.probabilities(xp, scores)
        if z is None:
            return index
        if scores.shape[1] == 1 and columns == 2:
            two_columns(xp, name, scores[:, 0], z, positive=name != "NONE")
        else:
            transform(xp, name, scores)
            z[...] = scores
        return index

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        wide, alike = carve(workspace, *parts)
        source = inputs[0].reshape(rows, features)
        label, z = (*outputs, None)[:2]

        def call() -> None:
            wide[...] = source
            similarity.into(xp, wide, alike)
            index = finish(alike, z)
            if label is not None:
                label[...] = table[index]

        return Quiet(call)

    return classified(xp, op, labels, (rows, columns), bind, carved_bytes(*parts))
