"""Walking a decision forest: rows down every tree, the weights of the leaves they reach into scores."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero.kernels.jit import inline, jit, prange
from hetero.kernels.tree_nodes import FEATURE, FIRST, LAST, MODE, NAN, NO, YES, Forest
from hetero.types import Array

_BLOCK_WALKS = 1 << 16
"""Walks (a row down a tree) that the array form makes at once."""


def walk_arrays(
    xp: Any,
    x: Array,
    values: Array,
    nodes: Array,
    roots: Array,
    targets: Array,
    weights: Array,
    scores: Array,
    scored: Array,
    extremum: int,
) -> None:
    """`walk` by array operations: all walks of a block of rows go down one level at a time."""
    scores[...] = 0
    scored[...] = False
    block = max(1, _BLOCK_WALKS // max(1, roots.shape[0]))
    for start in range(0, x.shape[0], block):
        part = slice(start, start + block)
        leaves = _leaves(xp, x[part], values, nodes, roots)
        for tree in range(roots.shape[0]):
            first, last = nodes[leaves[:, tree], FIRST], nodes[leaves[:, tree], LAST]
            for k in range(int((last - first).max())):
                rows = xp.flatnonzero(first + k < last)
                entry = first[rows] + k
                _enter(xp, scores[part], scored[part], rows, targets[entry], weights[entry], extremum)


def _leaves(xp: Any, x: Array, values: Array, nodes: Array, roots: Array) -> Array:
    """(rows, trees): the leaf each row reaches."""
    rows, trees = x.shape[0], roots.shape[0]
    at = xp.tile(roots, rows)
    row = xp.repeat(xp.arange(rows), trees)
    live = xp.flatnonzero(nodes[at, MODE] >= 0)
    while live.size:
        node = at[live]
        value, split = x[row[live], nodes[node, FEATURE]], values[node]
        less, equal, greater = value < split, value == split, value > split
        tests = [less | equal, less, greater | equal, greater, equal, ~equal]
        holds = xp.choose(nodes[node, MODE], tests)
        holds |= (nodes[node, NAN] != 0) & (value != value)
        at[live] = xp.where(holds, nodes[node, YES], nodes[node, NO])
        live = live[nodes[at[live], MODE] >= 0]
    return at.reshape(rows, trees)


def _enter(
    xp: Any, scores: Array, scored: Array, rows: Array, targets: Array, weights: Array, extremum: int
) -> None:
    before = scores[rows, targets]
    if extremum == 0:
        after = before + weights
    else:
        better = weights < before if extremum < 0 else weights > before
        after = xp.where(better | ~scored[rows, targets], weights, before)
    scores[rows, targets] = after
    scored[rows, targets] = True


@inline
def step(x: Any, values: Any, nodes: Any, at: Any) -> Any:
    """The child of node `at` that the features x (1-D, not empty) lead to; a leaf itself."""
    mode = nodes[at, 1]
    value = x[nodes[at, 0] if mode >= 0 else 0]
    split = values[at]
    if mode <= 0:
        holds = value <= split
    elif mode == 1:
        holds = value < split
    elif mode == 2:
        holds = value >= split
    elif mode == 3:
        holds = value > split
    elif mode == 4:
        holds = value == split
    else:
        holds = value != split
    if value != value:
        holds = holds or nodes[at, 4] != 0
    # An index, not a branch: which way a row goes is what no processor predicts.
    child = np.int64(nodes[at, 3 - np.int64(holds)])
    return child if mode >= 0 else at


@inline
def enter(scores: Any, scored: Any, nodes: Any, targets: Any, weights: Any, leaf: Any, extremum: Any) -> None:
    """The weights of a leaf into the scores of one row."""
    for entry in range(nodes[leaf, 5], nodes[leaf, 6]):
        target = targets[entry]
        weight = weights[entry]
        if extremum == 0:
            scores[target] += weight
        elif (
            not scored[target]
            or (extremum < 0 and weight < scores[target])
            or (extremum > 0 and weight > scores[target])
        ):
            scores[target] = weight
        scored[target] = True


@jit(
    "f4[2], f4[1], i4[2], i8[1], i8[1], f4[1], f4[2]!, b1[2]!, i8",
    "f8[2], f8[1], i4[2], i8[1], i8[1], f8[1], f8[2]!, b1[2]!, i8",
    twin=partial(walk_arrays, np),
)
def walk(
    x: Array,
    values: Array,
    nodes: Array,
    roots: Array,
    targets: Array,
    weights: Array,
    scores: Array,
    scored: Array,
    extremum: int,
) -> None:
    """x (rows, features) -> scores and scored (rows, targets): the sum of the weights reached in the order of the
    trees, or the smallest (`extremum` -1) or largest (1) of them, and whether there was any."""
    for row in prange(x.shape[0]):
        for target in range(scores.shape[1]):
            scores[row, target] = 0
            scored[row, target] = False
        features = x[row]
        reached, entered = scores[row], scored[row]
        tree = 0
        # Four trees side by side: a step waits for memory most of the time. A row without features has leaves only.
        while tree + 4 <= roots.shape[0] and features.shape[0] > 0:
            a, b, c, d = roots[tree], roots[tree + 1], roots[tree + 2], roots[tree + 3]
            while (nodes[a, 1] & nodes[b, 1] & nodes[c, 1] & nodes[d, 1]) >= 0:  # a leaf's mode is negative
                a = step(features, values, nodes, a)
                b = step(features, values, nodes, b)
                c = step(features, values, nodes, c)
                d = step(features, values, nodes, d)
            enter(reached, entered, nodes, targets, weights, a, extremum)
            enter(reached, entered, nodes, targets, weights, b, extremum)
            enter(reached, entered, nodes, targets, weights, c, extremum)
            enter(reached, entered, nodes, targets, weights, d, extremum)
            tree += 4
        while tree < roots.shape[0]:
            a = roots[tree]
            while nodes[a, 1] >= 0:
                a = step(features, values, nodes, a)
            enter(reached, entered, nodes, targets, weights, a, extremum)
            tree += 1


def on_module(xp: Any, forest: Forest) -> tuple[Array, ...]:
    """The forest's arrays as `xp`'s: values, nodes, roots, targets, weights."""
    arrays = (forest.values, forest.nodes, forest.roots, forest.targets, forest.weights)
    return arrays if xp is np else tuple(xp.asarray(a) for a in arrays)
