"""ai.onnx.ml's tree ensembles: TreeEnsembleClassifier, TreeEnsembleRegressor, and TreeEnsemble of version 5."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.jit import PARALLEL_ELEMENTS
from hetero.kernels.jit_call import bound
from hetero.kernels.ml_scores import (
    FLOAT32,
    FLOAT64,
    TRANSFORMS,
    labels_of,
    rows_of,
    transform,
    transform_of,
    two_columns,
)
from hetero.kernels.operands import fail, host_reason, text_of
from hetero.kernels.prepared import Prepared, once
from hetero.kernels.quiet import Quiet
from hetero.kernels.tree_nodes import Forest, forest_by_ids, forest_by_index, numbers
from hetero.kernels.tree_walk import on_module, walk, walk_arrays
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, HostArray, Spec, TensorSpec

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""In the order of TreeEnsemble's numbers."""
_EXTREMUM = {"SUM": 0, "AVERAGE": 0, "MIN": -1, "MAX": 1}
_STEPS_PER_WALK = 8

Finish = Callable[[Array, Array, Sequence[Any]], None]
"""(scores, scored, outputs): fills the outputs; may change the scores."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """A forest, how its trees' weights become one score per target, and what happens to the scores then.

    base: added to the scores, (n_targets,), or None. transform: a post transform. labels: of a classifier. column: the
    only class that has weights, where a classifier of two has one score. positive: no weight is negative.
    """

    forest: Forest
    base: HostArray | None
    transform: str
    aggregate: str = "SUM"
    labels: HostArray | None = None
    column: int | None = None
    positive: bool = False


def _base(op: Operation, n_targets: int) -> HostArray | None:
    """base_values, one per target; a single one is every target's. Raises: KernelError for any other number."""
    base = numbers(op, "base_values")
    if base is None or not base.size:
        return None
    if base.size not in (1, n_targets):
        fail(op, f"{base.size} values for {n_targets} outputs", "base_values")
    return np.broadcast_to(base, (n_targets,))


def _classifier(op: Operation) -> Ensemble:
    labels = labels_of(op, "classlabels_int64s", "classlabels_strings")
    forest = forest_by_ids(op, "class", len(labels))
    base = _base(op, len(labels))
    classes = np.unique(forest.targets)
    given = numbers(op, "base_values")
    single = len(labels) == 2 and classes.size == 1 and (given is None or given.size < 2)
    column = int(classes[0]) if single else None
    positive = not (forest.weights < 0).any()
    return Ensemble(forest, base, transform_of(op), "SUM", labels, column, positive)


def _regressor(op: Operation) -> Ensemble:
    n_targets = _targets(op)
    forest = forest_by_ids(op, "target", n_targets)
    aggregate = text_of(op, "aggregate_function", "SUM")
    if aggregate not in _AGGREGATES:
        fail(op, f"{aggregate!r} is none of {list(_AGGREGATES)}", "aggregate_function")
    return Ensemble(forest, _base(op, n_targets), transform_of(op), aggregate)


def _ensemble(op: Operation) -> Ensemble:
    transform_name = _numbered(op, "post_transform", 0, TRANSFORMS)
    aggregate = _numbered(op, "aggregate_function", 1, _AGGREGATES)
    return Ensemble(forest_by_index(op, _targets(op)), None, transform_name, aggregate)


def _numbered(op: Operation, name: str, default: int, choices: Sequence[str]) -> str:
    number: int = op.attr(name, default)
    if not 0 <= number < len(choices):
        fail(op, f"{number} is none of 0 to {len(choices) - 1}", name)
    return choices[number]


def _targets(op: Operation) -> int:
    n_targets: int = op.attr("n_targets", 1)
    if n_targets < 1:
        fail(op, f"{n_targets} is not positive", "n_targets")
    return n_targets


def _compiled(
    op: Operation,
    specs: Sequence[Spec],
    xp: Any,
    prepared: Prepared[Ensemble],
    outputs: Sequence[TensorSpec | None],
    finish: Finish,
) -> Compiled:
    """The kernel that walks the forest over input 0, then finishes."""
    x = tensor(op, specs, 0)
    rows, features = rows_of(op, specs)
    forest = prepared.value.forest
    if forest.n_features > features:
        fail(op, f"has {features} features; the ensemble asks for feature {forest.n_features - 1}", "X")
    dtype = FLOAT64 if FLOAT64 in (x.dtype, forest.values.dtype) else FLOAT32
    converts = x.dtype != dtype
    parts: tuple[Part, ...] = (
        ((rows, features) if converts else (0,), dtype),
        ((rows, forest.n_targets), dtype),
        ((rows, forest.n_targets), np.bool_),
    )
    values, nodes, roots, targets, weights = on_module(xp, forest)
    values, weights = values.astype(dtype, copy=False), weights.astype(dtype, copy=False)
    trees = len(forest.roots)
    parallel = rows * trees * _STEPS_PER_WALK >= PARALLEL_ELEMENTS

    def bind(inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        wide, scores, scored = carve(workspace, *parts)
        source = inputs[0].reshape(rows, features)
        read = wide if converts else source
        function: Callable[..., None] = partial(walk_arrays, xp)
        if xp is np:
            function = walk.variant(read, values, parallel=parallel)
        ensemble = prepared.value
        extremum = _EXTREMUM[ensemble.aggregate]
        walked = bound(function, read, values, nodes, roots, targets, weights, scores, scored, extremum)

        def call() -> None:
            if converts:
                wide[...] = source
            walked()
            if ensemble.aggregate == "AVERAGE" and trees:
                xp.divide(scores, trees, scores)
            if ensemble.base is not None:
                xp.add(scores, xp.asarray(ensemble.base, dtype), scores)
            finish(scores, scored, results)

        return Quiet(call)

    return computed(
        outputs,
        bind,
        contiguous=(0,),
        workspace_bytes=carved_bytes(*parts),
        capture=host_reason(xp, "makes arrays"),
    )


@kernel("TreeEnsembleClassifier", domain="ai.onnx.ml", versions=(1, 3, 5))
def tree_ensemble_classifier(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X [rows, features] -> labels [rows], scores [rows, classes] (float32).

    The label is that of the greatest score, among classes that a leaf reached gave weight (all, with base values). A
    model of two classes whose leaves weigh only one has one score: its label is the second where the score is positive
    (above 1/2 where no weight is negative, since then it is a probability).
    """
    prepared = once(op, _classifier)
    rows, _ = rows_of(op, specs)
    labels = prepared.value.labels
    assert labels is not None, "a classifier has labels"
    declared = (TensorSpec(labels.dtype, (rows,)), TensorSpec(FLOAT32, (rows, len(labels))))
    outputs = [s if p else None for s, p in zip(declared, op.present_outputs, strict=False)]
    if xp is not np and labels.dtype.kind == "O":
        raise UnsupportedError("strings live on the host", op=op.id, node=op.name)
    table = labels if xp is np else xp.asarray(labels)

    def finish(scores: Array, scored: Array, results: Sequence[Any]) -> None:
        ensemble = prepared.value
        label, score_out = (*results, None)[:2]
        if ensemble.column is not None:
            score = scores[:, ensemble.column]
            index = (score > (0.5 if ensemble.positive else 0)).astype(np.int64)
            if ensemble.column == 0 and score_out is not None:
                two_columns(xp, ensemble.transform, score, score_out, positive=ensemble.positive)
        else:
            counted = scores if ensemble.base is not None else xp.where(scored, scores, -np.inf)
            index = counted.argmax(1)
        if label is not None:
            label[...] = table[index]
        if ensemble.column != 0 and score_out is not None:
            if ensemble.column == 1:
                scores[:, 0] = 0
            transform(xp, ensemble.transform, scores)
            score_out[...] = scores

    return _compiled(op, specs, xp, prepared, outputs, finish)


@kernel("TreeEnsembleRegressor", domain="ai.onnx.ml", versions=(1, 3, 5))
def tree_ensemble_regressor(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X [rows, features] -> scores [rows, n_targets] (float32)."""
    return _regression(op, specs, xp, once(op, _regressor), FLOAT32)


@kernel("TreeEnsemble", domain="ai.onnx.ml", versions=(5,))
def tree_ensemble(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X [rows, features] -> scores [rows, n_targets], of X's dtype."""
    return _regression(op, specs, xp, once(op, _ensemble), tensor(op, specs, 0).dtype)


def _regression(
    op: Operation, specs: Sequence[Spec], xp: Any, prepared: Prepared[Ensemble], dtype: np.dtype[Any]
) -> Compiled:
    rows, _ = rows_of(op, specs)

    def finish(scores: Array, scored: Array, results: Sequence[Any]) -> None:
        transform(xp, prepared.value.transform, scores)
        results[0][...] = scores

    outputs = [TensorSpec(dtype, (rows, prepared.value.forest.n_targets))]
    return _compiled(op, specs, xp, prepared, outputs, finish)
